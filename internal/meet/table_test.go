package meet_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/meet"
	"github.com/rratelimiter/rratelimiter/limit"
)

// server decides batches one after another, each in a second, from free permits
// of each key.
type server struct {
	mu      sync.Mutex
	free    map[string]int64
	batches []string // key and permits of each
	back    int64    // permits given back
	fail    error
}

const perKey = 10

func (s *server) decide(_ context.Context, key string, b *meet.Batch) (meet.Verdict, error) {
	time.Sleep(time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.batches = append(s.batches, fmt.Sprint(key, " ", b.Count, " for ", b.Sum))
	if s.fail != nil {
		return meet.Verdict{}, s.fail
	}
	if s.free == nil {
		s.free = map[string]int64{}
	}
	if _, ok := s.free[key]; !ok {
		s.free[key] = perKey
	}
	v := meet.Verdict{Outcome: meet.Outcome{Limit: perKey, Free: s.free[key]}}
	for _, r := range b.Runs() {
		for range r.Count {
			if r.Permits <= s.free[key] {
				s.free[key] -= r.Permits
				v.Taken += r.Permits
			}
		}
	}
	v.GiveBack = func(_ context.Context, permits int64) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.free[key] += permits
		s.back += permits
		return nil
	}
	return v, nil
}

func (s *server) table() *meet.Table {
	return meet.NewTable(meet.Rule{Most: 100, Decide: s.decide})
}

func TestThoseWhoAskMeanwhileGoTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		table := s.table()
		granted := make([]bool, 8)
		var wg sync.WaitGroup
		for i := range granted {
			wg.Go(func() {
				d, _, err := table.Take(t.Context(), "Take", "a", 2)
				assert.NoError(t, err)
				granted[i] = d.Granted
			})
			synctest.Wait()
		}
		wg.Go(func() {
			_, _, err := table.Take(context.Background(), "Take", "b", 1)
			assert.NoError(t, err)
		})
		wg.Wait()
		slices.Sort(s.batches)
		assert.Equal(t, []string{"a 1 for 2", "a 7 for 14", "b 1 for 1"}, s.batches)
		assert.Equal(t, []bool{true, true, true, true, true, false, false, false}, granted, "in the order in which they came")
	})
}

func TestABatchHasABound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		table := s.table()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { _, _, _ = table.Take(t.Context(), "Take", "a", 40) })
			synctest.Wait()
		}
		wg.Wait()
		assert.Equal(t, []string{"a 1 for 40", "a 2 for 80", "a 1 for 40"}, s.batches)
	})
}

func TestCallersThatGo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		table := s.table()
		start := time.Now()
		inFlight, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		waiting, cancelWaiting := context.WithTimeout(t.Context(), time.Second/4)
		defer cancelWaiting()
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _, err := table.Take(inFlight, "Take", "a", 3)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Equal(t, time.Second/2, time.Since(start))
		})
		synctest.Wait()
		wg.Go(func() {
			_, _, err := table.Take(waiting, "Take", "a", 4)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Equal(t, time.Second/4, time.Since(start))
		})
		synctest.Wait()
		wg.Wait()
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, []string{"a 1 for 3"}, s.batches, "one that has gone is not asked for")
		assert.EqualValues(t, 3, s.back, "what it was granted has been given back")

		_, _, err := table.Take(inFlight, "Take", "a", 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Len(t, s.batches, 1)
	})
}

func TestAGrantIsGivenBackByItsOwnPermits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		table := s.table()
		var wg sync.WaitGroup
		for n := range int64(4) {
			wg.Go(func() {
				d, giveBack, err := table.Take(t.Context(), "Take", "a", n+1)
				assert.NoError(t, err)
				assert.True(t, d.Granted)
				assert.NoError(t, giveBack(t.Context()))
			})
			synctest.Wait()
		}
		wg.Wait()
		assert.EqualValues(t, 10, s.back)
		d, giveBack, err := table.Take(t.Context(), "Take", "a", 11)
		require.ErrorIs(t, err, limit.ErrPermitsExceedRate)
		assert.Nil(t, giveBack)
		assert.EqualValues(t, 10, d.Limit)
	})
}

func TestAllOfABatchGetItsError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{fail: errors.New("no server")}
		table := s.table()
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				_, giveBack, err := table.Take(t.Context(), "Take", "a", 1)
				assert.ErrorIs(t, err, s.fail)
				assert.Nil(t, giveBack)
			})
		}
		wg.Wait()
		s.fail = nil
		d, _, err := table.Take(t.Context(), "Take", "a", 1)
		require.NoError(t, err)
		assert.EqualValues(t, 9, d.Remaining)
	})
}

// A hook of the Redis client's may panic. A caller alone, on whose goroutine that
// is, may recover. All others get an error, and nobody hangs.
func TestAPanicHangsNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		panics := true
		table := meet.NewTable(meet.Rule{Most: 100, Decide: func(ctx context.Context, key string, b *meet.Batch) (meet.Verdict, error) {
			if panics {
				time.Sleep(time.Second)
				panic("a hook")
			}
			return s.decide(ctx, key, b)
		}})
		var wg sync.WaitGroup
		wg.Go(func() {
			assert.PanicsWithValue(t, "a hook", func() { _, _, _ = table.Take(context.Background(), "Take", "a", 1) })
		})
		synctest.Wait()
		for range 3 {
			wg.Go(func() {
				_, _, err := table.Take(t.Context(), "Take", "a", 1)
				assert.ErrorIs(t, err, limit.ErrUnknownOutcome)
				assert.ErrorContains(t, err, "a hook")
			})
		}
		wg.Wait()
		panics = false
		d, _, err := table.Take(t.Context(), "Take", "a", 1)
		require.NoError(t, err)
		assert.True(t, d.Granted)
	})
}
