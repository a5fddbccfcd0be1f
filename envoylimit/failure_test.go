package envoylimit

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// in20ms returns the answer to a call whose caller waits as long as Envoy does by default, and how long it took.
func (s *stage) in20ms(text string) (string, time.Duration) {
	ctx, cancel := context.WithTimeout(s.Context(), 20*time.Millisecond)
	defer cancel()
	start := time.Now()
	r, err := s.ShouldRateLimit(ctx, request("web", text))
	require.NoError(s, ctx.Err())
	return says(r, err), time.Since(start)
}

// delay makes calls to Redis take as long as away says, from the one after so many on.
func (s *stage) delay(prompt int64, away *atomic.Int64) {
	var calls atomic.Int64
	s.rdb.AddHook(redistest.Hook(func(_ context.Context, _ []redis.Cmder, next func() error) error {
		if calls.Add(1) > prompt {
			time.Sleep(time.Duration(away.Load()))
		}
		return next()
	}))
}

// What a domain says of failures reaches Envoy before it gives up, which is after 20 ms by default, from the first call on.
// What Redis grants afterwards goes back, and calls that were given up end those to a Redis that is silent.
func TestFailure_AnswersInTheCallersTime(t *testing.T) {
	t.Parallel()
	const all = "log=ann; held=ann; day=ann; bucket=ann"
	limitertest.Each(t, map[string][2]string{
		"none": {"", "Unavailable"}, "closed": {"failure: closed", "OVER:" + strings.Repeat(" OVER", 4)},
		"open": {"failure: open", "OK:" + strings.Repeat(" OK", 4)}, "local": {"failure: local\nshare: 1", "OK: OK 7/8 OK 6/8 OK 7/8 OK 7/8"},
	}, func(t *testing.T, failure [2]string) {
		onStage(t, failure[0]+kinds, func(t *testing.T, s *stage) {
			for key := range strings.SplitSeq(all, "; ") { // scripts are loaded
				s.ask(t, strings.Replace(key, "ann", "eve", 1))
			}
			var away atomic.Int64
			s.delay(0, &away)
			away.Store(int64(15 * time.Millisecond))
			got, _ := s.in20ms("log=bob")
			assert.Equal(t, "OK: OK 7/8", got)
			away.Store(int64(30 * time.Millisecond))
			got, _ = s.in20ms(all)
			assert.Equal(t, failure[1], got)
			away.Store(0)
			s.play("wait 1m\n log=ann | 0; held=ann | 0; day=ann | 0; bucket=ann | 0 -> OK: OK 8/8 OK 8/8 OK 8/8 OK 8/8")
			away.Store(int64(time.Hour))
			for range 10 {
				_, _ = s.in20ms("log=ann")
			}
			_, took := s.in20ms("log=ann")
			assert.LessOrEqual(t, took, 5*time.Millisecond)
			away.Store(0)
			time.Sleep(2 * time.Hour)
		})
	})
}

// So do answers to calls that charge to the end, give back, or are refused by one limit after another has granted: what is still
// to be done with Redis is done after the answer.
func TestFailure_AnswersInTheCallersTimeWhatGoesOn(t *testing.T) {
	t.Parallel()
	const closed, open, local = "failure: closed", "failure: open", "failure: local"
	for _, tc := range []struct {
		call   string
		prompt int64             // how many calls Redis answers at once, before it is slow
		want   map[string]string // by what the domain says
		then   string            // what is used in the end
	}{
		{"lax=ann", 0, map[string]string{"": "Unavailable", closed: "OVER: OVER", open: "OK: OK", local: "OK: OK 7/8"}, "lax=ann | 0 -> OK: OK 7/8"},
		{"log=ann | 9", 1, map[string]string{"": "Unavailable", closed: "OVER: OVER", open: "OK: OK", local: "OVER: OVER 0/8"}, "log=ann | 0 -> OVER: OVER 0/8"},
		{"log=ann | -1", 0, map[string]string{"": "Unavailable", closed: "OVER: OVER", open: "OK: OK", local: "OK: OK"}, "log=ann | 0 -> OK: OK 8/8"},
		{"once=y; full=x", 2, map[string]string{"": "OVER: OK 0/1 OVER 0/1"}, "once=y | 0 -> OK: OK 1/1"},
		{"full=y | 0", 1, map[string]string{"": "OVER: OVER 0/1"}, "full=y | 0 -> OVER: OVER 0/1"},
	} {
		for failure, want := range tc.want {
			t.Run(failure+tc.call, func(t *testing.T) {
				t.Parallel()
				onStage(t, failure+kinds, func(t *testing.T, s *stage) {
					for _, text := range []string{"lax=eve", "log=eve", "lax=eve | 9", "log=eve | -1", "full=x", "full=x | 0", "full=y | 2", "once=x", "once=z; full=x"} { // scripts are loaded
						s.ask(t, text)
					}
					var away atomic.Int64
					away.Store(int64(30 * time.Millisecond))
					s.delay(tc.prompt, &away)
					got, _ := s.in20ms(tc.call)
					assert.Equal(t, want, got)
					away.Store(0)
					s.play("wait 1m\n" + tc.then)
				})
			})
		}
	}
}

// Once Redis is known to be silent no call waits for it, whatever the domain says.
func TestFailure_IsKnown(t *testing.T) {
	t.Parallel()
	for _, failure := range []string{"", "failure: open", "failure: closed"} {
		onStage(t, failure+outages, func(t *testing.T, s *stage) {
			s.ask(t, "user=ann")
			s.rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, _ func() error) error {
				time.Sleep(3 * time.Second)
				return redistest.Fail(cmds, os.ErrDeadlineExceeded)
			}))
			for range 3 {
				_, _ = s.ShouldRateLimit(t.Context(), request("web", "user=ann"))
			}
			for _, text := range []string{"user=ann", "user=ann | 2", "user=ann | 0", "user=ann | -1", "plan=ann | -1", "user=ann, rrl_reservation=none | 2"} {
				start := time.Now()
				_, _ = s.ShouldRateLimit(t.Context(), request("web", text))
				assert.LessOrEqual(t, time.Since(start), 5*time.Millisecond, "%q %s", failure, text)
			}
			time.Sleep(time.Minute)
		})
	}
}
