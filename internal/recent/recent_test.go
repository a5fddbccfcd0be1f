package recent_test

import (
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/recent"
)

// size is what an entry takes in these tests, with what the Map adds.
const size, own = 36, 64

func yes(int) bool { return true }
func no(int) bool  { return false }

// scene is a Map with numbers by their text.
type scene struct {
	*testing.T
	*recent.Map[string, int]
}

func newScene(t *testing.T, entries int) *scene {
	t.Helper()
	return &scene{t, recent.New[string, int](entries * (size + own))}
}

func (s *scene) add(from, to int) {
	for i := from; i < to; i++ {
		s.Add(strconv.Itoa(i), i, size, yes)
	}
}

// use finds those numbers, and returns how many it found.
func (s *scene) use(from, to int) (found int) {
	for i := from; i < to; i++ {
		if v, ok := s.Get(strconv.Itoa(i)); ok && v == i {
			found++
		}
	}
	return found
}

func TestMap(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1_000_000)
	assert.Zero(t, s.use(0, 1))
	s.add(0, 10_000)
	assert.Equal(t, 10_000, s.use(0, 20_000))
	assert.Equal(t, 5, s.Add("5", 50, size, yes), "what it has will do")
	assert.Equal(t, 50, s.Add("5", 50, size, no))
	v, ok := s.Get("5")
	assert.Equal(t, 50, v)
	assert.True(t, ok)
}

// A Map keeps what is used, whatever else comes once.
func TestMap_IsBounded(t *testing.T) {
	t.Parallel()
	s := newScene(t, 64*100)
	s.add(0, 1000)
	for i := 1000; i < 16_000; i += 300 {
		assert.Equal(t, 1000, s.use(0, 1000), "these are used")
		s.add(i, i+300)
	}
	assert.Equal(t, 64*100, s.use(0, 16_000), "as many as there is room for")
	s.Add("large", 1, 1<<20, yes)
	assert.Equal(t, 1, s.Add("large", 2, 1<<20, yes), "alone it may be larger than its part")
}

func TestMap_GivesBackWhatIsNotUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{t, recent.New[string, int](1 << 30)}
		add := func(from, to int) {
			for i := from; i < to; i++ {
				s.Add(strconv.Itoa(i), i, recent.Small/1000, yes)
			}
		}
		add(0, 5000)
		for range 5 {
			time.Sleep(recent.Span)
			assert.Equal(t, 1000, s.use(0, 1000))
		}
		assert.Equal(t, 1000, s.use(0, 5000), "the others were used once")
		time.Sleep(2*recent.Span - 1)
		assert.Equal(t, 1000, s.use(0, 1000), "that is not long enough")
		time.Sleep(3 * recent.Span)
		assert.Zero(t, s.use(0, 5000))
		add(0, 100)
		time.Sleep(10 * recent.Span)
		assert.Equal(t, 100, s.use(0, 100), "a few may stay")
	})
}

// Lists that move and entries that go hide no entry from those who look for it.
func TestMap_FindsWhatIsThere(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1_000_000)
	s.add(0, 10)
	var over atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !over.Load() {
				assert.Equal(t, 10, s.use(0, 10))
			}
		})
	}
	s.add(10, 5000)
	for i := range 1000 {
		s.Add("replaced", i, size, no)
	}
	over.Store(true)
	wg.Wait()
}
