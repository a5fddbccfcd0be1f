package outage_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestShare(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		rule  local.Rule
		share float64
		want  local.Rule
	}{
		{local.Rule{Permits: 10, Window: time.Second}, 1, local.Rule{Permits: 10, Window: time.Second}},
		{local.Rule{Permits: 10, Window: time.Second}, 0.25, local.Rule{Permits: 2, Window: time.Second}},
		{local.Rule{Permits: 3, Window: time.Second}, 1.0 / 3, local.Rule{Permits: 1, Window: time.Second}},
		{local.Rule{Permits: 1, Window: time.Second}, 0.25, local.Rule{Permits: 1, Window: 4 * time.Second}},
		{local.Rule{Permits: 1, Window: 1000 * time.Hour}, 1e-12, local.Rule{Permits: 1, Window: 1<<62 - 1}},
		{local.Rule{Permits: 1<<53 - 1, Window: time.Second}, 1, local.Rule{Permits: 1<<53 - 1, Window: time.Second}},
	} {
		got := outage.Share(test.rule, test.share)
		assert.Equal(t, test.want.Window.Round(time.Microsecond), got.Window.Round(time.Microsecond), "%v of %v", test.share, test.rule)
		assert.Equal(t, test.want.Permits, got.Permits, "%v of %v", test.share, test.rule)
	}
}

func TestPolicy_ReleasesWhatItAllowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, a := outage.Policy{Guard: outage.NewGuard()}, decide.Limiter{Name: "a", Releases: true, Rule: local.Rule{Window: time.Minute}}
		assert.Zero(t, p.Released("a", 1))
		p.Allow(a, 3)
		time.Sleep(30 * time.Second)
		p.Allow(a, 2)
		assert.Equal(t, int64(1), p.Released("a", 1))
		assert.Zero(t, p.Released("b", 1))
		time.Sleep(30 * time.Second)
		assert.Equal(t, int64(1), p.Released("a", 10), "three have run out")
		assert.Zero(t, p.Released("a", 1))
		p.Allow(a, 1)
		time.Sleep(time.Minute)
		assert.Zero(t, p.Released("a", 1))
	})
}

var errDown = errors.New("down")

func TestBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b outage.Breaker
		answers, probes := false, 0
		told := &limitertest.Recorder{}
		p := &outage.Policy{Outer: outage.Watcher{Observer: observe.New(told, nil), Limiter: "orders"}}
		allows := func() bool { return b.Allows(func() bool { probes++; return answers }, p) }
		fails := func() bool { return !b.Failed(time.Now(), errDown, p) }
		for range 5 { // two in a row, each time
			assert.True(t, fails())
			assert.True(t, fails())
			b.Decided()
		}
		assert.True(t, allows())
		for range 3 {
			assert.True(t, fails())
		}
		assert.False(t, fails(), "that is known")
		for range 100 {
			assert.False(t, allows())
		}
		assert.Zero(t, probes, "the last call is not long ago")
		for range 1000 {
			time.Sleep(10 * time.Millisecond)
			assert.False(t, allows())
		}
		assert.InDelta(t, 12, probes, 2)
		b.Decided()
		assert.False(t, allows(), "that was an old call")
		answers = true
		time.Sleep(time.Second)
		assert.True(t, allows())
		synctest.Wait()
		assert.Equal(t, []limit.Event{
			{Kind: limit.AskedNoMore, Limiter: "orders", Err: errDown}, {Kind: limit.AskedAgain, Limiter: "orders"},
		}, told.Events(), "each once")
	})
}
