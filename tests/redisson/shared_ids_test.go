package redisson_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// scriptedRedis counts the commands, and lets a test act, or fail, before each.
type scriptedRedis struct {
	rratelimiter.Redis
	n      int
	before func(n int, cmd redis.Cmder) error
}

func (z *scriptedRedis) Process(ctx context.Context, cmd redis.Cmder) error {
	z.n++
	if z.before != nil {
		if err := z.before(z.n, cmd); err != nil {
			cmd.SetErr(err)
			return err
		}
	}
	return z.Redis.Process(ctx, cmd)
}

// Two clients whose counters meet.
func TestClientsWhoseShortIdsMeet(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	ctx := t.Context()
	a := rratelimiter.New(rdb, rratelimiter.WithRedissonVersion("3.15.5"))
	z := &scriptedRedis{Redis: rdb}
	b := rratelimiter.New(z, rratelimiter.WithRedissonVersion("3.15.5"))
	name := redistest.Name(t)
	la, lb := a.RateLimiter(name), b.RateLimiter(name)
	_, err := la.TrySetRate(ctx, rratelimiter.Config{Rate: 100000, Interval: time.Hour})
	require.NoError(t, err)
	engine.Of(b).Identities().Follow(engine.Of(a).Identities())
	for range 3000 {
		ok, err := la.TryAcquire(ctx, 1, 0)
		require.NoError(t, err)
		require.True(t, ok)
	}
	cctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	ok, err := lb.TryAcquire(cctx, 1, 0)
	require.NoError(t, err)
	assert.True(t, ok)
	require.NoError(t, b.Close(ctx))
	assert.Less(t, z.n, 20)
}

// Its note of an attempt that was decided means another attempt.
func TestAnIdThatAnotherClientsRepeatHad(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	ctx := t.Context()
	z := &scriptedRedis{Redis: rdb}
	a, b := rratelimiter.New(z, rratelimiter.WithRedissonVersion("3.15.5")), rratelimiter.New(rdb, rratelimiter.WithRedissonVersion("3.15.5"))
	name := redistest.Name(t)
	la, lb := a.RateLimiter(name), b.RateLimiter(name)
	_, err := la.TrySetRate(ctx, rratelimiter.Config{Rate: 1000, Interval: time.Hour})
	require.NoError(t, err)
	engine.Of(b).Identities().Follow(engine.Of(a).Identities())
	first := true
	z.before = func(n int, cmd redis.Cmder) error {
		if first && cmd.Name() == "evalsha" {
			first = false
			_ = z.Redis.Process(ctx, cmd)
			return errors.New("EOF of the wire")
		}
		return nil
	}
	ok, err := la.TryAcquire(ctx, 1, 0)
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = lb.TryAcquire(ctx, 2, 0)
	require.NoError(t, err)
	assert.True(t, ok)
}

// Migrate between a lost answer and its repeat, by the same Client.
func TestMigrateWaitsForWhatIsInDoubt(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	ctx := t.Context()
	z := &scriptedRedis{Redis: rdb}
	a := rratelimiter.New(z, rratelimiter.WithRedissonVersion("3.17.7"))
	la := a.RateLimiter(redistest.Name(t))
	_, err := la.TrySetRate(ctx, rratelimiter.Config{Rate: 10, Interval: time.Hour})
	require.NoError(t, err)
	state := 0
	var migrated chan error
	z.before = func(n int, cmd redis.Cmder) error {
		if cmd.Name() != "evalsha" && cmd.Name() != "eval" {
			return nil
		}
		switch {
		case state == 0 && isScript(cmd, lua.Acquire):
			state = 1
			_ = z.Redis.Process(ctx, cmd)
			if cmd.Err() != nil { // NOSCRIPT
				state = 0
				return cmd.Err()
			}
			return errors.New("EOF of the wire")
		case state == 1:
			state = 2
			migrated = make(chan error, 1)
			go func() {
				_, err := a.Migrate(ctx, la.Name())
				migrated <- err
			}()
		}
		return nil
	}
	ok, err := la.TryAcquire(ctx, 3, 0)
	require.NoError(t, err)
	require.True(t, ok)
	require.NoError(t, <-migrated)
	free, err := la.AvailablePermits(ctx)
	require.NoError(t, err)
	assert.EqualValues(t, 7, free)
}

// Rows that run out between two pages hide one that is to be rewritten.
func TestMigrateLeavesNoneOutThoughRowsRunOut(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		ctx := t.Context()
		z := &scriptedRedis{Redis: rdb}
		a := rratelimiter.New(z)
		name := redistest.Name(t)
		la := a.RateLimiter(name)
		_, err := la.TrySetRate(ctx, rratelimiter.Config{Rate: 10000, Interval: time.Minute})
		require.NoError(t, err)
		n := rratelimiter.New(rdb, rratelimiter.WithRedissonVersion("3.27.2")).RateLimiter(name)
		for range 300 {
			_, err = n.TryAcquire(ctx, 1, 0)
			require.NoError(t, err)
		}
		time.Sleep(30 * time.Second)
		c := rratelimiter.New(rdb, rratelimiter.WithRedissonVersion("3.16.8")).RateLimiter(name)
		_, err = c.TryAcquire(ctx, 5, 0)
		require.NoError(t, err)
		for range 10 {
			_, err = n.TryAcquire(ctx, 1, 0)
			require.NoError(t, err)
		}
		calls := 0
		z.before = func(_ int, cmd redis.Cmder) error {
			if cmd.Name() == "evalsha" || cmd.Name() == "eval" {
				if token, _ := cmd.Args()[len(cmd.Args())-1].(string); cmd.Args()[1] == lua.Migrate.SHA && strings.HasPrefix(token, "from:256:") {
					calls++
					if calls == 1 {
						time.Sleep(600 * time.Millisecond)
					}
				}
			}
			return nil
		}
		time.Sleep(29700 * time.Millisecond)
		_, err = a.Migrate(ctx, name)
		require.NoError(t, err)
		require.Positive(t, calls)
		layouts := map[int]int{}
		for _, m := range rdb.ZRange(ctx, "{"+name+"}:permits", 0, -1).Val() {
			layouts[len(m)]++
		}
		assert.Zero(t, layouts[20], "%v", layouts)
	})
}

// 256 members of 32 bits each are the most.
func TestMigrateOfAWindowTooLargeForMembers(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		ctx := t.Context()
		a := rratelimiter.New(rdb)
		name := redistest.Name(t)
		la := a.RateLimiter(name)
		_, err := la.TrySetRate(ctx, rratelimiter.Config{Rate: 1 << 45, Interval: time.Minute})
		require.NoError(t, err)
		rdb.Set(ctx, "{"+name+"}:value", 1, time.Minute)
		_, err = a.Migrate(ctx, name)
		require.ErrorIs(t, err, rratelimiter.ErrCorrupt)
		free, err := la.AvailablePermits(ctx)
		require.NoError(t, err)
		assert.EqualValues(t, 1, free)
	})
}

func isScript(cmd redis.Cmder, s *lua.Script) bool {
	return (cmd.Name() == "evalsha" || cmd.Name() == "eval") && (cmd.Args()[1] == s.SHA || cmd.Args()[1] == s.Source)
}

// A rate set soon after a window began makes another one that ends soon after it.
func TestWindowGivesNothingBackToOneThatBeganSoon(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		ctx := t.Context()
		z := &scriptedRedis{Redis: rdb}
		name := redistest.Name(t)
		c, other := rratelimiter.New(z, rratelimiter.WithRedissonVersion("3.12.3")), rratelimiter.New(rdb, rratelimiter.WithRedissonVersion("3.12.3")).RateLimiter(name)
		l := c.RateLimiter(name)
		cfg := rratelimiter.Config{Rate: 10, Interval: time.Minute}
		_, err := l.TrySetRate(ctx, cfg)
		require.NoError(t, err)
		cctx, cancel := context.WithCancel(ctx)
		var once sync.Once
		z.before = func(n int, cmd redis.Cmder) error {
			switch {
			case isScript(cmd, lua.Acquire):
				cancel()
				time.Sleep(time.Millisecond) // until the caller has gone
			case isScript(cmd, lua.GiveBack):
				once.Do(func() {
					time.Sleep(20 * time.Millisecond)
					require.NoError(t, other.SetRate(ctx, cfg))
					ok, err := other.TryAcquire(ctx, 10, 0)
					require.NoError(t, err)
					require.True(t, ok)
				})
			}
			return nil
		}
		_, err = l.TryAcquire(cctx, 4, 0)
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, c.Close(ctx))
		free, err := other.AvailablePermits(ctx)
		require.NoError(t, err)
		assert.Zero(t, free)
	})
}

// The value at the rate beside thousands of rows that have run out.
func TestRowsThatRanOutGoThoughTheLimiterIsFull(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		ctx := t.Context()
		c := rratelimiter.New(rdb, rratelimiter.WithRedissonVersion("3.13.6"))
		l := c.RateLimiter(redistest.Name(t))
		_, err := l.TrySetRate(ctx, rratelimiter.Config{Rate: 20000, Interval: time.Minute})
		require.NoError(t, err)
		var zs []redis.Z
		now := time.Now().UnixMilli()
		for i := range 9000 {
			m := engine.Of(c).Identities().NextIn(nil, codec.LayoutB, 1)
			m[4] = 1
			zs = append(zs, redis.Z{Score: float64(now + int64(i%2)), Member: string(m)})
		}
		rdb.ZAdd(ctx, limitertest.KeysOf(l).Permits, zs...)
		// A Redisson that found the value gone made a full one.
		rdb.Set(ctx, limitertest.KeysOf(l).Value, 20000, 0)
		time.Sleep(30 * time.Second)
		ok, err := l.TryAcquire(ctx, 1, 0)
		require.NoError(t, err)
		require.True(t, ok)
		time.Sleep(31 * time.Second)
		ok, err = l.TryAcquire(ctx, 1, 0)
		require.NoError(t, err)
		require.True(t, ok)
		assert.EqualValues(t, 2, rdb.ZCard(ctx, limitertest.KeysOf(l).Permits).Val())
	})
}
