package waiting_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

// Callers wait for two of three limiters or for one, some leave, and reservations are settled for nothing. Each is
// answered by the end of its time, what was granted is in use, and who is left has not enough permits.
func TestTryAcquireAll_RandomWaiters(t *testing.T) {
	t.Parallel()
	const rate, callers = 20, 40
	limitertest.Bubbles(t, limitertest.Seeds(6), func(t *testing.T, seed uint64) {
		draw := rand.New(rand.NewPCG(seed, 1))
		hour := limitertest.Every(rate, time.Hour)
		c := rratelimiter.New(limitertest.FarAway(t, 10*ms))
		f := limitertest.NewFamilyOf(t, c, hour, hour, hour)
		var used [3]atomic.Int64
		type reserved struct {
			*rratelimiter.Reservation
			at int
		}
		var held []reserved
		for at, l := range f.Limiters {
			for range rate / 2 {
				held = append(held, reserved{limitertest.Reserve(t, l, 2), at})
			}
		}
		draw.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
		waiting := make([]atomic.Bool, callers) // for good
		wants := make([][3]int64, callers)
		for i := range callers {
			first := draw.IntN(3)
			permits, timeout, leaves := 1+draw.Int64N(4), time.Duration(1+draw.IntN(8))*time.Second, draw.IntN(5) == 0
			all := []int{first, (first + 1) % 3}
			if draw.IntN(4) == 0 {
				all = all[:1]
			}
			if draw.IntN(2) == 0 {
				timeout = 20 * time.Minute
			}
			var claims []rratelimiter.Claim
			for _, at := range all {
				wants[i][at] = permits
				claims = append(claims, f.Limiters[at].Claim(permits))
			}
			waiting[i].Store(true)
			go func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if leaves {
					time.AfterFunc(timeout/2, cancel)
				}
				start := time.Now()
				ok, err := c.TryAcquireAll(ctx, timeout, claims...)
				waiting[i].Store(false)
				assert.LessOrEqual(t, time.Since(start), timeout+time.Second)
				if err != nil {
					assert.True(t, leaves, fmt.Sprint(err))
				}
				for at := range used {
					if ok {
						used[at].Add(wants[i][at])
					}
				}
			}()
			time.Sleep(time.Duration(1+draw.IntN(20)) * ms)
		}
		settled := len(held) * 2 / 3
		for _, r := range held[:settled] {
			time.Sleep(time.Duration(draw.IntN(150)) * ms)
			go func() { assert.NoError(t, r.Settle(t.Context(), 0)) }()
		}
		time.Sleep(3 * time.Minute) // twice the longest until they ask again, and an attempt
		synctest.Wait()
		var free [3]int64
		for at, l := range f.Limiters {
			free[at] = limitertest.Available(t, l)
			inUse := int64(0)
			for _, r := range held[settled:] {
				if r.at == at {
					inUse += 2
				}
			}
			assert.Equal(t, rate-free[at], used[at].Load()+inUse, l.Name())
		}
		first := [3]bool{true, true, true}
		for i, want := range wants {
			if !waiting[i].Load() {
				continue
			}
			mayBeServed := true
			for at, permits := range want {
				mayBeServed = mayBeServed && (permits == 0 || first[at] && permits <= free[at])
			}
			assert.False(t, mayBeServed, "no one before it wants the same, and it waits for %v of %v", want, free)
			for at, permits := range want {
				first[at] = first[at] && permits == 0
			}
		}
		time.Sleep(20 * time.Minute)
		for i := range waiting {
			assert.False(t, waiting[i].Load(), "answered by the end of its time")
		}
		limitertest.CheckIdle(t, c)
		assert.NoError(t, c.Close(t.Context()))
	})
}
