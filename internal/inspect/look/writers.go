package look

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

// Writers are the releases of Redisson, from First to Last, that keep permits in use in one way.
type Writers struct {
	Layout      codec.Layout // of members; 0 if the value alone counts a fixed window
	First, Last string
}

// AllWriters are in the order of the releases.
var AllWriters = []Writers{
	{0, "3.12.0", "3.13.2"},
	{codec.LayoutB, "3.13.3", "3.16.3"},
	{codec.LayoutC, "3.16.4", "3.16.8"},
	{codec.LayoutD1, "3.17.0", "3.20.1"},
	{codec.LayoutD2, "3.21.0", "4.7.0"},
}

// String names the releases.
func (w Writers) String() string { return w.First + " to " + w.Last }

// Share reports whether both can read what the other writes.
func (w Writers) Share(other codec.Layout) bool {
	return w.Layout == other || w.Layout >= codec.LayoutD1 && other >= codec.LayoutD1
}

// looked is how many of a set's oldest members, and of its newest, tell who wrote it.
const looked = 100

// OldestWriters returns the oldest Redissons whose permits a limiter holds, nil if it holds none. If
// each client has permits of its own, they are those of the client with that id.
func OldestWriters(ctx context.Context, rdb nodes.Client, name, id string) (w *Writers, err error) {
	k := redisson.KeysOf(name, id)
	err = nodes.On(ctx, rdb, k.Config, func(ctx context.Context, node nodes.Client) error {
		pipe := node.Pipeline()
		fields, whole := pipe.HMGet(ctx, k.Config, FieldNames...), pipe.PTTL(ctx, k.Config)
		shared, own := readWritten(ctx, pipe, k.Value, k.Permits), readWritten(ctx, pipe, k.ClientValue, k.ClientPermits)
		cmds, _ := pipe.Exec(ctx) // each command tells for itself
		for _, cmd := range cmds {
			if err := cmd.Err(); err != nil && !ofContent(err) {
				return err
			}
		}
		cfg, err := ParseFields(fields.Val())
		pair := shared
		if cfg.PerClient() {
			pair = own
		}
		// The call that follows reports a configuration that can't be read.
		if err == nil && (id != "" || !cfg.PerClient()) {
			w = pair.writers(cfg, whole.Val())
		}
		return nil
	})
	return w, err
}

// written is what of a pair tells who wrote it.
type written struct {
	value          *redis.StringCmd
	ttl, setTTL    *redis.DurationCmd
	oldest, newest *redis.StringSliceCmd
}

func readWritten(ctx context.Context, pipe redis.Pipeliner, value, set string) written {
	return written{
		pipe.Get(ctx, value), pipe.PTTL(ctx, value), pipe.PTTL(ctx, set),
		pipe.ZRange(ctx, set, 0, looked-1), pipe.ZRange(ctx, set, -looked, -1),
	}
}

// writers returns the oldest of them.
func (r written) writers(cfg Fields, whole time.Duration) *Writers {
	s := snapshot{
		value:   keyState{kind: "string", ttl: r.ttl.Val()},
		config:  keyState{ttl: whole},
		permits: keyState{ttl: r.setTTL.Val()},
	}
	// A client's own value ends with its set, or by itself once that has gone.
	if n, err := r.value.Int64(); err == nil && n < cfg.Rate && !cfg.PerClient() && s.isWindow(time.Duration(cfg.IntervalMS)*time.Millisecond) {
		return &AllWriters[0]
	}
	var found *Writers
	for _, packed := range append(r.oldest.Val(), r.newest.Val()...) {
		m, err := codec.Parse(packed)
		if err != nil {
			continue // no Redisson wrote it
		}
		for i := range AllWriters {
			if w := &AllWriters[i]; w.Layout == min(m.Layout, codec.LayoutD2) && (found == nil || w.Layout < found.Layout) {
				found = w
			}
		}
	}
	return found
}
