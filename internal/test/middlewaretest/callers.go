package middlewaretest

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

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

func (k Kind[O, K]) testManyCallers(t *testing.T) {
	rdb, _ := redistest.Mini(t)
	r := k.rig(t, slidinglog.New(limitertest.OpenClient(rdb), slidinglog.Config{Limit: 50, Window: time.Hour}), k.WithTimeout(time.Minute))
	var callers sync.WaitGroup
	var mu sync.Mutex
	verdicts := map[Verdict]int{}
	for range 20 {
		callers.Go(func() {
			for range 10 {
				got := r.handle(t.Context(), "")
				mu.Lock()
				verdicts[got.Verdict]++
				mu.Unlock()
			}
		})
	}
	callers.Wait()
	assert.Equal(t, map[Verdict]int{Passed: 50, Refused: 150}, verdicts)
}

func (k Kind[O, K]) testRedisDown(t *testing.T) {
	for _, says := range []string{"LOADING the data set", "MISCONF no disk"} {
		synctest.Test(t, func(t *testing.T) {
			rdb, m := redistest.Mini(t)
			limiter := fixedwindow.New(limitertest.OpenClient(rdb), fixedwindow.Config{Limit: 10, Window: time.Hour})
			closed, local := k.rig(t, limiter), k.rig(t, limiter, k.WithFallback(Budget(1, time.Second)))
			closed.ask(Passed)
			m.SetError(says)
			start := time.Now()
			closed.ask(Unavailable, limit.ErrUnavailable)
			local.ask(Passed, limit.ErrUnavailable)
			assert.Equal(t, time.Second, local.ask(Refused, limit.ErrUnavailable).RetryAfter)
			assert.LessOrEqual(t, time.Since(start), 3*time.Second)
			m.SetError("")
			time.Sleep(time.Minute) // a call that was under way is given back
			assert.Equal(t, k.figures(10, 8), local.ask(Passed).Figures)
		})
	}
}

func (k Kind[O, K]) testRedisHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, m := redistest.Mini(t)
		proxy := redistest.MiniProxy(t, m)
		proxy.OnCommand(redistest.Nth(1, "evalsha", redistest.Swallow))
		r := k.rig(t, slidinglog.New(limitertest.OpenClient(proxy.Client(t, nil)), slidinglog.Config{Limit: 1, Window: time.Minute}))
		start := time.Now()
		r.ask(Unavailable, limit.ErrUnavailable)
		assert.Equal(t, time.Second, time.Since(start))
		time.Sleep(time.Minute) // for the limiter to give up as well
	})
}
