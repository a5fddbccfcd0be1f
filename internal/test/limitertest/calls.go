package limitertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/op"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// KindsOfContext are two, since calls have code of their own for contexts that can't end.
var KindsOfContext = map[string]func(context.Context) context.Context{
	"cancellable":     func(ctx context.Context) context.Context { return ctx },
	"not cancellable": context.WithoutCancel,
}

// EndedContext returns a context that has been cancelled.
func EndedContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// Within returns a context that ends with the test, or after so long.
func Within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// Together lets each of that many callers do something at the same time.
func Together(callers int, do func(i int)) {
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() { do(i) })
	}
	wg.Wait()
}

// Granted returns an error if permits were not granted.
func Granted(ok bool, err error) error {
	if err == nil && !ok {
		return errors.New("refused")
	}
	return err
}

// Go calls f in a goroutine, and returns a channel that is closed once it has returned.
func Go(f func()) <-chan struct{} {
	over := make(chan struct{})
	go func() {
		defer close(over)
		f()
	}()
	return over
}

// Soon fails the test if something hangs.
func Soon(t testing.TB, over <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-over:
	case <-time.After(redistest.Patience(20 * time.Second)):
		require.FailNow(t, "it hangs", what)
	}
}

// An effect is what a call does to a limiter.
type effect int

const (
	changes  effect = iota
	reads           // it changes nothing, or nothing that matters
	acquires        // it gives back what its caller went away from
)

// A Verb is a call of a limiter.
type Verb struct {
	Do func(ctx context.Context, l *rratelimiter.RateLimiter) op.Answer

	effect effect
}

// Verbs are all calls of a limiter that go to Redis, with arguments that are in order, by names that begin with the method's.
// What they leave behind beside the limiter is in its slot of a cluster. A new one is a row here.
var Verbs = map[string]Verb{
	"TryAcquire":          verb(acquires, op.Op{Name: op.Try, Permits: 1}),
	"TryAcquire, waiting": verb(acquires, op.Op{Name: op.Try, Permits: 1, Timeout: time.Hour}),
	"Acquire":             verb(acquires, op.Op{Name: op.Acquire, Permits: 1}),
	"Take":                verb(acquires, op.Op{Name: op.Take, Permits: 1}),
	"TakeUpTo":            verb(acquires, op.Op{Name: op.UpTo, Permits: 1}),
	"Reserve":             {reserveAndSettle, acquires},
	"Peek":                verb(reads, op.Op{Name: op.Peek, Permits: 1}),
	"AvailablePermits":    verb(reads, op.Op{Name: op.Available}),
	"Config":              verb(reads, op.Op{Name: op.Config}),
	"TTL":                 verb(reads, op.Op{Name: op.TTL}),
	"Override": {func(ctx context.Context, l *rratelimiter.RateLimiter) (a op.Answer) {
		_, a.OK, a.Err = l.Override(ctx)
		return a
	}, reads},
	"Exists":              verb(reads, op.Op{Name: op.Exists}),
	"Release":             verb(changes, op.Op{Name: op.Release, Permits: 1}),
	"Reset":               verb(changes, op.Op{Name: op.Reset}),
	"TrySetRate":          verb(changes, op.Op{Name: op.TrySet, Config: Every(7, time.Hour)}),
	"SetRate":             verb(changes, op.Op{Name: op.Set, Config: Every(7, time.Hour)}),
	"UpdateRate":          verb(changes, op.Op{Name: op.Update, Config: Every(7, time.Hour), Keep: true}),
	"Expire":              verb(changes, op.Op{Name: op.Expire, In: time.Hour}),
	"ExpireAt":            verb(changes, op.Op{Name: op.ExpireAt, In: time.Hour}),
	"ClearExpire":         verb(changes, op.Op{Name: op.ClearExpire}),
	"Delete":              verb(changes, op.Op{Name: op.Delete}),
	"Rename":              renames(changes, Besides),
	"Rename, to its name": renames(reads, func(name string) string { return name }),
}

func verb(does effect, o op.Op) Verb {
	return Verb{func(ctx context.Context, l *rratelimiter.RateLimiter) op.Answer { return o.Do(ctx, op.On(l)) }, does}
}

func renames(does effect, to func(name string) string) Verb {
	return Verb{func(ctx context.Context, l *rratelimiter.RateLimiter) op.Answer {
		return op.Op{Name: op.Rename, To: to(l.Name())}.Do(ctx, op.On(l))
	}, does}
}

func reserveAndSettle(ctx context.Context, l *rratelimiter.RateLimiter) op.Answer {
	a := op.Op{Name: op.Reserve, Permits: 1}.Do(ctx, op.On(l))
	if a.Err == nil {
		if a.Err = a.Reserved.Settle(ctx, 2); errors.Is(a.Err, rratelimiter.ErrClosed) {
			a.Err = nil // in between
		}
	}
	return a
}

// Operations are all Verbs, by what they fail with.
var Operations = operations()

func operations() map[string]func(ctx context.Context, l *rratelimiter.RateLimiter) error {
	all := map[string]func(ctx context.Context, l *rratelimiter.RateLimiter) error{}
	for name, v := range Verbs {
		all[name] = func(ctx context.Context, l *rratelimiter.RateLimiter) error { return v.Do(ctx, l).Err }
	}
	return all
}

// Reads are those that change nothing, or nothing that matters.
var Reads = verbsThat(reads)

// Acquires are those that give back what their caller went away from.
var Acquires = verbsThat(acquires)

func verbsThat(do effect) map[string]bool {
	all := map[string]bool{}
	for name, v := range Verbs {
		all[name] = v.effect == do
	}
	return all
}

// A Call is of a limiter of 10 permits or more, by a Client. Its first part makes what it needs, as a reservation.
type Call func(t testing.TB, c *rratelimiter.Client, l *rratelimiter.RateLimiter) func(ctx context.Context) error

// Calls are all Operations, and calls that ask another limiter too, or need what was granted before.
func Calls() map[string]Call {
	all := map[string]Call{
		"TryAcquireAll": ofTwo(func(ctx context.Context, c *rratelimiter.Client, both []rratelimiter.Claim) error {
			return Second(c.TryAcquireAll(ctx, Forever, both...))
		}),
		"TakeAll": ofTwo(func(ctx context.Context, c *rratelimiter.Client, both []rratelimiter.Claim) error {
			return Second(c.TakeAll(ctx, both...))
		}),
		"ReserveAll": ofTwo(func(ctx context.Context, c *rratelimiter.Client, both []rratelimiter.Claim) error {
			return Second(c.ReserveAll(ctx, 0, both...))
		}),
		"Settle": ofReservation(func(ctx context.Context, r *rratelimiter.Reservation) error { return r.Settle(ctx, 9) }),
		"Cancel": ofReservation(func(ctx context.Context, r *rratelimiter.Reservation) error { return r.Cancel(ctx) }),
		"Renew":  ofReservation(func(ctx context.Context, r *rratelimiter.Reservation) error { return r.Renew(ctx) }),
		"undo": func(t testing.TB, c *rratelimiter.Client, l *rratelimiter.RateLimiter) func(ctx context.Context) error {
			_, undo, err := c.Keyed("", ConfigOf(t, l)).TakeReturnable(t.Context(), l.Name(), 1)
			require.NoError(t, err)
			return undo
		},
		"Migrate": func(_ testing.TB, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) func(ctx context.Context) error {
			return func(ctx context.Context) error { return Second(l.Migrate(ctx)) }
		},
	}
	for name, do := range Operations {
		all[name] = func(_ testing.TB, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) func(ctx context.Context) error {
			return func(ctx context.Context) error { return do(ctx, l) }
		}
	}
	return all
}

func ofTwo(do func(ctx context.Context, c *rratelimiter.Client, both []rratelimiter.Claim) error) Call {
	return func(t testing.TB, c *rratelimiter.Client, l *rratelimiter.RateLimiter) func(ctx context.Context) error {
		both := []rratelimiter.Claim{ByDefault(c, Besides(l.Name()), ConfigOf(t, l)).Claim(1), l.Claim(1)}
		return func(ctx context.Context) error { return do(ctx, c, both) }
	}
}

func ofReservation(do func(ctx context.Context, r *rratelimiter.Reservation) error) Call {
	return func(t testing.TB, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) func(ctx context.Context) error {
		r := Reserve(t, l, 4)
		return func(ctx context.Context) error { return do(ctx, r) }
	}
}

// A Request is one call. It returns the permits that it was granted.
type Request func(w *Wire) (int64, error)

// Counted is what TryAcquire answered, as permits.
func Counted(permits int64, granted bool, err error) (int64, error) {
	if !granted {
		permits = 0
	}
	return permits, err
}

// TryFor is a TryAcquire with no timeout.
func TryFor(permits int64) Request { return asks(op.Op{Name: op.Try, Permits: permits}) }

// WaitFor is a TryAcquire with that timeout.
func WaitFor(permits int64, timeout time.Duration) Request {
	return asks(op.Op{Name: op.Try, Permits: permits, Timeout: timeout})
}

// TakeFor is a Take.
func TakeFor(permits int64) Request { return asks(op.Op{Name: op.Take, Permits: permits}) }

// UpToFor is a TakeUpTo.
func UpToFor(permits int64) Request { return asks(op.Op{Name: op.UpTo, Permits: permits}) }

func asks(o op.Op) Request {
	return func(w *Wire) (int64, error) {
		a := o.Do(w.Context(context.Background()), op.On(w.RateLimiter))
		if o.Name == op.UpTo {
			return a.Taken, a.Err
		}
		return Counted(o.Permits, a.OK, a.Err)
	}
}

// ReserveFor is a Reserve.
func ReserveFor(permits int64, opts ...rratelimiter.ReserveOption) Request {
	return func(w *Wire) (int64, error) {
		r, err := w.Reserve(w.Context(context.Background()), permits, 0, opts...)
		return Counted(permits, err == nil && r.Granted, err)
	}
}

// A Change is what a program may do to a limiter beside taking permits.
type Change func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.RateLimiter) error

func change(o op.Op) Change {
	return func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return o.Do(ctx, op.On(l)).Err
	}
}

// Release gives permits back.
func Release(permits int64) Change { return change(op.Op{Name: op.Release, Permits: permits}) }

// SetRate sets that rate.
func SetRate(cfg rratelimiter.Config, opts ...rratelimiter.RateOption) Change {
	return func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return l.SetRate(ctx, cfg, opts...)
	}
}

// UpdateRate sets that rate in place of the one that there is.
func UpdateRate(cfg rratelimiter.Config, opts ...rratelimiter.RateOption) Change {
	return func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		return Second(l.UpdateRate(ctx, cfg, opts...))
	}
}

// Delete is the Change that deletes a limiter.
func Delete(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
	return Second(l.Delete(ctx))
}

// Reset is the Change after which all permits are free.
func Reset(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
	return l.Reset(ctx)
}

// Migrate is the Change after which all members have the newest layout.
func Migrate(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
	return Second(l.Migrate(ctx))
}

// Expire lets a limiter live no longer than that.
func Expire(in time.Duration) Change { return change(op.Op{Name: op.Expire, In: in}) }

// Rename is the Change that gives a limiter another name, by Besides.
func Rename(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
	return l.Rename(ctx, Besides(l.Name()))
}

// ReplaceBy renames a limiter of that rate to the name of the one it changes.
func ReplaceBy(cfg rratelimiter.Config) Change {
	return func(ctx context.Context, c *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		other := c.RateLimiter(Besides(l.Name()))
		if _, err := other.TrySetRate(ctx, cfg); err != nil {
			return err
		}
		return other.Rename(ctx, l.Name())
	}
}

// MakeAnew deletes a limiter and gives it that rate.
func MakeAnew(cfg rratelimiter.Config) Change {
	return func(ctx context.Context, _ *rratelimiter.Client, l *rratelimiter.RateLimiter) error {
		if _, err := l.Delete(ctx); err != nil {
			return err
		}
		return Second(l.TrySetRate(ctx, cfg))
	}
}

// PileUp adds members of one permit, a number of each age, and sets the value unless it is below 0.
func PileUp(t testing.TB, rdb redistest.Client, l *rratelimiter.RateLimiter, members map[time.Duration]int, value int64) {
	t.Helper()
	for age, count := range members {
		AddGrants(t, rdb, KeysOf(l).Permits, age, count, 1)
	}
	if value >= 0 {
		require.NoError(t, rdb.Set(t.Context(), KeysOf(l).Value, value, 0).Err())
	}
}

// Damage runs commands, parted by semicolons, on what Redis holds of a limiter. config, value
// and permits stand for its keys, and now for the server's time.
func Damage(t testing.TB, rdb redistest.Client, l *rratelimiter.RateLimiter, commands string) {
	t.Helper()
	k := KeysOf(l)
	words := map[string]string{"config": k.Config, "value": k.Value, "permits": k.Permits, "now": fmt.Sprint(ServerNow(t, rdb))}
	for command := range strings.SplitSeq(commands, ";") {
		var args []any
		for word := range strings.FieldsSeq(command) {
			if meaning, ok := words[word]; ok {
				word = meaning
			}
			args = append(args, word)
		}
		require.NoError(t, rdb.Do(t.Context(), args...).Err(), command)
	}
}
