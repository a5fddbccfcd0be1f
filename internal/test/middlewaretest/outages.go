package middlewaretest

import (
	"context"
	"errors"
	"net"
	"os"
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

	// Open returns what makes requests of a limit of 8 an hour in rdb. told is the
	// error handler.
	Open func(t *testing.T, rdb redistest.Client, how Instead, told func(error)) Asking
}

// answered is an error that Redis answered.
type answered string

func (a answered) Error() string { return string(a) }

func (answered) RedisError() {}

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

// A limiter has the timeout, and its fallback has it again. A caller who leaves is no failure of the limiter, which is not replaced
// then. What it grants too late is given back, once.
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
