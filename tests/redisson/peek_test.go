package redisson_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// drawnState is a state that Redisson, this module or an accident may have left.
type drawnState struct {
	*rand.Rand

	rdb  *redis.Client
	keys redisson.Keys
	cfg  rratelimiter.Config
	seen map[string]int // what came of it, and of others before
}

// drawState puts a state into Redis under a name.
func drawState(t *testing.T, draw *rand.Rand, rdb *redis.Client, name string) *drawnState {
	t.Helper()
	s := &drawnState{Rand: draw, rdb: rdb}
	s.cfg = rratelimiter.Config{
		Type: rratelimiter.RateType(draw.IntN(2)), Rate: 1 + draw.Int64N(20), Interval: time.Duration(1+draw.IntN(20)) * time.Second,
	}
	s.keys = keysInUse(name, s.cfg.Type)
	if draw.IntN(3) == 0 {
		s.cfg.KeepAlive = s.cfg.Interval * time.Duration(1+draw.IntN(3))
	}
	if draw.IntN(6) > 0 {
		require.NoError(t, rdb.HSet(t.Context(), s.keys.Config, "rate", s.cfg.Rate, "interval", s.cfg.Interval.Milliseconds(),
			"type", int(s.cfg.Type), "keepAliveTime", s.cfg.KeepAlive.Milliseconds()).Err())
	}
	inUse := s.addMembers(t)
	s.setValue(t, inUse)
	for _, key := range []string{s.keys.Config, s.keys.Value, s.keys.Permits} {
		if draw.IntN(4) == 0 {
			life := s.cfg.Interval/2 + time.Duration(draw.Int64N(int64(3*s.cfg.Interval)))
			require.NoError(t, rdb.PExpire(t.Context(), key, life).Err())
		}
	}
	return s
}

// addMembers returns the permits of all members that it adds.
func (s *drawnState) addMembers(t *testing.T) (permits int64) {
	t.Helper()
	count := []int{0, 1, 3, 10, 300, 700}[min(s.IntN(8), 5)]
	if count > 10 {
		s.cfg.Rate += int64(count)
		if s.rdb.HExists(t.Context(), s.keys.Config, "rate").Val() {
			require.NoError(t, s.rdb.HSet(t.Context(), s.keys.Config, "rate", s.cfg.Rate).Err())
		}
	}
	now, interval := limitertest.ServerNow(t, s.rdb), s.cfg.Interval.Milliseconds()
	oldest, newest := 2*interval, -interval/10
	switch s.IntN(4) {
	case 0:
		newest = interval // all have run out
	case 1:
		oldest, newest = interval-1, 0 // none has
	}
	var rows []redis.Z
	for range count {
		layout := []codec.Layout{codec.LayoutB, codec.LayoutC, codec.LayoutD1, codec.LayoutD2}[s.IntN(4)]
		n := uint32(s.IntN(3))
		member := limitertest.NewMember(t, layout, n)
		if count <= 10 && s.IntN(50) == 0 {
			member = "what is this?"
			n = 0
		}
		permits += int64(n)
		age := newest + s.Int64N(max(1, oldest-newest))
		rows = append(rows, redis.Z{Score: float64(now - age), Member: member})
	}
	if count > 0 {
		require.NoError(t, s.rdb.ZAdd(t.Context(), s.keys.Permits, rows...).Err())
	}
	return permits
}

func (s *drawnState) setValue(t *testing.T, inUse int64) {
	t.Helper()
	var value any
	switch s.IntN(8) {
	case 0:
		return
	case 1:
		value = s.cfg.Rate + s.Int64N(5)
	case 2:
		value = s.cfg.Rate - inUse + 1 + s.Int64N(3)
	case 3:
		value = s.Int64N(s.cfg.Rate+1) - 2
	case 4:
		value = 0
	case 5:
		if value = s.cfg.Rate - inUse; s.IntN(10) == 0 {
			value = "none"
		}
	default:
		value = s.cfg.Rate - inUse
	}
	require.NoError(t, s.rdb.Set(t.Context(), s.keys.Value, value, 0).Err())
}

// lost tells of a limiter whose value or configuration is to be rebuilt from more members
// than Peek looks at: then the time until a request could pass is a lower bound.
func (s *drawnState) lost(state map[string]limitertest.KeyState) bool {
	return (state[s.keys.Config].Type == "" || state[s.keys.Value].Type == "") && len(state[s.keys.Permits].Members) > 256
}

// requireSameAnswer compares answers, whose errors name the calls.
func requireSameAnswer(t *testing.T, what string, peeked limit.Decision, peekErr error, took limit.Decision, takeErr error) {
	t.Helper()
	if takeErr != nil || peekErr != nil {
		require.Error(t, takeErr, "%s: %v", what, peekErr)
		require.EqualError(t, peekErr, strings.Replace(takeErr.Error(), "Take ", "Peek ", 1), what)
	}
	require.Equal(t, took, peeked, what)
}

// eachDrawn runs test with so many states beside each of these Redissons, drawn by that seed,
// and checks that all that test may see came up more often than that.
func eachDrawn(
	t *testing.T, states int, seed [2]uint64, least map[string]int, test func(t *testing.T, s *drawnState, client *rratelimiter.Client),
) {
	t.Helper()
	for _, version := range []string{"", "3.20.0", "3.16.8", "3.16.0", windowed} {
		t.Run("beside "+version, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				draw := rand.New(rand.NewPCG(seed[0], seed[1]))
				client := scenario{}.newClient(t, rdb, version)
				seen := map[string]int{}
				for range states {
					s := drawState(t, draw, rdb, redistest.Name(t))
					s.seen = seen
					test(t, s, client)
				}
				for what, n := range least {
					assert.Greater(t, seen[what], n, "%s: %v", what, seen)
				}
			})
		})
	}
}

// Peek answers what Take answers at the same moment, whatever the state, and leaves it as
// it is.
func TestPeekAnswersWhatTakeWould(t *testing.T) {
	t.Parallel()
	least := map[string]int{"granted": 20, "refused": 20, "failed": 20}
	eachDrawn(t, 120, [2]uint64{1, 2}, least, func(t *testing.T, s *drawnState, client *rratelimiter.Client) {
		var opts []rratelimiter.LimiterOption
		if s.IntN(2) == 0 {
			opts = append(opts, rratelimiter.WithDefault(s.cfg))
		}
		name := s.keys.Config
		l := client.RateLimiter(name, opts...)
		for range 3 { // later the handle knows more
			permits := 1 + s.Int64N(s.cfg.Rate+1)
			if s.IntN(2) == 0 {
				permits = 1 + s.Int64N(3)
			}
			state, lives := limitertest.ReadState(t, s.rdb, name), limitertest.TTLs(t, s.rdb, name)
			peeked, peekErr := l.Peek(t.Context(), permits)
			require.Equal(t, state, limitertest.ReadState(t, s.rdb, name))
			require.Equal(t, lives, limitertest.TTLs(t, s.rdb, name))
			took, takeErr := l.Take(t.Context(), permits)
			if s.lost(state) && peeked.RetryAfter < took.RetryAfter {
				peeked.RetryAfter = took.RetryAfter
			}
			what := fmt.Sprintf("%s: %d of %+v: value %v, %d members, ttl %v", name, permits, s.cfg,
				state[s.keys.Value].Text, len(state[s.keys.Permits].Members), lives)
			requireSameAnswer(t, what, peeked, peekErr, took, takeErr)
			switch {
			case takeErr != nil:
				s.seen["failed"]++
			case took.Granted:
				s.seen["granted"]++
			default:
				s.seen["refused"]++
			}
			time.Sleep(time.Duration(s.Int64N(int64(s.cfg.Interval) / 4)).Truncate(ms))
		}
	})
}

// TakeUpTo takes what Peek says is free, whatever the state.
func TestTakeUpToTakesWhatIsFree(t *testing.T) {
	t.Parallel()
	least := map[string]int{"granted": 20, "refused": 5}
	eachDrawn(t, 400, [2]uint64{11, 22}, least, func(t *testing.T, s *drawnState, client *rratelimiter.Client) {
		l := client.RateLimiter(s.keys.Config, rratelimiter.WithDefault(s.cfg))
		free := func() (int64, error) {
			d, err := l.Peek(t.Context(), 1)
			if d.Granted {
				d.Remaining++
			}
			return d.Remaining, err
		}
		there, err := free()
		if err != nil {
			return
		}
		n := 1 + s.Int64N(2*s.cfg.Rate)
		taken, d, err := l.TakeUpTo(t.Context(), n)
		require.NoError(t, err)
		require.Equal(t, min(n, there), taken, "%+v", s.cfg)
		require.Equal(t, taken > 0, d.Granted)
		require.Equal(t, there-taken, d.Remaining)
		left, err := free()
		require.NoError(t, err)
		require.GreaterOrEqual(t, left, there-taken, "a refusal finds what leaked: %+v", s.cfg)
		s.seen[map[bool]string{true: "granted", false: "refused"}[there > 0]]++
		require.NoError(t, s.rdb.FlushAll(t.Context()).Err())
	})
}

// A lease's permits are in use to Peek, so are many of a configuration that was lost, and
// what the handle remembers of refusals is nothing to it.
func TestPeekWithLeaseAndRefusals(t *testing.T) {
	t.Parallel()
	peeks := func(granted bool) step {
		return answers(granted, func(p *play) (bool, error) {
			d, err := p.l.Peek(p.Context(), 1)
			return d.Granted && d.Remaining == max(0, limitertest.Available(p, p.l)-1), err
		})
	}
	lease := rratelimiter.WithLease(rratelimiter.Lease{Permits: 50, Life: second})
	scenario{cfg: every(1000, minute), byDefault: true, steps: []step{
		ahead(lease, rratelimiter.WithRefusalCache()), times(200, take(1)), peeks(true),
		set(every(1, minute)), take(1), refuse(1), loseValue, losePermits, peeks(true), refuse(1),
	}}.perform(t)
	lost := answers(true, func(p *play) (bool, error) {
		d, err := p.l.Peek(p.Context(), 1)
		return d.Remaining == 39, err
	})
	scenario{cfg: every(300, minute), byDefault: true, steps: []step{times(260, take(1)), loseConfig, lost}}.perform(t)
}
