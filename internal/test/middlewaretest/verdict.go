package middlewaretest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
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
)

// asking is one request, by what its limiter says, and what comes of it.
type asking[O any] struct {
	says limit.Decision
	err  error
	opts []O

	settles, inFlight bool          // the policy; with either the limiter is a Reserver
	cannot, fails     error         // what that says instead of reserving, and of settling
	fallback          limit.Limiter // nil: none

	want    Verdict
	wait    time.Duration // of a refusal
	figures []int64
	heard   []error       // by the error handler, in one
	shadow  []error       // what it hears in shadow besides
	cost    int64         // what the limiter is asked for; 0: 1, none: it is not asked
	outcome limit.Outcome // "": that of the verdict
	settle  error         // of Settle; nil: the first time
	settled []int64       // of the limiter, or of a fallback that is a Reserver
}

// none is the cost of a request of which the limiter is not asked.
const none = -1

// askings are all ways in which one limiter can answer or fail, and functions of the program.
func (k Kind[O, K]) askings() map[string]asking[O] {
	const most = (math.MaxInt32 + 1) * time.Millisecond
	down, invalid, costly := errDown, limit.ErrInvalidConfig, limit.ErrPermitsExceedRate
	perhaps := errors.Join(limit.ErrUnknownOutcome, limit.ErrUnavailable)
	granted, five := limit.Decision{Granted: true, Limit: 10, Remaining: 9}, limit.Decision{Granted: true, Limit: 5, Remaining: 4}
	refused := limit.Decision{Limit: 5, RetryAfter: time.Second}
	open, closed := []O{k.WithFailure(limit.FailOpen())}, []O{k.WithFailure(limit.FailClosed())}
	cost := func(n int64, err error) []O { return []O{k.WithCost(n, err), open[0], k.WithFallback(Grants())} }
	keys := func(err error) []O { return []O{k.WithKey(k.User, k.Text("", err)), open[0]} }
	return map[string]asking[O]{
		"granted":       {says: granted, want: Passed, figures: k.figures(10, 9)},
		"used up":       {says: limit.Decision{Granted: true, Limit: 10}, want: Passed, figures: k.figures(10, 0)},
		"lets all pass": {says: limit.Decision{Granted: true}, want: Passed},
		"refused": {
			says: limit.Decision{Limit: 10, Remaining: 2, RetryAfter: 2100 * time.Millisecond, ResetAfter: time.Minute},
			want: Refused, wait: 2100 * time.Millisecond, figures: k.figures(10, 2),
		},
		"names no time": {says: limit.Decision{Limit: 10}, want: Refused, wait: 100 * time.Millisecond, figures: k.figures(10, 0)},
		"for a moment":  {says: limit.Decision{Limit: 1, RetryAfter: 1}, want: Refused, wait: 1, figures: k.figures(1, 0)},
		"for long":      {says: limit.Decision{Limit: 1, RetryAfter: most}, want: Refused, wait: most, figures: k.figures(1, 0)},
		"never":         {says: limit.Decision{Limit: 1, RetryAfter: math.MaxInt64, ResetAfter: math.MaxInt64}, want: Refused, figures: k.figures(1, 0)},
		"a limit of 0":  {says: limit.Decision{RetryAfter: time.Minute}, want: Refused, figures: k.zeros()}, // of a sliding log
		"too costly":    {says: limit.Decision{Limit: 7}, err: costly, want: Refused, outcome: limit.TooCostly},
		"too many":      {err: limit.ErrInvalidPermits, want: Refused, outcome: limit.TooCostly},

		"seven":        {says: granted, opts: []O{k.WithCost(7, nil)}, want: Passed, cost: 7, figures: k.figures(10, 9)},
		"free":         {opts: []O{k.WithCost(0, nil)}, want: Passed, cost: none},
		"skipped":      {opts: []O{k.WithSkip(true), k.WithCost(7, down)}, want: Passed, cost: none},
		"none skipped": {says: granted, opts: []O{k.WithSkip(false)}, want: Passed, figures: k.figures(10, 9)},
		// That is the caller's mistake, whatever answers for a limiter: the error handler learns of it only in shadow.
		"no cost": {opts: cost(7, down), want: Rejected, shadow: []error{down}, cost: none},
		// The function is wrong.
		"invalid cost": {opts: cost(7, invalid), want: Misconfigured, heard: []error{invalid}, cost: none},
		// A client that can make a key function fail does not go free.
		"no key": {opts: keys(down), want: Unavailable, heard: []error{down}, cost: none},

		// What a limiter says beside an error counts for nothing.
		"by default":    {says: granted, err: down, want: Unavailable, heard: []error{down}},
		"closed":        {says: granted, err: down, opts: closed, want: Unavailable, heard: []error{down}},
		"open":          {says: granted, err: down, opts: open, want: Passed, heard: []error{down}},
		"perhaps taken": {err: perhaps, opts: open, want: Passed, heard: []error{limit.ErrUnknownOutcome}},
		"fallback":      {err: down, fallback: Says(five, nil), want: Passed, figures: k.figures(5, 4), heard: []error{down}},
		"fallback refuses": {
			err: down, fallback: Says(refused, nil), want: Refused, wait: time.Second, figures: k.figures(5, 0), heard: []error{down},
		},
		"fallback fails":        {err: down, fallback: Says(five, errDownToo), want: Unavailable, heard: []error{down, errDownToo}},
		"too costly for it":     {err: down, fallback: Says(refused, costly), want: Refused, heard: []error{down}, outcome: limit.TooCostly},
		"fallback is invalid":   {err: down, fallback: Says(five, invalid), want: Misconfigured, heard: []error{down, invalid}},
		"invalid":               {err: invalid, opts: closed, want: Misconfigured, heard: []error{invalid}},
		"invalid, open":         {err: invalid, opts: open, want: Misconfigured, heard: []error{invalid}},
		"invalid, and fallback": {err: invalid, fallback: Says(five, nil), want: Misconfigured, heard: []error{invalid}},
		"corrupt":               {err: limit.ErrCorrupt, opts: open, want: Unavailable, heard: []error{limit.ErrCorrupt}},
		"closed Client":         {err: limit.ErrClosed, opts: open, want: Unavailable, heard: []error{limit.ErrClosed}},
	}
}

// zeros are the figures of a limit of 0, which gRPC does not show.
func (k Kind[O, K]) zeros() []int64 {
	if k.Exact < time.Second {
		return nil
	}
	return k.figures(0, 0)
}

// reserving are those of limiters whose grants are reservations: settled by the handler, or given back at the request's end, once.
func (k Kind[O, K]) reserving() map[string]asking[O] {
	granted, refused := limit.Decision{Granted: true, Limit: 10, Remaining: 9}, limit.Decision{Limit: 5, RetryAfter: time.Hour}
	open, ten, cannot := []O{k.WithFailure(limit.FailOpen())}, k.figures(10, 9), limit.ErrUnsupported
	reserver := func() limit.Limiter { return &Reserver{Fake: Grants()} }
	down, lost := []error{errDown}, limit.ErrUnavailable
	return map[string]asking[O]{
		"settled":               {says: granted, settles: true, want: Passed, figures: ten, settled: []int64{3}},
		"settled, can't now":    {says: granted, settles: true, cannot: cannot, want: Passed, figures: ten, settle: cannot},
		"settled, fails":        {says: granted, settles: true, fails: limit.ErrUnavailable, want: Passed, figures: ten, settle: limit.ErrUnavailable},
		"settled, skipped":      {settles: true, opts: []O{k.WithSkip(true)}, want: Passed, cost: none},
		"settled, free":         {settles: true, opts: []O{k.WithCost(0, nil)}, want: Passed, cost: none},
		"settled, refused":      {says: refused, settles: true, want: Refused, wait: time.Hour, figures: k.figures(5, 0)},
		"settled, no key":       {settles: true, opts: []O{k.WithKey(k.Text("", errDown))}, want: Unavailable, heard: down, cost: none},
		"settled, open":         {err: errDown, settles: true, opts: open, want: Passed, heard: down},
		"settled, fallback":     {err: errDown, settles: true, fallback: Grants(), want: Passed, figures: ten, heard: down},
		"settled, fallback too": {err: errDown, settles: true, fallback: reserver(), want: Passed, figures: ten, heard: down, settled: []int64{3}},
		"in flight":             {says: granted, inFlight: true, want: Passed, figures: ten, settled: []int64{0}},
		"in flight, refused":    {says: refused, inFlight: true, want: Refused, wait: time.Second, figures: k.figures(5, 0)}, // a request may end soon
		"in flight, too costly": { // that is no estimate, which would be lowered
			says: refused, err: limit.ErrPermitsExceedRate, opts: []O{k.WithCost(6, nil)}, cost: 6, inFlight: true, want: Refused, outcome: limit.TooCostly,
		},
		"in flight, skipped":      {inFlight: true, opts: []O{k.WithSkip(true)}, want: Passed, cost: none},
		"in flight, free":         {inFlight: true, opts: []O{k.WithCost(0, nil)}, want: Passed, cost: none},
		"in flight, open":         {err: errDown, inFlight: true, opts: open, want: Passed, heard: down},
		"in flight, fallback":     {err: errDown, inFlight: true, fallback: reserver(), want: Passed, figures: ten, heard: down, settled: []int64{0}},
		"in flight, gives back":   {err: errDown, inFlight: true, fallback: &Returner{Fake: Grants()}, want: Passed, figures: ten, heard: down},
		"in flight, can't now":    {says: granted, inFlight: true, cannot: cannot, want: Passed, figures: ten},
		"in flight, fails at end": {says: granted, inFlight: true, fails: lost, want: Passed, figures: ten, heard: []error{lost}},
	}
}

func (k Kind[O, K]) testVerdicts(t *testing.T) {
	for _, shadow := range []string{"", "WithShadow", "Policy.Shadow"} { // what is in shadow: nothing, all limits, or the policy
		all := k.askings()
		if k.Settle != nil {
			maps.Copy(all, k.reserving())
		}
		for name, c := range all {
			t.Run(name+" "+shadow, func(t *testing.T) { k.makeAsking(t, c, shadow) })
		}
	}
	if k.Settle == nil {
		return
	}
	for _, inFlight := range []bool{true, false} {
		panics := &Reserver{Fake: Grants()}
		ctx := Handled(t.Context(), func(context.Context) { panic("oops") })
		policy := k.Policy(Policy{Limiter: panics, InFlight: inFlight, Settle: !inFlight})
		assert.PanicsWithValue(t, "oops", func() { k.rig(t, policy).handle(ctx, "") })
		assert.Equal(t, map[bool][]int64{true: {0}, false: nil}[inFlight], panics.Settled, "an estimate stays")
	}
	require.ErrorIs(t, k.Settle(t.Context(), 1), limit.ErrInvalidConfig)
}

// makeAsking makes a request. In shadow it passes, without waiting, and no caller learns of a limit.
func (k Kind[O, K]) makeAsking(t *testing.T, c asking[O], shadow string) {
	t.Helper()
	limiter := &Reserver{Fake: Says(c.says, c.err), Cannot: c.cannot, Fails: c.fails}
	policy := Policy{Limiter: limiter.Fake, Settle: c.settles, InFlight: c.inFlight, Shadow: shadow == "Policy.Shadow"}
	if c.settles || c.inFlight {
		policy.Limiter = limiter
	}
	if c.fallback != nil {
		c.opts = append(c.opts, k.WithFallback(c.fallback))
	}
	want := c.want
	if shadow == "WithShadow" {
		c.opts, c.heard = append(c.opts, k.WithShadow()), append(c.heard, c.shadow...)
	} else if policy.Shadow && k.WithWait != nil {
		c.opts = append(c.opts, k.WithWait())
	}
	if shadow == "WithShadow" || policy.Shadow && c.cost != none { // a policy in shadow can't undo that a function fails
		c.want, c.wait, c.figures = Passed, 0, nil
	}
	r := k.rig(t, k.Policy(policy), c.opts...)
	got := r.handle(Handled(t.Context(), func(ctx context.Context) { k.settleAsking(ctx, t, c, limiter) }), "")
	assert.NotContains(t, got.Text, "secret")
	assert.Equal(t, Answer{c.want, (c.wait + k.Exact - 1).Truncate(k.Exact), c.figures, got.Text}, got)
	r.errs.Check(t, c.heard...)
	k.checkAsked(t, c, limiter, r.told.Decisions(), shadow != "", want)
	settled := limiter.Settled
	switch of := c.fallback.(type) {
	case *Reserver:
		settled = of.Settled
	case *Returner:
		assert.Len(t, of.GivenBack(), 1, "at the end")
	}
	assert.Equal(t, c.settled, settled)
}

// checkAsked checks what the limiter was asked and what the observer received of a request that got this verdict, or would have.
func (k Kind[O, K]) checkAsked(t *testing.T, c asking[O], limiter *Reserver, decisions []limit.Decided, shadow bool, verdict Verdict) {
	t.Helper()
	cost, key := cmp.Or(c.cost, 1), k.Prefix+k.Parts
	if cost == none {
		assert.Empty(t, limiter.Asked())
		assert.Empty(t, decisions)
		return
	}
	if c.cannot == nil { // otherwise it is asked once more
		assert.Equal(t, []Call{{key, cost}}, limiter.Asked())
	}
	require.Len(t, decisions, 1)
	outcome := map[Verdict]limit.Outcome{Passed: limit.Granted, Refused: limit.Refused, Unavailable: limit.Failed, Misconfigured: limit.Failed}[verdict]
	d := decisions[0]
	assert.Equal(t, []any{k.Name, "default", shadow, cost, cmp.Or(c.outcome, outcome)}, []any{d.Call, d.Limiter, d.Shadow, d.Permits, d.Outcome})
	if c.err == nil && c.cannot == nil {
		assert.Equal(t, limit.FromLimiter, d.Source)
	}
	if c.err != nil && c.outcome != limit.TooCostly {
		c.says = limit.Decision{} // counts for nothing
	}
	if c.fallback == nil {
		assert.Equal(t, []any{key, c.says.Limit, c.says.Remaining}, []any{d.Key, d.Limit, d.Remaining})
	}
}

// settleAsking settles a request as its handler.
func (k Kind[O, K]) settleAsking(ctx context.Context, t *testing.T, c asking[O], limiter *Reserver) {
	t.Helper()
	if k.Settle == nil {
		return
	}
	if !c.settles {
		require.ErrorIs(t, k.Settle(ctx, 3), limit.ErrInvalidConfig, "it is no estimate")
		assert.Empty(t, limiter.Settled)
		return
	}
	require.Error(t, k.Settle(ctx, -1))
	require.ErrorIs(t, k.Settle(ctx, 3), c.settle)
	require.ErrorIs(t, k.Settle(ctx, 3), cmp.Or(c.settle, limit.ErrSettled))
}

// One that leaves while the program's functions are asked gets no answer, and no one is to blame.
func (k Kind[O, K]) testGone(t *testing.T) {
	for _, opt := range []O{k.WithCost(0, context.Canceled), k.WithKey(k.Text("", context.Canceled))} {
		limiter := Grants()
		r := k.rig(t, limiter, opt)
		assert.Equal(t, Gone, r.handle(limitertest.EndedContext(t), "").Verdict)
		r.errs.Check(t)
		assert.Empty(t, limiter.Asked())
	}
}

// A program learns at its start that a limiter can't be settled, or its grants can't come back. Requests are limited nevertheless.
func (k Kind[O, K]) testSettleIsChecked(t *testing.T) {
	window := fixedwindow.New(rratelimiter.New(nil), fixedwindow.Config{Limit: 1, Window: time.Hour})
	reserver := &Reserver{Fake: Grants()}
	for _, limiter := range []limit.Limiter{Grants(), &Returner{Fake: Grants()}} {
		require.NoError(t, k.Check(limiter))
		err := k.Check(k.settled(limiter))
		require.ErrorIs(t, err, limit.ErrUnsupported)
		require.ErrorContains(t, err, `"default" can't be settled`)
		r := k.rig(t, k.settled(limiter))
		r.handle(Handled(t.Context(), func(ctx context.Context) { require.ErrorIs(t, k.Settle(ctx, 3), limit.ErrUnsupported) }), "")
	}
	for _, p := range []Policy{{Limiter: reserver, Settle: true}, {Limiter: reserver, InFlight: true}} {
		require.NoError(t, k.Check(k.Policy(p), k.WithFallback(Grants())))
	}
	const cannot = `"default" can't have Hold or InFlight`
	for _, c := range []struct {
		policy Policy
		want   error
		text   string
	}{
		{Policy{Limiter: Grants(), InFlight: true}, limit.ErrUnsupported, "can't be settled"},
		{Policy{Limiter: window, InFlight: true}, limit.ErrUnsupported, cannot},
		{Policy{Limiter: window, Settle: true, Hold: time.Minute}, limit.ErrUnsupported, cannot},
		{Policy{Limiter: reserver, Settle: true, Hold: time.Minute}, limit.ErrUnsupported, cannot},
		{Policy{Limiter: reserver, InFlight: true, Settle: true}, limit.ErrInvalidConfig, "InFlight is for policies without"},
		{Policy{Limiter: Grants(), Hold: time.Minute}, limit.ErrInvalidConfig, "a Hold is for policies with"},
		{Policy{Limiter: Grants(), Settle: true, Hold: -1}, limit.ErrInvalidConfig, "less than 1ms"},
		{Policy{Limiter: Grants(), Settle: true, Hold: time.Microsecond}, limit.ErrInvalidConfig, "less than 1ms"},
	} {
		err := k.Check(k.Policy(c.policy))
		require.ErrorIs(t, err, c.want)
		require.ErrorContains(t, err, c.text)
	}
}

// A request waits as long as its context allows, and fails at once if that is known not to suffice. One that waits is one decision.
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

// A KeyedLimiter waits by itself: in order, and woken by a release. If the deadline comes too early, the request ends at once.
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
