package lane_test

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

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// decide grants of ten permits a key, each batch as its requests one by one.
var decide = newScript(`local free = tonumber(redis.call('GET', KEYS[1]) or '10')
local before, taken = free, 0
for i = 1, #ARGV, 2 do
	local permits = tonumber(ARGV[i])
	for _ = 1, tonumber(ARGV[i + 1]) do
		if permits <= free then
			free = free - permits
			taken = taken + permits
		end
	end
end
redis.call('SET', KEYS[1], free)
return {10, before, taken, 0, 0}`)

const perKey = 10

// desk is a limiter whose calls take a second.
type desk struct {
	*lane.Groups

	flights *flights

	mu      sync.Mutex
	batches []string // key and permits of each
	back    int64    // permits given back
	fail    error
}

// newDesk returns a desk that has so many flights under way at most.
func newDesk(t *testing.T, most int) *desk {
	t.Helper()
	d := &desk{flights: &flights{trip: 900 * time.Millisecond}}
	lanes, direct := lanesOn(t, d.flights, 2*most)
	require.NoError(t, direct.ScriptLoad(t.Context(), decide.Source).Err())
	d.Groups = lane.NewGroups(lanes, lane.Rule{Most: 100, Ask: func(key string, b *lane.Batch) (*lane.Question, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.batches = append(d.batches, fmt.Sprint(key, " ", b.Count, " for ", b.Sum))
		if d.fail != nil {
			return nil, d.fail
		}
		q := &lane.Question{Read: func(reply any, err error) (lane.Verdict, error) {
			if err != nil {
				return lane.Verdict{}, script.Outage(err)
			}
			v, _, err := lane.ParseVerdict(reply)
			v.GiveBack = func(_ context.Context, permits int64) error {
				d.mu.Lock()
				defer d.mu.Unlock()
				d.back += permits
				return direct.IncrBy(context.Background(), key, permits).Err()
			}
			return v, err
		}}
		q.Script, q.Keys, q.Args = decide, script.KeysOf(key), script.Constant(b.Args(nil))
		return q, nil
	}})
	return d
}

// asked returns the batches: key and permits of each.
func (d *desk) asked() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.batches)
}

// returned returns how many permits were given back.
func (d *desk) returned() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.back
}

func TestThoseWhoAskMeanwhileGoTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 1)
		granted := make([]bool, 8)
		var wg sync.WaitGroup
		for i := range granted {
			wg.Go(func() {
				decision, _, err := d.Take(t.Context(), "Take", "a", 2)
				assert.NoError(t, err)
				granted[i] = decision.Granted
			})
			synctest.Wait()
		}
		wg.Go(func() {
			_, _, err := d.Take(context.Background(), "Take", "b", 1)
			assert.NoError(t, err)
		})
		wg.Wait()
		assert.Equal(t, []string{"a 1 for 2", "a 7 for 14", "b 1 for 1"}, d.asked())
		assert.Equal(t, []int{1, 2}, d.flights.sizes(), "both keys in one flight")
		assert.Equal(t, []bool{true, true, true, true, true, false, false, false}, granted, "in the order in which they came")
	})
}

// A caller alone goes at once, and the next does not wait for its return.
func TestTheNextDoesNotWaitForTheReturn(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"a", "b"} {
		synctest.Test(t, func(t *testing.T) {
			d := newDesk(t, 2)
			start := time.Now()
			var wg sync.WaitGroup
			for _, key := range []string{"a", key} {
				wg.Go(func() {
					_, _, err := d.Take(t.Context(), "Take", key, 1)
					assert.NoError(t, err)
					assert.Equal(t, 900*time.Millisecond, time.Since(start))
				})
				synctest.Wait()
			}
			assert.Equal(t, []int{1, 1}, d.flights.sizes())
			wg.Wait()
		})
	}
}

func TestABatchHasABound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 1)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { _, _, _ = d.Take(t.Context(), "Take", "a", 40) })
			synctest.Wait()
		}
		wg.Wait()
		assert.Equal(t, []string{"a 1 for 40", "a 2 for 80", "a 1 for 40"}, d.asked())
	})
}

func TestCallersThatGo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 1)
		var wg sync.WaitGroup
		leave := func(key string, permits int64, after time.Duration) {
			wg.Go(func() {
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), after)
				defer cancel()
				_, _, err := d.Take(ctx, "Take", key, permits)
				assert.ErrorIs(t, err, context.DeadlineExceeded)
				assert.Equal(t, after, time.Since(start))
			})
			synctest.Wait()
		}
		wg.Go(func() {
			_, _, err := d.Take(t.Context(), "Take", "b", 1)
			assert.NoError(t, err)
		})
		synctest.Wait()
		leave("a", 3, 1200*time.Millisecond) // on its way
		leave("a", 4, 300*time.Millisecond)  // gathered
		wg.Wait()
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"b 1 for 1", "a 1 for 3"}, d.asked(), "one that has gone is not asked for")
		assert.EqualValues(t, 3, d.returned(), "what it was granted has been given back")

		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, _, err := d.Take(ended, "Take", "a", 1)
		require.ErrorIs(t, err, context.Canceled)
		assert.Len(t, d.asked(), 2)
	})
}

// Where all who have gathered have gone, nothing is sent.
func TestAllHaveGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 1)
		var wg sync.WaitGroup
		wg.Go(func() { _, _, _ = d.Take(t.Context(), "Take", "a", 1) })
		synctest.Wait()
		gone, cancel := context.WithCancel(t.Context())
		for _, key := range []string{"a", "a", "b"} {
			wg.Go(func() {
				_, _, err := d.Take(gone, "Take", key, 1)
				assert.ErrorIs(t, err, context.Canceled)
			})
		}
		synctest.Wait()
		cancel()
		wg.Wait()
		assert.Equal(t, []int{1}, d.flights.sizes())
		decision, _, err := d.Take(t.Context(), "Take", "a", 1)
		require.NoError(t, err)
		assert.EqualValues(t, perKey-2, decision.Remaining)
	})
}

func TestAGrantIsGivenBackByItsOwnPermits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 1)
		var wg sync.WaitGroup
		for n := range int64(4) {
			wg.Go(func() {
				decision, giveBack, err := d.Take(t.Context(), "Take", "a", n+1)
				assert.NoError(t, err)
				assert.True(t, decision.Granted)
				assert.NoError(t, giveBack(t.Context()))
			})
			synctest.Wait()
		}
		wg.Wait()
		assert.EqualValues(t, 10, d.returned())
		decision, giveBack, err := d.Take(t.Context(), "Take", "a", 11)
		require.ErrorIs(t, err, limit.ErrPermitsExceedRate)
		assert.Nil(t, giveBack)
		assert.EqualValues(t, 10, decision.Limit)
	})
}

func TestAllOfABatchGetItsError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 1)
		d.fail = errors.New("no question")
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				_, giveBack, err := d.Take(t.Context(), "Take", "a", 1)
				assert.ErrorIs(t, err, d.fail)
				assert.Nil(t, giveBack)
			})
		}
		wg.Wait()
		d.fail = nil
		decision, _, err := d.Take(t.Context(), "Take", "a", 1)
		require.NoError(t, err)
		assert.EqualValues(t, 9, decision.Remaining)
	})
}

// A hook of the Redis client's may panic. On a goroutine of ours that is an error
// for its callers, and nobody hangs.
func TestAPanicHangsNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 1)
		d.flights.panics = func(int) any { return "a hook" }
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _, err := d.Take(context.Background(), "Take", "a", 1)
			assert.ErrorIs(t, err, limit.ErrUnknownOutcome)
			assert.ErrorContains(t, err, "a hook")
		})
		synctest.Wait()
		for range 3 {
			wg.Go(func() {
				_, _, err := d.Take(t.Context(), "Take", "a", 1)
				assert.ErrorIs(t, err, limit.ErrUnknownOutcome)
				assert.ErrorContains(t, err, "a hook")
			})
		}
		wg.Wait()
		d.flights.panics = nil
		decision, _, err := d.Take(t.Context(), "Take", "a", 1)
		require.NoError(t, err)
		assert.True(t, decision.Granted)
	})
}

// A request that could not be sent in time fails, and says that it was not.
func TestNobodyWaitsForeverForASilentServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, 1)
		d.flights.hang(true)
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				_, _, err := d.Take(t.Context(), "Take", keyOf(i), 1)
				assert.ErrorIs(t, err, limit.ErrUnavailable)
				assert.LessOrEqual(t, time.Since(start), script.DefaultTimeout)
			})
			synctest.Wait()
		}
		wg.Wait()
		time.Sleep(time.Minute)
		d.flights.hang(false)
		_, _, err := d.Take(t.Context(), "Take", "a", 1)
		require.NoError(t, err)
	})
}
