package merging_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/merge"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// These tests are about when members are merged, also with RRL_MERGE=all.
func init() { merge.AsUsual() }

// A lone caller's grants: as many as stay exact, and as many as are then merged at once.
const (
	few      = 32
	together = 20
)

// once is the most members after a merging call: those that stay exact, and what was granted since, which is less than half
// of what the next one takes.
const once = few + together/2

// A scene is a limiter in a bubble whose Client reaches a miniredis through a proxy. It counts what is held. A slice of the
// interval is longer than a test.
type scene struct {
	*limitertest.HeldScene

	rate  int64
	keyed *rratelimiter.KeyedLimiter
	held  int64
	late  chan struct{} // late requests come once it is closed

	mu    sync.Mutex
	calls map[*lua.Script]int
}

const interval = 100 * time.Hour

// newScene returns one of that rate, with so many connections, 0 for as many as usual. With 3, one flight is under way at a time.
func newScene(t *testing.T, rate int64, connections int) *scene {
	t.Helper()
	cfg := limitertest.Every(rate, interval)
	s := &scene{
		HeldScene: limitertest.NewHeldSceneOf(t, cfg, &redistest.Options{ReadTimeout: time.Second, PoolSize: connections}),
		rate:      rate, late: make(chan struct{}), calls: map[*lua.Script]int{},
	}
	s.keyed = s.Client.Keyed("", cfg)
	s.on(nil, "")
	limitertest.Take(t, s.RateLimiter, 1) // by its figures the Client learns the interval
	s.held = 1
	return s
}

// onScript lets f say what becomes of each script call from now on; n counts the calls of each, from 1.
func (s *scene) onScript(f func(script *lua.Script, n int) redistest.Action) {
	seen := map[*lua.Script]int{}
	s.Proxy.OnCommand(func(c redistest.Command) redistest.Action {
		if name := c.Name(); name != "evalsha" && name != "eval" {
			return redistest.Pass
		}
		script := limitertest.ScriptOf(c.Args[1])
		seen[script]++
		s.mu.Lock()
		s.calls[script]++
		s.mu.Unlock()
		return f(script, seen[script])
	})
}

// on lets the calls of one script meet faults in turn from now on, and all of its calls the only one of "drop for ever".
func (s *scene) on(script *lua.Script, faults string) {
	words, always := strings.CutSuffix(faults, " for ever")
	all := s.faults(words)
	if always {
		all = slices.Repeat(all, 100)
	}
	s.meet(map[*lua.Script][]redistest.Action{script: all})
}

// meet lets the calls of scripts meet these in turn from now on.
func (s *scene) meet(all map[*lua.Script][]redistest.Action) {
	s.onScript(func(script *lua.Script, n int) redistest.Action {
		if n <= len(all[script]) {
			return all[script][n-1]
		}
		return redistest.Pass
	})
}

// faults returns what the words stand for.
func (s *scene) faults(words string) (all []redistest.Action) {
	for word := range strings.FieldsSeq(words) {
		all = append(all, map[string]redistest.Action{
			"drop": redistest.DropAnswer, "swallow": redistest.Swallow, "cut": redistest.Cut, "double": redistest.Duplicate,
			"second": redistest.DuplicateLast, "late": redistest.Late.When(s.late), "drop-late": redistest.DropAnswer.When(s.late),
		}[word])
	}
	return all
}

// sent returns how often the Client has sent the script.
func (s *scene) sent(script *lua.Script) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[script]
}

// rest lets time pass in which all that is under way is repeated as often as faults are met.
func (s *scene) rest() {
	time.Sleep(20 * time.Second)
	synctest.Wait()
}

// letGo lets late requests come.
func (s *scene) letGo() {
	close(s.late)
	s.late = make(chan struct{})
	s.rest()
}

// check checks that what is held is in use, and that all else is free.
func (s *scene) check(t *testing.T, when string) {
	t.Helper()
	s.rest()
	ok := assert.Equal(t, s.held, limitertest.InUse(t, s.Mini, s.permits()), "%s: permits in use", when)
	free, _ := limitertest.StoredValue(t, s.Mini, limitertest.KeysOf(s.RateLimiter).Value)
	require.True(t, assert.Equal(t, s.rate-s.held, free, "%s: free permits", when) && ok)
}

func (s *scene) permits() string { return limitertest.KeysOf(s.RateLimiter).Permits }

// beside returns another limiter of the Client's.
func (s *scene) beside() *rratelimiter.RateLimiter {
	return s.Client.RateLimiter("{"+s.Name()+"}:beside", rratelimiter.WithDefault(limitertest.Every(10_000, interval)))
}

// members returns how many there are.
func (s *scene) members(t *testing.T) int {
	t.Helper()
	return int(s.Mini.ZCard(t.Context(), s.permits()).Val())
}

// merged checks that so few members are left after two more calls, and that nothing is lost or minted. One takes along what
// merges members, the other does so again if these were not as they were named.
func (s *scene) merged(t *testing.T, most int) {
	t.Helper()
	for range 2 {
		synctest.Wait()
		s.take(t, 1)
	}
	s.check(t, "merged")
	require.LessOrEqual(t, s.members(t), most, "members")
}

// take takes single permits.
func (s *scene) take(t *testing.T, n int) {
	t.Helper()
	for range n {
		limitertest.MustAcquire(t, s.RateLimiter, 1)
		s.held++
	}
}

// returnable takes so many permits, and returns what gives them back.
func (s *scene) returnable(t *testing.T, permits int64) (undo func(ctx context.Context) error) {
	t.Helper()
	d, undo, err := s.keyed.TakeReturnable(t.Context(), s.Name(), permits)
	require.NoError(t, err)
	require.True(t, d.Granted)
	s.held += permits
	return undo
}

// back gives permits back.
func (s *scene) back(t *testing.T, permits int64, undo func(ctx context.Context) error) {
	t.Helper()
	require.NoError(t, undo(t.Context()))
	s.held -= permits
}

// nearly takes so many permits that the next call takes along one that merges members. Three grants are returnable, of two
// permits each.
func (s *scene) nearly(t *testing.T) (undo []func(ctx context.Context) error) {
	t.Helper()
	s.take(t, few+5)
	for range 3 { // each leaves what another may have left
		undo = append(undo, s.returnable(t, 2))
	}
	s.take(t, together-5-3-1)
	synctest.Wait()
	require.Zero(t, s.sent(lua.Merge))
	return undo
}
