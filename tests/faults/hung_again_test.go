package faults_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

// probePace is how often a server that answers nobody is asked.
const probePace = time.Second / 3

// askWhileItHangs asks with a server that hangs, of 100 keys within 100 ms, and has it
// answer again after so long. go-redis waits on for answers to what was sent before.
func askWhileItHangs(t *testing.T, hook *hanging, d time.Duration, ask question) {
	t.Helper()
	hook.hang(true)
	for i := range 100 {
		go func() { _ = ask(context.Background(), fmt.Sprintf("{key%d}", i)) }()
		time.Sleep(time.Millisecond)
	}
	time.Sleep(d - 100*time.Millisecond)
	hook.hang(false)
}

// A server that hung and answers again is soon asked, whatever the question, though
// go-redis still waits on the connections of before.
func TestAServerThatAnswersAgain(t *testing.T) {
	t.Parallel()
	for name := range questions(rratelimiter.New(nil), nil, "") {
		for _, d := range []time.Duration{200 * time.Millisecond, 1200 * time.Millisecond, 2500 * time.Millisecond} {
			t.Run(fmt.Sprint(name, " after ", d), func(t *testing.T) {
				t.Parallel()
				hook := &hanging{}
				askBehind(t, name, &redis.Options{PoolSize: 256}, hook, func(t *testing.T, c *rratelimiter.Client, ask question) {
					askWhileItHangs(t, hook, d, ask)
					start := time.Now()
					require.NotErrorIs(t, ask(t.Context(), "{new}"), rratelimiter.ErrUnavailable)
					assert.LessOrEqual(t, time.Since(start), probePace+10*time.Millisecond)
					time.Sleep(time.Minute)
				})
			})
		}
	}
}

// Once one call was answered all go through, whatever go-redis still waits for.
func TestOneAnswerEndsTheHang(t *testing.T) {
	t.Parallel()
	for name := range limitertest.Reads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hook := &hanging{}
			askBehind(t, name, nil, hook, func(t *testing.T, c *rratelimiter.Client, ask question) {
				askWhileItHangs(t, hook, 500*time.Millisecond, ask)
				limitertest.MustAcquire(t, c.RateLimiter("other", rratelimiter.WithDefault(limitertest.Every(1000, time.Hour))), 1)
				start := time.Now()
				var wg sync.WaitGroup
				for i := range 100 {
					wg.Go(func() { assert.NotErrorIs(t, ask(t.Context(), fmt.Sprintf("{new%d}", i)), rratelimiter.ErrUnavailable) })
				}
				wg.Wait()
				assert.Less(t, time.Since(start), 10*time.Millisecond)
				time.Sleep(time.Minute)
			})
		})
	}
}

// A server that hangs again and again gathers a bounded number of round trips.
func TestAServerThatHangsAgainAndAgain(t *testing.T) {
	t.Parallel()
	for name := range questions(rratelimiter.New(nil), nil, "") {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hook := &hanging{}
			askBehind(t, name, nil, hook, func(t *testing.T, c *rratelimiter.Client, ask question) {
				for range 5 {
					askWhileItHangs(t, hook, 600*time.Millisecond, ask)
					time.Sleep(100 * time.Millisecond)
				}
				_, _, most := hook.seen()
				assert.LessOrEqual(t, most, 4*64+64)
				time.Sleep(time.Minute)
				_, now, _ := hook.seen()
				assert.Zero(t, now)
			})
		})
	}
}
