package faults_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// onceCase is what is asked of a limiter of rate 10, with so many permits in use by
// another Client, and what is granted.
type onceCase struct {
	inUse     int64
	wishes    []limitertest.Wish
	want      []int64
	kind      rratelimiter.RateType
	byDefault bool
}

var onceCases = map[string]onceCase{
	"one granted":              {inUse: 2, wishes: try(3), want: []int64{3}},
	"one granted all":          {inUse: 0, wishes: try(10), want: []int64{10}},
	"one refused":              {inUse: 9, wishes: try(3), want: []int64{0}},
	"Take granted":             {inUse: 2, wishes: []limitertest.Wish{limitertest.TakeFor(3)}, want: []int64{3}},
	"Take refused":             {inUse: 9, wishes: []limitertest.Wish{limitertest.TakeFor(3)}, want: []int64{0}},
	"all that are free":        {inUse: 2, wishes: []limitertest.Wish{limitertest.UpToFor(20)}, want: []int64{8}},
	"fewer than are free":      {inUse: 2, wishes: []limitertest.Wish{limitertest.UpToFor(3)}, want: []int64{3}},
	"as many as none":          {inUse: 10, wishes: []limitertest.Wish{limitertest.UpToFor(3)}, want: []int64{0}},
	"batch granted":            {inUse: 0, wishes: try(1, 1, 2, 3), want: []int64{1, 1, 2, 3}},
	"batch granted, all used":  {inUse: 3, wishes: try(1, 1, 2, 3), want: []int64{1, 1, 2, 3}},
	"batch granted in part":    {inUse: 4, wishes: try(3, 1, 5, 2), want: []int64{3, 1, 0, 2}},
	"batch granted in part, 1": {inUse: 4, wishes: try(3, 5, 2), want: []int64{3, 0, 2}},
	"batch refused":            {inUse: 9, wishes: try(3, 2), want: []int64{0, 0}},
	"batch with Take": {
		inUse:  4,
		wishes: []limitertest.Wish{limitertest.TryFor(3), limitertest.TakeFor(1), limitertest.TakeFor(5), limitertest.TryFor(2)},
		want:   []int64{3, 1, 0, 2},
	},
	"batch beyond the rate":               {inUse: 4, wishes: try(1, 2, 9), want: []int64{1, 2, 0}},
	"PER_CLIENT, one granted":             {inUse: 2, wishes: try(3), want: []int64{3}, kind: rratelimiter.PerClient},
	"PER_CLIENT, batch granted in part":   {inUse: 4, wishes: try(3, 1, 5, 2), want: []int64{3, 1, 0, 2}, kind: rratelimiter.PerClient},
	"set up by it, one granted":           {wishes: try(3), want: []int64{3}, byDefault: true},
	"set up by it, batch granted in part": {wishes: try(3, 1, 5, 2), want: []int64{3, 1, 5, 0}, byDefault: true},
}

var waitingCases = map[string]onceCase{
	"one that waits": {inUse: 9, wishes: []limitertest.Wish{limitertest.WaitFor(3, limitertest.Outlasts)}, want: []int64{0}},
	"batch with the line": {
		inUse: 4,
		wishes: []limitertest.Wish{
			limitertest.WaitFor(3, time.Minute), limitertest.WaitFor(4, limitertest.Outlasts), limitertest.TryFor(2), limitertest.TakeFor(2),
		},
		want: []int64{3, 0, 2, 0},
	},
}

// Whatever answers are lost and requests late, permits in use are those that callers hold.
func TestAcquireHappensOnce(t *testing.T) {
	t.Parallel()
	underFaults(t, slices.Concat(lossy, tardy), onceCases, waitingCases, func(t *testing.T, c onceCase, what, fault, version string) {
		cfg := rratelimiter.Config{Type: c.kind, Rate: 10, Interval: time.Hour}
		w := limitertest.NewWire(t, redistest.Shared(t), cfg, c.byDefault, rratelimiter.WithRedissonVersion(version))
		if c.inUse > 0 {
			limitertest.MustAcquire(t, w.Other, c.inUse)
		}
		w.On(lua.Acquire, actions(fault, w.Held)...)
		got := w.Ask(t, c.wishes...)
		assert.Equal(t, c.want, got, "%s: granted", what)
		w.CheckHeldSoon(t, c.inUse+limitertest.Sum(got), what)
		w.LetGo()
		w.CheckHeld(t, c.inUse+limitertest.Sum(got), what+", when all had arrived")
	})
}

// allCase is what is asked of a bundle of rate 10.
type allCase struct {
	inUse   three
	permits int64
	timeout time.Duration
	want    int64
}

// All limiters or none have been charged, once.
func TestAllHappensOnce(t *testing.T) {
	t.Parallel()
	cases := map[string]allCase{
		"granted":               {three{2, 0, 0}, 3, 0, 3},
		"granted all":           {three{}, 10, 0, 10},
		"refused by the first":  {three{9, 1, 0}, 3, 0, 0},
		"refused by the second": {three{0, 9, 3}, 3, 0, 0},
		"refused by the last":   {three{1, 2, 9}, 3, 0, 0},
		"refused by all":        {three{9, 9, 9}, 3, 0, 0},
	}
	waiting := map[string]allCase{"waiting": {three{9, 1, 2}, 3, limitertest.Outlasts, 0}}
	faults := append(slices.Concat(lossy, tardy), "double")
	underFaults(t, faults, cases, waiting, func(t *testing.T, c allCase, what, fault, version string) {
		if fault == "double" && version != limitertest.MembersOf["D2"] && version != limitertest.MembersOf["D2 merged"] {
			return // the copy is told that the id is another's, and nobody listens
		}
		w := newBundleInUse(t, c.inUse, version)
		w.On(lua.AcquireAll, actions(fault, w.Held)...)
		got, err := w.tryAll(context.Background(), c.permits, c.timeout)
		assert.NoError(t, err, what)
		assert.Equal(t, c.want, got, what)
		w.LetGo()
		w.checkAll(t, c.inUse.plus(got), what)
	})
}

// goneCase is a batch of requests some of whose callers go away.
type goneCase struct {
	permits []int64 // none for a TryAcquireAll
	goes    []bool
	held    int64
}

// What is given back for callers that went away is given back once, and of each limiter.
func TestGiveBackHappensOnce(t *testing.T) {
	t.Parallel()
	cases := map[string]goneCase{
		"one":                     {[]int64{3}, []bool{true}, 0},
		"half of a batch":         {[]int64{1, 2, 1, 3}, []bool{true, false, false, true}, 3},
		"a third of a batch":      {[]int64{1, 1, 1}, []bool{true, false, false}, 2},
		"a batch":                 {[]int64{1, 2}, []bool{true, true}, 0},
		"a batch granted in part": {[]int64{3, 7, 2, 1}, []bool{true, false, false, true}, 2},
		"those that were refused": {[]int64{3, 7, 2}, []bool{false, true, false}, 5},
		"all":                     {},
	}
	faults := []string{"", "drop", "drop drop drop", "swallow", "hold", "cut", "drop cut", "late", "late drop", "drop late"}
	underFaults(t, faults, cases, nil, func(t *testing.T, c goneCase, what, fault, version string) {
		if c.permits == nil {
			giveBackAll(t, fault, version)
			return
		}
		w := newWireInUse(t, 10, 2, version)
		got := w.CancelledInFlight(t, c.permits, c.goes, actions(fault, w.Held)...)
		assert.Equal(t, c.held, limitertest.Sum(got), what)
		assert.Eventually(t, func() bool {
			return limitertest.InUse(t, w.Redis, w.Keys.Permits) <= 2+c.held
		}, time.Minute, time.Millisecond, what)
		w.LetGo()
		w.CheckHeld(t, 2+c.held, what)
	})
}

func giveBackAll(t *testing.T, fault, version string) {
	t.Helper()
	w := newBundleInUse(t, three{2, 0, 1}, version)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	met := actions(fault, w.Held)
	w.OnScript(func(s *lua.Script, n int) redistest.Action {
		switch {
		case s == lua.AcquireAll && n == 1:
			cancel()
			<-gone
		case s == lua.GiveBack && n <= len(met):
			return met[n-1]
		}
		return redistest.Pass
	})
	_, err := w.tryAll(ctx, 4, 0)
	close(gone)
	assert.ErrorIs(t, err, context.Canceled)
	w.LetGo()
	w.checkAll(t, three{2, 0, 1}, "all")
}
