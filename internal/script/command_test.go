package script_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestWhatGoesAhead(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		name := redistest.Name(t)
		hash, counter := name+":{a}", name+":{b}" // in two slots
		own := newScript("return redis.call('INCRBY', KEYS[1], 1) -- " + name)
		conn := newConn(rdb)
		run := func(ahead ...any) (any, *redis.Cmd, error) {
			call := script.Call{Script: own, Keys: script.KeysOf(counter), Ahead: ahead, Args: script.Constant{}}
			reply, err := conn.Run(t.Context(), &call)
			return reply, call.AheadAnswer(), err
		}

		reply, ahead, err := run("hget", hash, "field")
		require.NoError(t, err)
		assert.Equal(t, int64(1), reply, "run once, though the server did not know it")
		require.ErrorIs(t, ahead.Err(), redis.Nil)

		require.NoError(t, rdb.HSet(t.Context(), hash, "field", "7").Err())
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				_, ahead, err := run("hget", hash, "field")
				assert.NoError(t, err)
				text, err := ahead.Text()
				assert.NoError(t, err)
				assert.Equal(t, "7", text)
			})
		}
		wg.Wait()
		assert.Equal(t, "21", rdb.Get(t.Context(), counter).Val())

		reply, ahead, err = run("hget", counter, "field")
		require.NoError(t, err, "what goes ahead has an error of its own")
		assert.Equal(t, int64(22), reply)
		assert.True(t, redis.HasErrorPrefix(ahead.Err(), "WRONGTYPE"), ahead.Err())
	})
}

func TestTogether(t *testing.T) {
	t.Parallel()
	single := script.NewConn(redis.NewClient(&redis.Options{Addr: "127.0.0.1:0"}), script.DefaultTimeout)
	cluster := script.NewConn(redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:0"}}), script.DefaultTimeout)
	for _, tc := range []struct {
		a, b string
		tag  bool // they have the same hash tag, or are the same
	}{
		{"a", "b", false},
		{"a", "a", true},
		{"{t}a", "b{t}", true},
		{"{t}a{u}", "{t}b", true},
		{"{}a", "{}b", false},
		{"{a", "{b", false},
		{"a}", "b}", false},
		{"{{a}}x", "{{a}}y", true},
	} {
		assert.True(t, single.Together(tc.a, tc.b))
		assert.Equal(t, tc.tag, cluster.Together(tc.a, tc.b), "%s %s", tc.a, tc.b)
	}
}

// slow holds commands of a name back, and may lose their answers.
type slow struct {
	wire

	name string
	hold time.Duration
	lose bool
	seen int
}

func (s *slow) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() != s.name {
			return err
		}
		s.mu.Lock()
		s.seen++
		hold, lose := s.hold, s.lose
		s.mu.Unlock()
		time.Sleep(hold)
		if lose {
			err = context.DeadlineExceeded
			cmd.SetErr(err)
		}
		return err
	}
}

func (s *slow) set(hold time.Duration, lose bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold, s.lose, s.seen = hold, lose, 0
}

func TestDo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		s := &slow{name: "incr"}
		rdb.AddHook(s)
		conn := newConn(rdb)
		incr := func(ctx context.Context, reads bool) (*redis.Cmd, error) {
			return script.Do(ctx, conn, reads, "incr", "n")
		}

		cmd, err := incr(t.Context(), false)
		require.NoError(t, err)
		assert.Equal(t, int64(1), cmd.Val())
		_, err = script.Do(t.Context(), conn, true, "get", "nothing")
		require.ErrorIs(t, err, redis.Nil)
		require.NotErrorIs(t, err, script.ErrLost)
		_, err = script.Do(t.Context(), conn, false, "hset", "n", "field", 1)
		require.True(t, redis.HasErrorPrefix(err, "WRONGTYPE"), err)

		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = incr(ended, false)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, script.ErrLost, "it was not sent")
		assert.Equal(t, 1, s.seen)

		s.set(time.Minute, false)
		for _, reads := range []bool{false, true} {
			start := time.Now()
			soon, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err = incr(soon, reads)
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Equal(t, time.Second, time.Since(start))
			assert.Equal(t, !reads, errors.Is(err, script.ErrLost))
		}
		time.Sleep(time.Hour)

		s.set(0, true)
		_, err = incr(t.Context(), false)
		require.ErrorIs(t, err, script.ErrLost)
		assert.Equal(t, 1, s.seen, "a command that writes is not repeated")
	})
}
