package redisson_test

import (
	"context"
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

// Peek answers what Take answers at the same moment, whatever the state, and leaves it as
// it is.
func TestPeekAnswersWhatTakeWould(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"", "3.20.0", "3.16.8", "3.16.0", "3.12.3"} {
		t.Run("beside "+version, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				draw := rand.New(rand.NewPCG(1, 2))
				opts := []rratelimiter.Option{rratelimiter.WithClientID(ownID)}
				if version != "" {
					opts = append(opts, rratelimiter.WithRedissonVersion(version))
				}
				client := limitertest.NewClient(t, rdb, opts...)
				granted, refused, failed := 0, 0, 0
				for i := range 120 {
					name := fmt.Sprint("limiter ", i)
					s := drawState(t, draw, rdb, name)
					var handle []rratelimiter.LimiterOption
					if draw.IntN(2) == 0 {
						handle = append(handle, rratelimiter.WithDefault(s.cfg))
					}
					l := client.RateLimiter(name, handle...)
					for range 3 { // later the handle knows more
						permits := 1 + draw.Int64N(s.cfg.Rate+1)
						if draw.IntN(2) == 0 {
							permits = 1 + draw.Int64N(3)
						}
						state, lives := limitertest.ReadState(t, rdb, name), limitertest.TTLs(t, rdb, name)
						peeked, peekErr := l.Peek(t.Context(), permits)
						require.Equal(t, state, limitertest.ReadState(t, rdb, name))
						require.Equal(t, lives, limitertest.TTLs(t, rdb, name))
						took, takeErr := l.Take(t.Context(), permits)
						if s.lost(state) && peeked.RetryAfter < took.RetryAfter {
							peeked.RetryAfter = took.RetryAfter
						}
						requireSameAnswer(t, fmt.Sprintf("%s: %d of %+v: value %v, %d members, ttl %v", name, permits, s.cfg,
							state[s.keys.Value].Text, len(state[s.keys.Permits].Members), lives), peeked, peekErr, took, takeErr)
						switch {
						case takeErr != nil:
							failed++
						case took.Granted:
							granted++
						default:
							refused++
						}
						time.Sleep(time.Duration(draw.Int64N(int64(s.cfg.Interval) / 4)).Truncate(time.Millisecond))
					}
				}
				for _, n := range []int{granted, refused, failed} {
					assert.Greater(t, n, 20, "%d granted, %d refused, %d failed", granted, refused, failed)
				}
			})
		})
	}
}

// A lease's permits are in use to Peek, and what the handle remembers of refusals
// is nothing to it.
func TestPeekWithLeaseAndRefusals(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		ctx := context.Background()
		l := limitertest.NewHandle(t, rdb, rratelimiter.WithDefault(every(1000, time.Minute)),
			rratelimiter.WithLease(rratelimiter.Lease{Permits: 50, Life: time.Second}), rratelimiter.WithRefusalCache())
		for range 200 {
			limitertest.MustAcquire(t, l, 1)
		}
		d, err := l.Peek(ctx, 1)
		require.NoError(t, err)
		assert.Equal(t, limitertest.Available(t, l)-1, d.Remaining)

		require.NoError(t, l.SetRate(ctx, every(1, time.Minute)))
		limitertest.MustAcquire(t, l, 1)
		limitertest.MustRefuse(t, l, 1)
		require.NoError(t, rdb.Del(ctx, redisson.KeysOf(l.Name(), "").List()[1:]...).Err())
		d, err = l.Peek(ctx, 1)
		require.NoError(t, err)
		assert.True(t, d.Granted)
		limitertest.MustRefuse(t, l, 1)
	})
}

// TakeUpTo takes what Peek tells to be free, whatever the state.
func TestTakeUpToTakesWhatIsFree(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"4.7.0", "3.20.0", "3.16.8", "3.16.0", "3.12.3"} {
		t.Run("beside "+version, func(t *testing.T) {
			t.Parallel()
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
				draw := rand.New(rand.NewPCG(8, 5))
				client := limitertest.NewClient(t, rdb, rratelimiter.WithClientID(ownID), rratelimiter.WithRedissonVersion(version))
				granted, refused := 0, 0
				for range 100 {
					name := redistest.Name(t)
					s := drawState(t, draw, rdb, name)
					l := client.RateLimiter(name, rratelimiter.WithDefault(s.cfg))
					one, err := l.Peek(t.Context(), 1)
					if err != nil {
						continue
					}
					free := one.Remaining
					if one.Granted {
						free++
						granted++
					} else {
						refused++
					}
					n := 1 + draw.Int64N(2*s.cfg.Rate)
					taken, d, err := l.TakeUpTo(t.Context(), n)
					require.NoError(t, err)
					require.Equal(t, min(n, free), taken, "%+v", s.cfg)
					require.Equal(t, taken > 0, d.Granted)
					require.Equal(t, free-taken, d.Remaining)
					after, err := l.Peek(t.Context(), 1)
					require.NoError(t, err)
					left := after.Remaining
					if after.Granted {
						left++
					}
					require.GreaterOrEqual(t, left, free-taken, "a refusal finds what leaked: %+v", s.cfg)
					require.NoError(t, rdb.FlushAll(t.Context()).Err())
				}
				assert.Greater(t, granted, 20)
				assert.Greater(t, refused, 5)
			})
		})
	}
}
