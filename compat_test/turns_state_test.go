package compat_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/codec"
	layout "github.com/rratelimiter/rratelimiter/internal/redisson"
)

func (w *world) keysOf(l *limiter, id string) (config, value, permits string) {
	set := layout.KeysOf(l.name, id)
	if id == "" {
		return set.Config, set.Value, set.Permits
	}
	return set.Config, set.ClientValue, set.ClientPermits
}

// read returns what Redis holds of a limiter.
func (w *world) read(t *testing.T, l *limiter) *state {
	t.Helper()
	ctx := t.Context()
	type pairReply struct {
		value            *redis.StringCmd
		rows             *redis.ZSliceCmd
		valueTTL, setTTL *redis.DurationCmd
	}
	pipe := w.rdb.Pipeline()
	config, configTTL := pipe.HGetAll(ctx, l.name), pipe.PTTL(ctx, l.name)
	replies := make(map[string]pairReply)
	for id := range l.state.pairs {
		_, value, permits := w.keysOf(l, id)
		replies[id] = pairReply{
			pipe.Get(ctx, value), pipe.ZRangeWithScores(ctx, permits, 0, -1),
			pipe.PTTL(ctx, value), pipe.PTTL(ctx, permits),
		}
	}
	from := time.Now().UnixMilli()
	if _, err := pipe.Exec(ctx); !errors.Is(err, redis.Nil) {
		require.NoError(t, err)
	}
	now := span{from, time.Now().UnixMilli()}
	end := func(ttl *redis.DurationCmd) span {
		if ttl.Val() < 0 {
			return never
		}
		return now.add(ttl.Val().Milliseconds())
	}

	s := &state{configEnd: end(configTTL), pairs: make(map[string]*pair)}
	if len(config.Val()) > 0 {
		s.config = config.Val()
		delete(s.config, "answered") // of a repeat, where an answer was long in coming
		delete(s.config, "default")  // which tells when the Client was made: see TestDefaultBesideRedisson
	}
	for id, reply := range replies {
		p := &pair{valueEnd: end(reply.valueTTL), rowsEnd: end(reply.setTTL)}
		if reply.value.Err() == nil {
			p.hasValue = true
			n, err := reply.value.Int64()
			require.NoError(t, err)
			require.Equal(t, strconv.FormatInt(n, 10), reply.value.Val(), "the value's text")
			p.value = n
		}
		for _, z := range reply.rows.Val() {
			member, err := codec.Parse(z.Member.(string))
			require.NoError(t, err)
			at := int64(z.Score)
			require.InDelta(t, z.Score, at, 0, "a score of whole milliseconds")
			p.rows = append(p.rows, row{
				member: z.Member.(string), layout: member.Layout, permits: int64(member.Permits), at: span{at, at},
			})
		}
		// Calls that meet more rows than one script may touch do more than the
		// model knows.
		require.Less(t, len(p.rows), 200, "rows")
		s.pairs[id] = p
	}
	return s
}

// requireNoOtherKeys checks that the limiters have no key that the model does
// not know of.
func (w *world) requireNoOtherKeys(t *testing.T) {
	t.Helper()
	known := make(map[string]bool)
	for _, l := range w.limiters {
		for id := range l.state.pairs {
			config, value, permits := w.keysOf(l, id)
			known[config], known[value], known[permits] = true, true, true
		}
	}
	for _, l := range w.limiters {
		it := w.rdb.Scan(t.Context(), 0, "*"+l.name+"*", 1000).Iterator()
		for it.Next(t.Context()) {
			require.True(t, known[it.Val()], "key %q", it.Val())
		}
		require.NoError(t, it.Err())
	}
}
