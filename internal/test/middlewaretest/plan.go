package middlewaretest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/limit"
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
