package merging_test

import (
	"context"
	"math/rand/v2"
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

// once is the most members after a merging call: those that stay exact, and less than half of what the next one takes.
const once = few + together/2

// A scene is a limiter in a bubble whose Client reaches a miniredis by a proxy. A slice of the interval is longer than a test.
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

func (s *scene) faults(words string) (all []redistest.Action) {
	for word := range strings.FieldsSeq(words) {
		all = append(all, map[string]redistest.Action{
			"drop": redistest.DropAnswer, "swallow": redistest.Swallow, "cut": redistest.Cut, "double": redistest.Duplicate,
			"second": redistest.DuplicateLast, "late": redistest.Late.When(s.late), "drop-late": redistest.DropAnswer.When(s.late),
		}[word])
	}
	return all
}

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

func (s *scene) beside() *rratelimiter.RateLimiter {
	return s.Client.RateLimiter("{"+s.Name()+"}:beside", rratelimiter.WithDefault(limitertest.Every(10_000, interval)))
}

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

func (s *scene) back(t *testing.T, permits int64, undo func(ctx context.Context) error) {
	t.Helper()
	require.NoError(t, undo(t.Context()))
	s.held -= permits
}

// nearly takes so many permits that the next call takes along one that merges members. Three grants are returnable, of two permits each.
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

// eachFault runs test for what attempts of a call meet, in turn, on a limiter of that rate, with so many connections.
func eachFault(t *testing.T, rate int64, connections int, test func(t *testing.T, s *scene, faults string)) {
	t.Helper()
	rows := limitertest.Rows(
		"none", "drop", "drop cut drop", "swallow", "cut", "cut drop", "drop cut", "late", "late drop", "drop late", "double", "second")
	rows["none"] = ""
	limitertest.Bubbles(t, rows, func(t *testing.T, faults string) { test(t, newScene(t, rate, connections), faults) })
}

func TestMergingCall_MeetsFaults(t *testing.T) {
	t.Parallel()
	eachFault(t, 1000, 0, func(t *testing.T, s *scene, faults string) {
		undo := s.nearly(t)
		s.on(lua.Merge, faults)
		s.take(t, 1)
		s.merged(t, once)
		s.back(t, 2, undo[0])
		s.check(t, "given back by one of a merged member")
		s.take(t, together)
		s.merged(t, once)
		s.letGo()
		s.check(t, "late requests have come")
		s.back(t, 2, undo[1])
		s.back(t, 2, undo[2])
		s.check(t, "given back by the others")
		s.take(t, together)
		s.merged(t, once)
	})
}

// A call is given up, and others merge what comes then.
func TestMergingCall_IsGivenUp(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, map[string]string{"cut": "cut for ever", "dropped": "drop for ever"}, func(t *testing.T, faults string) {
		s := newScene(t, 1000, 0)
		undo := s.nearly(t)
		s.on(lua.Merge, faults)
		s.take(t, 1)
		s.check(t, "it was given up")
		for _, f := range undo { // what it may have merged is not known any more, and the error says so
			if err := f(t.Context()); faults == "cut for ever" || err == nil {
				require.NoError(t, err)
				s.held -= 2
			} else {
				require.ErrorIs(t, err, rratelimiter.ErrUnknownOutcome)
			}
		}
		s.check(t, "given back as far as it is known")
		s.on(nil, "")
		before := s.members(t)
		s.take(t, 3*together)
		s.merged(t, before+together)
	})
}

// Permits go back while their member is named: that waits for the call.
func TestUndo_WhileMerging(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, map[string]redistest.Action{"the request is held": redistest.Late, "the answer is held": redistest.Pass},
		func(t *testing.T, held redistest.Action) {
			eachFault(t, 1000, 0, func(t *testing.T, s *scene, faults string) {
				undo := s.nearly(t)
				merging := make(chan struct{})
				s.meet(map[*lua.Script][]redistest.Action{lua.Merge: {held.When(merging)}, lua.GiveBack: s.faults(faults)})
				s.StartTryAcquire(t.Context(), 1, 0) // it takes the merging call along
				s.held++
				synctest.Wait()
				require.Equal(t, 1, s.sent(lua.Merge))
				for _, f := range undo {
					go func() { assert.NoError(t, f(context.Background())) }()
				}
				synctest.Wait()
				assert.Zero(t, s.sent(lua.GiveBack), "the members are named")
				close(merging)
				s.held -= 3 * 2
				s.merged(t, once)
				s.letGo()
				s.check(t, "all have come")
			})
		})
}

// Callers leave whose permits share a member with others', before, while and after it is merged.
func TestCallersLeave_AndMembersAreMerged(t *testing.T) {
	t.Parallel()
	eachFault(t, 1000, 3, func(t *testing.T, s *scene, faults string) {
		s.take(t, few)
		for round := range 14 {
			fault := s.faults(faults)
			ctx, leave := context.WithCancel(t.Context())
			alone, batch := make(chan struct{}), make(chan struct{})
			s.onScript(func(script *lua.Script, n int) redistest.Action {
				switch {
				case script == lua.Acquire && n <= 2:
					return redistest.Pass.When([]chan struct{}{alone, batch}[n-1])
				case (script == lua.GiveBack) == (round%2 == 0) && n <= len(fault):
					return fault[n-1]
				}
				return redistest.Pass
			})
			s.StartTryAcquire(t.Context(), 1, 0) // the others gather behind it
			for i := range 4 {
				one := t.Context()
				if i%2 == 0 {
					one = ctx
				}
				s.StartTryAcquire(one, int64(i+1), 0)
			}
			close(alone)
			synctest.Wait()
			leave()
			synctest.Wait()
			close(batch)
			synctest.Wait()
			s.held += 1 + 2 + 4
			s.check(t, "callers have left")
			s.letGo() // after a minute a late copy might take permits
		}
		s.check(t, "all have come")
		require.Positive(t, s.sent(lua.Merge))
		assert.Less(t, s.members(t), few+together)
	})
}

// Requests, claims and settlements meet faults, in any order.
func TestCalls_MeetFaultsAndAreMerged(t *testing.T) {
	t.Parallel()
	eachFault(t, 10_000, 0, func(t *testing.T, s *scene, faults string) {
		random := rand.New(rand.NewPCG(11, 61))
		scripts := []*lua.Script{lua.Acquire, lua.AcquireAll, lua.SettleReservation, lua.GiveBack, lua.Merge}
		beside := s.beside()
		var open []*rratelimiter.Reservation
		var undo []func(ctx context.Context) error
		for i := range 200 {
			if i%10 == 9 {
				s.on(scripts[i/10%len(scripts)], faults)
			}
			switch random.IntN(6) {
			case 0:
				undo = append(undo, s.returnable(t, 2))
			case 1:
				var opts []rratelimiter.ReserveOption
				if i%2 == 0 {
					opts = append(opts, rratelimiter.Hold(interval/2))
				}
				open = append(open, limitertest.Reserve(t, s.RateLimiter, 3, opts...))
				s.held += 3
			case 2:
				if n := len(open); n > 0 {
					one, used := random.IntN(n), random.Int64N(6)
					require.NoError(t, open[one].Settle(t.Context(), used))
					s.held += used - 3
					open = append(open[:one], open[one+1:]...)
				}
			case 3:
				if n := len(undo); n > 0 {
					one := random.IntN(n)
					s.back(t, 2, undo[one])
					undo = append(undo[:one], undo[one+1:]...)
				}
			case 4:
				require.True(t, limitertest.TryAll(t, s.Client, 2, s.RateLimiter, beside))
				s.held += 2
			default:
				s.take(t, 1)
			}
		}
		s.check(t, "before late requests have come")
		s.letGo()
		s.check(t, "all have come")
		require.Positive(t, s.sent(lua.Merge))
		assert.Less(t, s.members(t), few+len(open)+3*together, "merged")
		for _, r := range open {
			require.NoError(t, r.Cancel(t.Context()))
			s.held -= 3
		}
		for _, f := range undo {
			s.back(t, 2, f)
		}
		s.check(t, "all that may go back has")
	})
}

// A late copy of a request whose answer is forgotten, after a minute, still finds what was granted: that is not merged.
func TestGrantInDoubt_IsNotMerged(t *testing.T) {
	t.Parallel()
	type row struct {
		script *lua.Script
		call   func(t *testing.T, s *scene)
	}
	limitertest.Bubbles(t, map[string]row{
		"TryAcquire":     {lua.Acquire, func(t *testing.T, s *scene) { s.take(t, 1) }},
		"TakeReturnable": {lua.Acquire, func(t *testing.T, s *scene) { s.returnable(t, 2) }},
		"TakeAll": {lua.AcquireAll, func(t *testing.T, s *scene) {
			beside := s.beside()
			limitertest.Grants(t, beside, few)
			require.True(t, limitertest.TryAll(t, s.Client, 2, s.RateLimiter, beside))
			s.held += 2
			limitertest.Grants(t, beside, 2*together) // the copy is known as one by either member
		}},
		"Reserve": {lua.Acquire, func(t *testing.T, s *scene) {
			require.NoError(t, limitertest.Reserve(t, s.RateLimiter, 3).Settle(t.Context(), 3))
			s.held += 3
		}},
		"ReserveAll": {lua.AcquireAll, func(t *testing.T, s *scene) {
			require.NoError(t, limitertest.Must(s.Client.ReserveAll(t.Context(), 0, s.Claim(3)))(t).Settle(t.Context(), 2))
			s.held += 2
		}},
		"Settle": {lua.SettleReservation, func(t *testing.T, s *scene) {
			r := limitertest.Reserve(t, s.RateLimiter, 3)
			require.NoError(t, r.Settle(t.Context(), 5))
			s.held += 5
		}},
	}, func(t *testing.T, c row) {
		s := newScene(t, 1000, 0)
		s.take(t, few)
		s.on(c.script, "late")
		c.call(t, s)
		time.Sleep(2 * time.Minute)
		if _, err := s.Client.RateLimiter(s.beside().Name()).Take(t.Context(), 1); err != nil { // it forgets, too
			require.ErrorIs(t, err, rratelimiter.ErrNotInitialized)
		}
		s.take(t, 2*together)
		s.merged(t, few+together+2) // two may be in doubt
		s.letGo()
		s.check(t, "the late copy has come")
	})
}

// What is reserved has a member of its own until it is settled.
func TestReservation_IsNotMergedWhileItIsOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, 1000, 0)
		s.take(t, few)
		one := limitertest.Reserve(t, s.RateLimiter, 3)
		all := limitertest.Must(s.Client.ReserveAll(t.Context(), 0, s.Claim(4)))(t)
		s.held += 7
		s.take(t, together)
		s.merged(t, few+together/2)
		require.NoError(t, one.Settle(t.Context(), 1))
		require.NoError(t, all.Settle(t.Context(), 2))
		s.held -= 4
		s.check(t, "settled")
		s.take(t, together)
		s.merged(t, few+together/2)
	})
}

// A limiter's keys run out between two calls that merge.
func TestLimiter_RunsOutAndIsMadeAnewBetweenMergingCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, 1000, 0)
		for range 3 {
			s.take(t, few+4*together)
			s.merged(t, few+2*together)
			require.NoError(t, limitertest.Second(s.Other.Expire(t.Context(), time.Second)))
			s.rest()
			require.Empty(t, limitertest.LimiterKeys(t, s.Mini, s.Name()))
			limitertest.MustTrySetRate(t, s.Other, limitertest.Every(1000, interval))
			s.held = 0
		}
	})
}
