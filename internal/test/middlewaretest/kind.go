// Package middlewaretest tests what HTTP and gRPC middleware have in common: which requests pass, what they cost and under which key, and
// what answers while a limiter fails. What only one protocol has is left to the tests of its package.
package middlewaretest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// A Kind is a kind of middleware to test. O is its option, K its key function.
type Kind[O, K any] struct {
	Name   string // as observers see it
	Prefix string // of keys, by default
	Parts  string // what follows the prefix by default, the same for each request

	Exact   time.Duration // what RetryAfter is rounded up to
	Figures bool          // answers have them
	Late    Verdict       // on a request whose deadline the limiter has missed; Unavailable: that is the limiter's failure

	// Wrap returns middleware around a handler, which fails t if an answer is not as its protocol says.
	Wrap  func(t testing.TB, l limit.Limiter, opts ...O) Handler
	Check func(l limit.Limiter, opts ...O) error // returns the options' error

	Text func(part string, err error) K // a key function that always says so
	User K                              // a key function that says whose request it is

	WithCost         func(n int64, err error) O
	WithErrorHandler func(hook func(error)) O
	WithFailure      func(limit.Failure) O
	WithFallback     func(limit.Limiter) O
	WithHashTag      func() O
	WithKey          func(...K) O
	WithObserver     func(limit.Observer) O
	WithPrefix       func(string) O
	WithShadow       func() O
	WithSkip         func(skip bool) O
	WithTimeout      func(time.Duration) O
	WithWait         func() O // requests wait until they can pass; nil: they can't

	Policy func(Policy) limit.Limiter                    // what middleware has in place of a limiter
	Settle func(ctx context.Context, actual int64) error // nil: no handler
	Bad    map[string][]O                                // options that make no sense, besides those that all kinds have
}

// A Policy is what concerns only one limit.
type Policy struct {
	Limiter limit.Limiter
	Plan    func(user string) limit.Limiter
	Hold    time.Duration

	Settle, Shadow, InFlight bool
}

// A Handler makes a request of a user, and returns the result.
type Handler func(ctx context.Context, user string) Answer

// An Answer is what a caller sees.
type Answer struct {
	Verdict    Verdict
	RetryAfter time.Duration // of a refusal; 0 if waiting doesn't help
	Figures    []int64       // the limit and what remains of it; nil if they are not reported
	Text       string        // all that the caller can read
}

// A Verdict says what happened to a request.
type Verdict string

// What can happen to a request.
const (
	Passed        Verdict = "passed"
	Refused       Verdict = "refused"
	Unavailable   Verdict = "unavailable"
	Misconfigured Verdict = "misconfigured"
	Rejected      Verdict = "rejected" // its cost can't be found out
	Overdue       Verdict = "overdue"  // its deadline has passed
	Gone          Verdict = "gone"     // the caller didn't wait for the answer
)

// Run tests a kind of middleware. It replaces slog's default logger for a moment, so the test that calls it must not be parallel.
func (k Kind[O, K]) Run(t *testing.T) {
	t.Helper()
	t.Run("Log", k.testLog)
	for name, test := range map[string]func(*testing.T){
		"Verdicts":        k.testVerdicts,
		"Gone":            k.testGone,
		"Time":            k.testTime,
		"Panic":           k.testPanic,
		"BadOptions":      k.testBadOptions,
		"Keys":            k.testKeys,
		"PrefixIsNoted":   k.testPrefixIsNoted,
		"SettleIsChecked": k.testSettleIsChecked,
		"Waits":           k.testWaits,
		"WaitsInOrder":    k.testWaitsInOrder,
	} {
		if strings.HasPrefix(name, "Waits") && k.WithWait == nil || strings.HasPrefix(name, "Settle") && k.Settle == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// settled returns a policy of a limiter whose grants are settled.
func (k Kind[O, K]) settled(l limit.Limiter) limit.Limiter {
	return k.Policy(Policy{Limiter: l, Settle: true})
}

// planned returns a policy whose limiter requests choose.
func (k Kind[O, K]) planned(l limit.Limiter, plan func(user string) limit.Limiter) limit.Limiter {
	return k.Policy(Policy{Limiter: l, Plan: plan})
}

// rig is middleware, and what its error handler and its observer hear.
type rig struct {
	t      testing.TB
	handle Handler
	errs   Errors
	told   limitertest.Recorder
}

func (k Kind[O, K]) rig(t testing.TB, l limit.Limiter, opts ...O) *rig {
	t.Helper()
	r := &rig{t: t}
	own := []O{k.WithErrorHandler(r.errs.Add), k.WithObserver(&r.told)}
	if !redistest.InBubble() {
		own = append(own, k.WithTimeout(redistest.Patience(0))) // the machine may stall
	}
	r.handle = k.Wrap(t, l, append(own, opts...)...)
	return r
}

// ask makes a request, and checks the result and what the error handler hears.
func (r *rig) ask(want Verdict, heard ...error) {
	r.t.Helper()
	assert.Equal(r.t, want, r.handle(r.t.Context(), "").Verdict)
	r.errs.Check(r.t, heard...)
}

// figures returns what an answer of this kind tells.
func (k Kind[O, K]) figures(limit, remaining int64) []int64 {
	if !k.Figures {
		return nil
	}
	return []int64{limit, remaining}
}

func (k Kind[O, K]) testBadOptions(t *testing.T) {
	var noOption O
	var noKey K
	all := map[string][]O{
		"no limiter":   nil,
		"nil option":   {noOption},
		"no prefix":    {k.WithPrefix("")},
		"no key":       {k.WithKey()},
		"nil key":      {k.WithKey(k.User, noKey)},
		"two tags":     {k.WithHashTag(), k.WithPrefix("{a}:")},
		"a brace":      {k.WithHashTag(), k.WithPrefix("a{:")},
		"another":      {k.WithHashTag(), k.WithPrefix("a}:")},
		"timeout":      {k.WithTimeout(-1)},
		"share":        {k.WithFailure(limit.FailLocal(0))},
		"no window":    {k.WithFailure(limit.FailLocal(1))},
		"nil fallback": {k.WithFallback(nil)},
		"nil observer": {k.WithObserver(nil)},
	}
	maps.Copy(all, k.Bad)
	for name, opts := range all {
		for _, shadow := range [][]O{nil, {k.WithShadow()}} {
			asked := Grants()
			var limiter limit.Limiter = asked
			if name == "no limiter" {
				limiter = nil
			}
			given := append(append([]O{k.WithFailure(limit.FailOpen())}, opts...), shadow...)
			bad := k.Check(limiter, given...)
			require.ErrorIs(t, bad, limit.ErrInvalidConfig, name)
			r := k.rig(t, limiter, given...)
			for range 2 {
				assert.Equal(t, Misconfigured, r.handle(t.Context(), "").Verdict, name)
				heard := r.errs.Take()
				require.Len(t, heard, 1)
				require.EqualError(t, heard[0], bad.Error(), name)
			}
			assert.Empty(t, asked.Asked(), name)
		}
	}
	require.NoError(t, k.Check(Grants()))
	require.NoError(t, k.Check(Grants(), k.WithKey(k.User), k.WithFallback(Grants())))
	wrong := misconfigured{Grants()}
	require.ErrorIs(t, k.Check(wrong), limit.ErrInvalidConfig, "of the limiter itself")
	require.ErrorIs(t, k.Check(Grants(), k.WithFallback(wrong)), limit.ErrInvalidConfig)
	for _, policy := range []limit.Limiter{k.settled(nil), k.Policy(Policy{Limiter: k.settled(Grants())})} {
		require.ErrorIs(t, k.Check(policy), limit.ErrInvalidConfig)
	}
	require.ErrorIs(t, k.Check(Grants(), k.WithFallback(k.settled(Grants()))), limit.ErrInvalidConfig, "a policy is no limiter")
	chosen := k.rig(t, k.planned(Grants(), func(string) limit.Limiter { return k.settled(Grants()) }))
	chosen.ask(Misconfigured, limit.ErrInvalidConfig)
}

// misconfigured is a limiter that says so.
type misconfigured struct{ limit.Limiter }

func (misconfigured) Err() error { return fmt.Errorf("%w: no", limit.ErrInvalidConfig) }

// keyOf returns the key of a request of which the parts are these.
func (k Kind[O, K]) keyOf(t testing.TB, opts []O, parts ...string) string {
	t.Helper()
	var keys []K
	for _, part := range parts {
		keys = append(keys, k.Text(part, nil))
	}
	limiter := Grants()
	k.rig(t, limiter, append(opts, k.WithKey(keys...))...).ask(Passed)
	return limiter.Key()
}

func (k Kind[O, K]) testKeys(t *testing.T) {
	long := strings.Repeat("x", 128)
	hashed := func(head, part string) string { return fmt.Sprintf("%s%%sha256-%x", head, sha256.Sum256([]byte(part))) }
	for part, want := range map[string]string{
		"":                   "",
		"a:b":                "a%3Ab",
		"{slot}":             "%7Bslot%7D",
		"a b\t\r\n\x00\x7f":  "a%20b%09%0D%0A%00%7F",
		"\u00a0\u202e\u2028": "%C2%A0%E2%80%AE%E2%80%A8",
		long:                 long,
		long + "x":           hashed(long[:32], long+"x"),
	} {
		assert.Equal(t, k.Prefix+want, k.keyOf(t, nil, part))
	}
	prefix, tag := []O{k.WithPrefix("limit:")}, []O{k.WithHashTag()}
	assert.Equal(t, "limit:ann:/hello/world", k.keyOf(t, prefix, "ann", "/hello/world"), "as Java services write it")
	assert.Equal(t, "limit:a:", k.keyOf(t, prefix, "a", ""), "an empty part stays")
	assert.Equal(t, "{orders}:ann", k.keyOf(t, []O{k.WithPrefix("{orders}:")}, "ann"), "the application may choose the slot")
	for part, want := range map[string]string{"ann": "{ann}", "": "{%}", "%": "{%25}", "}{": "{%7D%7B}"} {
		assert.Equal(t, k.Prefix+want, k.keyOf(t, tag, part))
	}
	assert.Equal(t, k.Prefix+"{/items/1:ann}", k.keyOf(t, tag, "/items/1", "ann"))
}

// A Client warns of limiters whose keys meet, so it must know how they begin.
func (k Kind[O, K]) testPrefixIsNoted(t *testing.T) {
	for want, opts := range map[string][]O{
		k.Prefix: nil, "api:": {k.WithPrefix("api:")}, "api:{": {k.WithPrefix("api:"), k.WithHashTag()},
	} {
		rdb, _ := redistest.Mini(t)
		told := &limitertest.Recorder{}
		client := rratelimiter.New(rdb, limitertest.Patient(), rratelimiter.WithObserver(told))
		k.rig(t, client.Keyed("rate:", rratelimiter.PerHour(1)), opts...)
		require.NoError(t, client.Keyed("rate:"+want, rratelimiter.PerHour(2)).Limiter("key").Err())
		require.Eventually(t, func() bool { return len(told.Events()) > 0 }, time.Minute, time.Millisecond)
		assert.Equal(t, limit.RateDiffers, told.Events()[0].Kind, "the prefix is %q", want)
		require.NoError(t, client.Close(t.Context()))
	}
}

// Without an error handler, slog's default logger gets the errors.
func (k Kind[O, K]) testLog(t *testing.T) {
	var out strings.Builder
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	defer slog.SetDefault(before)
	k.Wrap(t, Says(limit.Decision{}, errDown))(t.Context(), "")
	assert.Contains(t, out.String(), errDown.Error())
	assert.Contains(t, out.String(), "level=ERROR")
}

// Limiters returns each limiter of this module, of a Client, of so many permits in an interval.
func Limiters(client *rratelimiter.Client, permits int64, interval time.Duration) map[string]limit.Limiter {
	return map[string]limit.Limiter{
		"keyed":       client.Keyed("rate:", rratelimiter.Config{Rate: permits, Interval: interval}),
		"fixedwindow": fixedwindow.New(client, fixedwindow.Config{Limit: permits, Window: interval}),
		"slidinglog":  slidinglog.New(client, slidinglog.Config{Limit: permits, Window: interval}),
		"tokenbucket": tokenbucket.New(client, tokenbucket.Config{Capacity: permits, Refill: permits, Interval: interval}),
	}
}

var (
	errDown    = errors.New("secret: connection refused")
	errDownToo = errors.New("secret: no route to host")
)

// Ending returns a context with a deadline, or if that is below 0, one whose caller goes then.
func Ending(ctx context.Context, in time.Duration) (context.Context, context.CancelFunc) {
	if in > 0 {
		return context.WithTimeout(ctx, in)
	}
	ctx, cancel := context.WithCancel(ctx)
	if in < 0 {
		time.AfterFunc(-in, cancel)
	}
	return ctx, cancel
}

// A limiter has the timeout, and its fallback has it again, unless the caller leaves. What it grants too late is given back, once.
func (k Kind[O, K]) testTime(t *testing.T) {
	const short, second = 10 * time.Millisecond, time.Second
	fallback, late := Grants(), k.Late
	open := k.WithFailure(limit.FailOpen())
	if late == Unavailable {
		late = Passed
	}
	for name, c := range map[string]struct {
		opt  O
		in   time.Duration // the request's deadline; below 0, when its caller goes
		took time.Duration
		want Verdict
	}{
		"default":          {k.WithFailure(limit.FailClosed()), 0, second, Unavailable},
		"option":           {k.WithTimeout(2 * short), 0, 2 * short, Unavailable},
		"hanging fallback": {k.WithFallback(Hangs()), 0, 2 * second, Unavailable},
		"deaf fallback":    {k.WithFallback(Deaf(time.Minute)), 0, 2 * second, Unavailable},
		"no bound":         {k.WithTimeout(0), 0, time.Minute, Passed},
		"gone, closed":     {k.WithFailure(limit.FailClosed()), -short, short, Gone},
		"gone, open":       {open, -short, short, Gone},
		"gone, fallback":   {k.WithFallback(fallback), -short, short, Gone},
		"gone, no bound":   {k.WithTimeout(0), -short, short, Gone},
		"late, fallback":   {k.WithFallback(fallback), short, short, k.Late},
		"late, open":       {open, short, short, late},
	} {
		for _, deaf := range []bool{true, false} {
			if !deaf && name == "no bound" {
				continue // it would never answer
			}
			synctest.Test(t, func(t *testing.T) {
				limiter, givenBack := &Returner{Fake: Hangs()}, 0
				if deaf {
					limiter.Fake = Deaf(time.Minute)
				}
				if deaf && c.want != Passed || deaf && c.in != 0 {
					givenBack = 1
				}
				r := k.rig(t, limiter, c.opt)
				ctx, cancel := Ending(t.Context(), c.in)
				defer cancel()
				start := time.Now()
				assert.Equal(t, c.want, r.handle(ctx, "").Verdict, name)
				assert.Equal(t, c.took, time.Since(start), name)
				if c.want == Unavailable || name == "late, open" && late == Passed {
					r.errs.Check(t, context.DeadlineExceeded)
				}
				r.errs.Check(t)
				assert.Empty(t, limiter.GivenBack(), name)
				time.Sleep(time.Hour)
				assert.Len(t, limiter.GivenBack(), givenBack, name)
			})
		}
	}
	assert.Empty(t, fallback.Asked(), "it is too late for that")
}

func (k Kind[O, K]) testPanic(t *testing.T) {
	panics := &Fake{Answer: func(context.Context, int64) (limit.Decision, error) { panic("oops") }}
	r := k.rig(t, panics)
	assert.PanicsWithValue(t, "oops", func() { r.ask(Passed) })
}
