package concurrency_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A modelGrant is permits in use; of is the reservation whose member they are.
type modelGrant struct {
	at      time.Time
	permits int64
	by      int
	of      *modelReservation
}

type modelReservation struct {
	*rratelimiter.Reservation

	permits int64
	by      int
	at      time.Time
	hold    time.Duration // 0: none
}

// A modelLimiter is what a limiter of a minute should have in use.
type modelLimiter struct {
	rate         int64
	grants       []modelGrant // the oldest first
	reservations []*modelReservation
}

// free returns the free permits, after what has run out is dropped.
func (m *modelLimiter) free() int64 {
	now := time.Now()
	m.grants = slices.DeleteFunc(m.grants, func(g modelGrant) bool { return g.permits == 0 || !g.at.Add(time.Minute).After(now) })
	free := m.rate
	for _, g := range m.grants {
		free -= g.permits
	}
	return free
}

func (m *modelLimiter) settle(r *modelReservation, used int64) {
	m.reservations = slices.DeleteFunc(m.reservations, func(other *modelReservation) bool { return other == r })
	charge, there := max(0, used-r.permits), false
	for i, g := range m.grants {
		if g.of == r && g.at.Add(time.Minute).After(time.Now()) {
			m.grants[i].permits, m.grants[i].at, there = min(g.permits, used), r.at, true
		}
	}
	// Whether others have released it or it has run out, is not known for a second before it does.
	if r.hold > 0 && !there && time.Since(r.at)+time.Second >= r.hold {
		charge = used
	}
	m.grants = append(m.grants, modelGrant{at: time.Now(), permits: charge, by: r.by})
	m.sort()
}

func (m *modelLimiter) sort() {
	slices.SortStableFunc(m.grants, func(a, b modelGrant) int { return a.at.Compare(b.at) })
}

// hold draws one, or none, that dates no grant to the time of another.
func (m *modelLimiter) hold(random *rand.Rand) time.Duration {
	for {
		d := time.Duration(random.IntN(60_000)) * time.Millisecond
		at := time.Now().Add(d - time.Minute)
		same := slices.ContainsFunc(m.grants, func(g modelGrant) bool { return g.at.Equal(at) }) ||
			slices.ContainsFunc(m.reservations, func(r *modelReservation) bool { return r.at.Equal(at) })
		switch {
		case d < 20*time.Second:
			return 0
		case !same:
			return d
		}
	}
}

func (m *modelLimiter) release(by int, permits int64) {
	for _, own := range []bool{true, false} {
		for i, g := range slices.Backward(m.grants) {
			if own == (g.by == by) {
				off := min(g.permits, permits)
				m.grants[i].permits -= off
				permits -= off
			}
		}
	}
}

// step makes a call at random, by one of the handles, and checks what it answers.
func (m *modelLimiter) step(t *testing.T, random *rand.Rand, handles []*rratelimiter.RateLimiter) string {
	by, n, free := random.IntN(len(handles)), random.Int64N(8)+1, m.free()
	l := handles[by]
	switch random.IntN(12) {
	case 0, 1, 2:
		var opts []rratelimiter.ReserveOption
		at, hold := time.Now(), m.hold(random)
		if hold > 0 {
			opts, at = append(opts, rratelimiter.Hold(hold)), at.Add(hold-time.Minute)
		}
		r, err := l.Reserve(t.Context(), n, 0, opts...)
		require.True(t, err == nil || n > m.rate && errors.Is(err, rratelimiter.ErrPermitsExceedRate), err)
		if err == nil && assert.Equal(t, free >= n, r.Granted) && r.Granted {
			reservation := &modelReservation{r, n, by, time.Now(), hold}
			m.reservations = append(m.reservations, reservation)
			m.grants = append(m.grants, modelGrant{at, n, by, reservation})
			m.sort()
		}
		return fmt.Sprint("Reserve ", n, " ", hold)
	case 3, 4:
		d, err := l.Take(t.Context(), n)
		require.True(t, err == nil || n > m.rate && errors.Is(err, rratelimiter.ErrPermitsExceedRate), err)
		if err == nil && assert.Equal(t, free >= n, d.Granted) && d.Granted {
			m.grants = append(m.grants, modelGrant{time.Now(), n, by, nil})
		}
		return fmt.Sprint("Take ", n)
	case 5, 6, 7, 8:
		if len(m.reservations) == 0 {
			return "nothing"
		}
		r, used := m.reservations[random.IntN(len(m.reservations))], random.Int64N(16)
		require.NoError(t, r.Settle(t.Context(), used))
		m.settle(r, used)
		return fmt.Sprint("Settle ", r.permits, " ", used)
	case 9:
		require.NoError(t, l.Release(t.Context(), n))
		m.release(by, n)
		return fmt.Sprint("Release ", n)
	case 10:
		m.rate = random.Int64N(20) + 1
		require.NoError(t, l.SetRate(t.Context(), limitertest.Every(m.rate, time.Minute), rratelimiter.KeepState()))
		return fmt.Sprint("SetRate ", m.rate)
	}
	if random.IntN(5) > 0 {
		return "nothing"
	}
	require.NoError(t, l.Reset(t.Context()))
	m.grants = nil
	return "Reset"
}

// Whatever is reserved, settled, taken, released and changed, by any caller at any time, a value and the
// permits in use come to the rate, and the answers are those of a plain model.
func TestReservationsAtRandom(t *testing.T) {
	t.Parallel()
	for range 4 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
				random := rand.New(rand.NewPCG(seed, 1))
				var handles []*rratelimiter.RateLimiter
				for range 2 {
					handles = append(handles, limitertest.NewClient(t, rdb).RateLimiter("limiter"))
				}
				m := &modelLimiter{rate: 20}
				limitertest.MustTrySetRate(t, handles[0], limitertest.Every(m.rate, time.Minute))
				keys, did := books{rdb, redisson.KeysOf("limiter", "")}, []string(nil)
				for i := range 150 {
					did = append(did, fmt.Sprintf("%v %s", time.Now().Unix(), m.step(t, random, handles)))
					keys.free(t, "before what has run out is back")
					free := m.free()
					assert.Equal(t, max(0, free), limitertest.Available(t, handles[i%2]))
					if stored, _ := keys.free(t, "after"); !assert.Equal(t, free, stored) || t.Failed() {
						t.Fatal(did)
					}
					time.Sleep(time.Duration(1+random.IntN(20_000)) * time.Millisecond)
				}
			})
		})
	}
}
