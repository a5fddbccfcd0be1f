package middlewaretest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A Call is what a [Fake] was asked.
type Call struct {
	Key string
	N   int64
}

// A Fake is a limiter that says what Answer says, and remembers what it was asked.
type Fake struct {
	Answer func(ctx context.Context, n int64) (limit.Decision, error)

	asked redistest.List[Call]
}

// Take remembers the call and answers it.
func (f *Fake) Take(ctx context.Context, key string, n int64) (limit.Decision, error) {
	f.asked.Add(Call{key, n})
	return f.Answer(ctx, n)
}

// Asked returns all calls so far.
func (f *Fake) Asked() []Call { return f.asked.All() }

// Costs returns for how many permits all calls were.
func (f *Fake) Costs() (all []int64) {
	for _, call := range f.Asked() {
		all = append(all, call.N)
	}
	return all
}

// Key returns the key of the last call, "" if there was none.
func (f *Fake) Key() string {
	asked := f.Asked()
	if len(asked) == 0 {
		return ""
	}
	return asked[len(asked)-1].Key
}

// Says returns a limiter that always gives the same answer.
func Says(d limit.Decision, err error) *Fake {
	return &Fake{Answer: func(context.Context, int64) (limit.Decision, error) { return d, err }}
}

// Grants returns a limiter that grants everything, as the first of 10 permits.
func Grants() *Fake {
	return Says(limit.Decision{Granted: true, Limit: 10, Remaining: 9, ResetAfter: time.Minute}, nil)
}

// Budget returns a limiter that grants that many permits in all.
func Budget(most int64, retryAfter time.Duration) *Fake {
	var mu sync.Mutex
	left := most
	return &Fake{Answer: func(_ context.Context, n int64) (limit.Decision, error) {
		mu.Lock()
		defer mu.Unlock()
		if n > left {
			return limit.Decision{Limit: most, Remaining: left, RetryAfter: retryAfter}, nil
		}
		left -= n
		return limit.Decision{Granted: true, Limit: most, Remaining: left}, nil
	}}
}

// Hangs returns a limiter that answers when its context ends.
func Hangs() *Fake {
	return &Fake{Answer: func(ctx context.Context, _ int64) (limit.Decision, error) {
		<-ctx.Done()
		return limit.Decision{}, ctx.Err()
	}}
}

// Deaf returns a limiter that grants after a time, whatever its context says.
func Deaf(after time.Duration) *Fake {
	return &Fake{Answer: func(context.Context, int64) (limit.Decision, error) {
		time.Sleep(after)
		return limit.Decision{Granted: true, Limit: 1}, nil
	}}
}

// A Returner is a Fake whose grants can be given back.
type Returner struct {
	*Fake

	Giving func() error // what giving back answers, nil for no error

	given redistest.List[Call]
}

// TakeReturnable is Take with a function that gives the permits back.
func (r *Returner) TakeReturnable(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context) error, error) {
	d, err := r.Take(ctx, key, n)
	if err != nil || !d.Granted {
		return d, nil, err
	}
	return d, func(ctx context.Context) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		r.given.Add(Call{key, n})
		if r.Giving != nil {
			return r.Giving()
		}
		return nil
	}, nil
}

// GivenBack returns the calls whose permits were given back.
func (r *Returner) GivenBack() []Call { return r.given.All() }

// A Reserver is a Fake of which one grant can be settled, or many.
type Reserver struct {
	*Fake

	Cannot, Fails error   // what it says instead of reserving, and of settling
	Many          bool    // grants can be settled
	Settled       []int64 // with what they were
}

// TakeReserved is Take with a function that settles.
func (r *Reserver) TakeReserved(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context, int64) error, error) {
	if r.Cannot != nil {
		return limit.Decision{}, nil, r.Cannot
	}
	d, err := r.Take(ctx, key, n)
	return d, func(_ context.Context, actual int64) error {
		if len(r.Settled) > 0 && !r.Many {
			return limit.ErrSettled
		}
		if r.Fails == nil {
			r.Settled = append(r.Settled, actual)
		}
		return r.Fails
	}, err
}

type handlerKey struct{}

// Handle does what a test wants of a handler with that context. Handlers call it.
func Handle(ctx context.Context) {
	if f, ok := ctx.Value(handlerKey{}).(func(context.Context)); ok {
		f(ctx)
	}
}

// Handled returns a context with which Handle calls f.
func Handled(ctx context.Context, f func(context.Context)) context.Context {
	return context.WithValue(ctx, handlerKey{}, f)
}

// Windowed is a limiter that tells its window.
type Windowed struct {
	limit.Limiter

	Span time.Duration
}

// Window returns the span.
func (w Windowed) Window() time.Duration { return w.Span }

// Errors are what an error handler was called with.
type Errors struct{ redistest.List[error] }

// Check checks that one error came since the last time, which is each of want, or none if want is empty.
func (e *Errors) Check(t testing.TB, want ...error) {
	t.Helper()
	errs := e.Take()
	if len(want) == 0 {
		assert.Empty(t, errs)
		return
	}
	if !assert.Len(t, errs, 1) {
		return
	}
	for _, err := range want {
		assert.ErrorIs(t, errs[0], err)
	}
}

// A Member is one of a header's list, such as "burst";q=10;w=1.
type Member struct {
	Name   string
	Params map[string]int64
}

var (
	memberText = regexp.MustCompile(`^"((?:[ !\x23-\x5b\x5d-\x7e]|\\["\\])+)"((?:;[a-z]+=\d{1,15})+)$`)
	paramText  = regexp.MustCompile(`;([a-z]+)=(\d+)`)
)

// Members reads a header that is a list of strings with integer parameters. It is written from the grammar of RFC 9651, without the library
// that writes them; no name may hold ", ".
func Members(h http.Header, name string) (list []Member, err error) {
	for _, line := range h.Values(name) {
		for text := range strings.SplitSeq(line, ", ") {
			match := memberText.FindStringSubmatch(text)
			if match == nil {
				return nil, fmt.Errorf("%s: %q", name, text)
			}
			m := Member{strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(match[1]), map[string]int64{}}
			for _, p := range paramText.FindAllStringSubmatch(match[2], -1) {
				if m.Params[p[1]], err = strconv.ParseInt(p[2], 10, 64); err != nil {
					return nil, err
				}
			}
			list = append(list, m)
		}
	}
	return list, nil
}

// hourly is the limit of what [Outages] tests.
const hourly = 8

// Instead is what answers while Redis does not decide: one of both.
type Instead struct {
	Failure  *limit.Failure
	Fallback limit.Limiter
}

// Asking makes one request.
type Asking func(ctx context.Context) (granted bool, err error)

// A Guarded is something that has a policy for outages.
type Guarded struct {
	Fallbacks bool // it can have one
	Foreign   bool // the limiter tells its limit only by its answers

	// Open returns what makes requests of a limit of 8 an hour in rdb. told is the error handler.
	Open func(t *testing.T, rdb redistest.Client, how Instead, told func(error)) Asking
}

// answered is an error that Redis answered.
type answered string

func (a answered) Error() string { return string(a) }
func (answered) RedisError()     {}

// Outages tests that whatever has a policy behaves alike: no call ends in an error, three meet the outage,
// later ones are answered at once, and Redis decides again when it is back.
func Outages(t *testing.T, g Guarded) {
	t.Helper()
	open, local := limit.FailOpen(), limit.FailLocal(0.5)
	for policy, p := range map[string]struct {
		how  func() Instead
		want int // of 20 calls
	}{
		"open":     {func() Instead { return Instead{Failure: &open} }, 20},
		"local":    {func() Instead { return Instead{Failure: &local} }, hourly / 2},
		"fallback": {func() Instead { return Instead{Fallback: Budget(5, time.Hour)} }, 5},
	} {
		if policy == "fallback" && !g.Fallbacks {
			continue
		}
		for outage, fails := range map[string]func([]redis.Cmder) error{
			"start": refused, "hung": hung, "refused": refused, "read only": func(cmds []redis.Cmder) error {
				return redistest.Fail(cmds, answered("READONLY You can't write against a read only replica."))
			},
		} {
			if g.Foreign && policy == "local" && outage == "start" {
				continue
			}
			t.Run(policy+", "+outage, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { g.meet(t, p.how(), outage == "start", fails, p.want) })
			})
		}
	}
}

func refused(cmds []redis.Cmder) error {
	return redistest.Fail(cmds, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)})
}

func hung(cmds []redis.Cmder) error {
	time.Sleep(3 * time.Second)
	return redistest.Fail(cmds, &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded})
}

// meet lets an outage begin, makes calls, and ends the outage.
func (g Guarded) meet(t *testing.T, how Instead, start bool, fails func([]redis.Cmder) error, want int) {
	rdb, _ := redistest.Mini(t)
	var down atomic.Bool
	var sent atomic.Int64
	rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		if !down.Load() {
			return next()
		}
		sent.Add(1)
		return fails(cmds)
	}))
	var told redistest.List[error]
	ask := g.Open(t, rdb, how, told.Add)
	free := hourly
	mustAsk := func() bool {
		granted, err := ask(t.Context())
		require.NoError(t, err)
		return granted
	}
	if !start {
		require.True(t, mustAsk())
		free--
	}
	down.Store(true)
	granted := 0
	for i := range 20 {
		before, most := time.Now(), 20*time.Millisecond
		if i < 3 {
			most = 3 * time.Second
		}
		if mustAsk() {
			granted++
		}
		assert.LessOrEqual(t, time.Since(before), most, "call %d", i)
	}
	assert.Equal(t, want, granted)
	assert.LessOrEqual(t, sent.Load(), int64(120), "attempts of three calls")
	assert.LessOrEqual(t, len(told.All()), 3, "an outage is reported once")
	for _, err := range told.All() {
		assert.True(t, errors.Is(err, limit.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded), "%v", err)
	}
	down.Store(false)
	time.Sleep(10 * time.Second)
	for mustAsk() {
		free--
	}
	assert.LessOrEqual(t, 0, free, "permits of Redis")
	assert.LessOrEqual(t, free, 3, "permits of Redis, but for calls in doubt")
	time.Sleep(time.Minute) // go-redis comes back from what hung
}
