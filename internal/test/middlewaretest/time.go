package middlewaretest

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// uncomparable is a limiter that can't be the key of a map.
type uncomparable struct {
	*Fake

	_ []int
}

// The request chooses its limiter. If it chooses none, the middleware's decides: no one goes without a limit.
func (k Kind[O, K]) testPlan(t *testing.T) {
	standard, paid, team := Budget(1, time.Hour), Budget(3, time.Hour), Budget(2, time.Hour)
	var none *Fake
	limiters := map[string]limit.Limiter{"paid": paid, "team": uncomparable{Fake: team}, "none": none}
	r := k.rig(t, k.planned(standard, func(user string) limit.Limiter { return limiters[user] }), k.WithKey(k.Text("all", nil)))
	for _, c := range []struct {
		user string
		of   *Fake
		want Verdict
	}{
		{"paid", paid, Passed},
		{"none", standard, Passed},
		{"", standard, Refused},
		{"unknown", standard, Refused},
		{"team", team, Passed},
		{"paid", paid, Passed},
		{"team", team, Passed},
		{"team", team, Refused},
		{"paid", paid, Passed},
		{"paid", paid, Refused},
		{"none", standard, Refused},
	} {
		before := len(c.of.Asked())
		assert.Equal(t, c.want, r.handle(t.Context(), c.user).Verdict, c.user)
		asked := c.of.Asked()
		require.Len(t, asked, before+1, c.user)
		assert.Equal(t, Call{k.Prefix + "all", 1}, asked[before])
	}
	r.errs.Check(t)
	assert.Len(t, r.outcomes(k.Name, "default", false), 11)

	require.NoError(t, k.Check(k.planned(standard, func(string) limit.Limiter { return nil })))
	require.ErrorIs(t, k.Check(k.planned(nil, func(string) limit.Limiter { return paid })), limit.ErrInvalidConfig)
}

// Each limiter of a plan has its own breaker, and the options of all.
func (k Kind[O, K]) testPlanInOutage(t *testing.T) {
	down, works := Says(limit.Decision{}, errDown), Grants()
	plan := func(user string) limit.Limiter {
		if user == "paid" {
			return Windowed{down, time.Hour}
		}
		return nil
	}
	r := k.rig(t, k.planned(works, plan), k.WithFailure(limit.FailOpen()))
	for range 20 {
		assert.Equal(t, Passed, r.handle(t.Context(), "paid").Verdict)
		assert.Equal(t, Passed, r.handle(t.Context(), "").Verdict)
	}
	assert.Less(t, len(down.Asked()), 10)
	assert.Len(t, works.Asked(), 20)
	r.errs.Take()

	// A limiter of a plan that lacks what an option needs is a mistake.
	r = k.rig(t, k.planned(Windowed{works, time.Hour}, func(user string) limit.Limiter {
		if user == "paid" {
			return down
		}
		return nil
	}), k.WithFailure(limit.FailLocal(1)))
	assert.Equal(t, Misconfigured, r.handle(t.Context(), "paid").Verdict)
	r.errs.Check(t, limit.ErrInvalidConfig)
	r.ask(Passed)
}

// However many limiters requests choose, each decides.
func (k Kind[O, K]) testPlansWithoutEnd(t *testing.T) {
	asked := 0
	r := k.rig(t, k.planned(Grants(), func(string) limit.Limiter {
		return &Fake{Answer: func(context.Context, int64) (limit.Decision, error) {
			asked++
			return limit.Decision{Limit: 1, RetryAfter: time.Second}, nil
		}}
	}))
	for range 2500 {
		assert.Equal(t, Refused, r.handle(t.Context(), "").Verdict)
	}
	assert.Equal(t, 2500, asked)
}

// What a request has cost is settled with the limiter that it chose.
func (k Kind[O, K]) testSettleByPlan(t *testing.T) {
	standard, paid := &Reserver{Fake: Grants()}, &Reserver{Fake: Grants()}
	r := k.rig(t, k.Policy(Policy{Limiter: standard, Settle: true, Plan: func(user string) limit.Limiter {
		return map[string]limit.Limiter{"paid": paid, "can't": Grants()}[user]
	}}))
	for user, want := range map[string]error{"paid": nil, "": nil, "can't": limit.ErrUnsupported} {
		r.handle(Handled(t.Context(), func(ctx context.Context) {
			require.ErrorIs(t, k.Settle(ctx, int64(len(user))), want)
		}), user)
	}
	assert.Equal(t, []int64{4}, paid.Settled)
	assert.Equal(t, []int64{0}, standard.Settled)
}

// A request waits as long as its context allows, and fails at once if that is known not to suffice. One that waits is one
// decision.
func (k Kind[O, K]) testWaits(t *testing.T) {
	const second = time.Second
	for name, c := range map[string]struct {
		says limit.Decision // until three seconds are over
		err  error
		in   time.Duration // the request's deadline; below 0, when its caller goes
		opts []O
		took time.Duration
		want Verdict
	}{
		"for ever":        {says: limit.Decision{Limit: 1, RetryAfter: second}, took: 3 * second, want: Passed},
		"names no time":   {says: limit.Decision{Limit: 1}, took: 3 * second, want: Passed},
		"long enough":     {says: limit.Decision{Limit: 1, RetryAfter: second}, in: 5 * second, took: 3 * second, want: Passed},
		"too short":       {says: limit.Decision{Limit: 1, RetryAfter: second}, in: 2500 * time.Millisecond, took: 2 * second, want: Refused},
		"the caller goes": {says: limit.Decision{Limit: 1, RetryAfter: second}, in: -1500 * time.Millisecond, took: 1500 * time.Millisecond, want: Gone},
		"never":           {says: limit.Decision{Limit: 1, RetryAfter: math.MaxInt64}, want: Refused},
		"a limit of 0":    {says: limit.Decision{RetryAfter: time.Minute}, want: Refused},
		"too costly":      {err: limit.ErrPermitsExceedRate, want: Refused},
		"in shadow":       {says: limit.Decision{Limit: 1, RetryAfter: second}, opts: []O{k.WithShadow()}, want: Passed},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			limiter := &Fake{Answer: func(context.Context, int64) (limit.Decision, error) {
				if time.Since(start) >= 3*second {
					return limit.Decision{Granted: true, Limit: 1}, nil
				}
				return c.says, c.err
			}}
			r := k.rig(t, limiter, append(c.opts, k.WithWait())...)
			ctx, cancel := Ending(t.Context(), c.in)
			defer cancel()
			got := r.handle(ctx, "")
			assert.Equal(t, c.want, got.Verdict, name)
			assert.Equal(t, c.took, time.Since(start), name)
			if c.want == Refused {
				assert.Equal(t, name == "too short", got.RetryAfter == second, name)
			}
			if name == "names no time" {
				assert.Len(t, limiter.Asked(), 31, "it is asked a few times a second")
			}
			decisions := r.told.Decisions()
			require.Len(t, decisions, 1, name)
			if c.want == Passed {
				assert.Equal(t, map[bool]limit.Outcome{true: limit.Refused, false: limit.Granted}[name == "in shadow"], decisions[0].Outcome)
				assert.Equal(t, c.took, decisions[0].Waited)
			}
		})
	}
}

// A KeyedLimiter waits by itself: in order, and woken by a release. A request whose deadline comes too early ends at once,
// with what a refusal says.
func (k Kind[O, K]) testWaitsInOrder(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		keyed := limitertest.NewClient(t, rdb).Keyed("", rratelimiter.PerMinute(1))
		policy := k.planned(Grants(), func(string) limit.Limiter { return keyed }) // also if the request has chosen it
		handle := k.Wrap(t, policy, k.WithWait(), k.WithKey(k.Text("a", nil)))
		require.NoError(t, keyed.Acquire(t.Context(), k.Prefix+"a", 1))
		order := make(chan int, 3)
		for i := range 3 {
			go func() {
				assert.Equal(t, Passed, handle(t.Context(), "").Verdict)
				order <- i
			}()
			time.Sleep(time.Second)
		}
		start := time.Now()
		require.NoError(t, keyed.Release(t.Context(), k.Prefix+"a", 1))
		assert.Equal(t, 0, <-order)
		assert.Zero(t, time.Since(start), "at once")
		assert.Equal(t, 1, <-order)
		assert.Equal(t, 2, <-order)
		assert.Equal(t, 2*time.Minute, time.Since(start).Round(time.Second))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		assert.Equal(t, time.Minute, handle(ctx, "").RetryAfter.Round(time.Second))
		assert.Zero(t, time.Since(start), "it is known")
	})
}

// A policy in shadow shows in no figures, and counts as refused what the others let pass. One that fails lets requests
// pass, and the error handler learns of it. Requests that wait do not wait for one.
func (k Kind[O, K]) testShadowPolicy(t *testing.T) {
	for name, c := range map[string]struct {
		says    *Fake
		outcome limit.Outcome
	}{
		"down":       {Says(limit.Decision{}, errDown), limit.Failed},
		"refuses":    {Says(limit.Decision{Limit: 1, RetryAfter: time.Minute}, nil), limit.Refused},
		"never":      {Says(limit.Decision{}, nil), limit.Refused},
		"too costly": {Says(limit.Decision{Limit: 1}, limit.ErrPermitsExceedRate), limit.TooCostly},
	} {
		synctest.Test(t, func(t *testing.T) {
			opts := []O{k.WithPolicy(Policy{Name: "watches", Limiter: c.says, Shadow: true})}
			if k.WithWait != nil {
				opts = append(opts, k.WithWait())
			}
			r := k.rig(t, Budget(1, math.MaxInt64), opts...)
			var heard []error
			if name == "down" {
				heard = []error{errDown}
			}
			start := time.Now()
			assert.Equal(t, k.figures(1, 0), r.ask(Passed, heard...).Figures, name)
			assert.Zero(t, time.Since(start), name)
			assert.Equal(t, k.figures(1, 0), r.handle(t.Context(), "").Figures, name)
			var shadows []limit.Outcome
			for _, d := range r.told.Decisions() {
				if d.Limiter == "watches" {
					assert.True(t, d.Shadow)
					shadows = append(shadows, d.Outcome)
				}
			}
			assert.Equal(t, []limit.Outcome{c.outcome}, shadows, "%s: only of a request that the other let pass", name)
		})
	}
}

// A bucket has a second key, with "_time" behind the first: no user name leads to the
// keys of another user.
func (k Kind[O, K]) testBuckets(t *testing.T) {
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		bucket := tokenbucket.New(limitertest.OpenClient(rdb), tokenbucket.Config{Capacity: 1, Refill: 1, Interval: time.Hour})
		users := []string{"ann", "ann_time", "ann_time_time", "ann_time%", "time", "_time", ""}
		for name, c := range map[string]struct {
			limiter limit.Limiter
			opts    []O
		}{
			"plain:":    {bucket, nil},
			"embedded:": {struct{ *tokenbucket.Limiter }{bucket}, nil},
			"tagged:":   {bucket, []O{k.WithHashTag()}},
			"fallback:": {Says(limit.Decision{}, errDown), []O{k.WithFallback(bucket)}},
		} {
			r := k.rig(t, c.limiter, append(c.opts, k.WithPrefix(name), k.WithKey(k.User))...)
			for i := range 3 {
				for _, user := range users {
					want := Refused
					if i == 0 {
						want = Passed
					}
					assert.Equal(t, want, r.handle(t.Context(), user).Verdict, "%s %q", name, user)
				}
			}
			assert.Len(t, rdb.Keys(t.Context(), name+"*").Val(), 2*len(users))
		}
		keys := []string{
			"plain:ann", "plain:ann_time", "plain:ann_time%", "plain:ann_time%_time", "fallback:ann_time%", "embedded:ann_time%",
			"tagged:{ann}", "tagged:{ann}_time", "tagged:{ann_time}", "tagged:{ann_time}_time", "tagged:{%}", "tagged:{%}_time",
		}
		assert.EqualValues(t, len(keys), rdb.Exists(t.Context(), keys...).Val())
	})
}
