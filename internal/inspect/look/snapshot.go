package look

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

// MaxMembers is how many members of a set are read at most.
const MaxMembers = 5000

// snapshot is what Redis held under a limiter's keys at one moment.
type snapshot struct {
	nowMS   int64
	config  keyState
	value   keyState
	permits keyState

	fields  []any     // as HMGET answers
	number  string    // the value's text
	card    int64     // members of the set
	members []redis.Z // the oldest MaxMembers of them
	trip    Trip
}

// Trip is a round trip to a server.
type Trip struct {
	Took time.Duration
	Cmds []redis.Cmder
}

// keyState has the type of a key and its time to live, negative for none.
type keyState struct {
	name, kind string
	ttl        time.Duration
}

// isWindow reports whether the value has an end of its own: a Redisson before
// 3.13.3 counts a fixed window by it.
func (s *snapshot) isWindow(interval time.Duration) bool {
	return s.value.kind == "string" && endsFirst(s.value.ttl, interval, s.config.ttl) && endsFirst(s.value.ttl, interval, s.permits.ttl)
}

// endsFirst reports whether a value's time to live is that of a window, beside that of another key.
func endsFirst(value, interval, other time.Duration) bool {
	return value >= 0 && value <= interval && (other < 0 || other-time.Second > value)
}

func (k keyState) exists() bool           { return k.kind != "none" }
func (k keyState) wrong(kind string) bool { return k.exists() && k.kind != kind }

// readSnapshot reads a limiter's hash and one pair of value and set, in a
// transaction that changes nothing.
func readSnapshot(ctx context.Context, rdb nodes.Client, config, value, permits string) (s *snapshot, err error) {
	err = nodes.On(ctx, rdb, config, func(ctx context.Context, node nodes.Client) error {
		s, err = readSnapshotOn(ctx, node, config, value, permits)
		return err
	})
	return s, err
}

func readSnapshotOn(ctx context.Context, rdb nodes.Client, config, value, permits string) (*snapshot, error) {
	pipe := rdb.TxPipeline()
	now := pipe.Time(ctx)
	names := []string{config, value, permits}
	var kinds [3]*redis.StatusCmd
	var ttls [3]*redis.DurationCmd
	for i, name := range names {
		kinds[i] = pipe.Type(ctx, name)
		ttls[i] = pipe.PTTL(ctx, name)
	}
	fields := pipe.HMGet(ctx, config, allFields...)
	number := pipe.Get(ctx, value)
	card := pipe.ZCard(ctx, permits)
	members := pipe.ZRangeWithScores(ctx, permits, 0, MaxMembers-1)
	start := time.Now()
	cmds, err := pipe.Exec(ctx)
	took := time.Since(start)
	// The error of the refused command says more than that all were discarded.
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && !ofContent(err) && !redis.HasErrorPrefix(err, "EXECABORT") {
			return nil, err
		}
	}
	if err != nil && !ofContent(err) {
		return nil, err
	}
	state := func(i int) keyState { return keyState{names[i], kinds[i].Val(), ttls[i].Val()} }
	return &snapshot{
		nowMS:  now.Val().UnixMilli(),
		config: state(0), value: state(1), permits: state(2),
		fields: fields.Val(), number: number.Val(), card: card.Val(), members: members.Val(),
		trip: Trip{took, cmds},
	}, nil
}

// ofContent reports whether an error is about one key's content.
func ofContent(err error) bool {
	return errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "WRONGTYPE")
}

// FindClients returns the ids of the clients that have keys of their own under
// the limiter, sorted.
func FindClients(ctx context.Context, rdb nodes.Client, name string) ([]string, error) {
	k := redisson.KeysOf(name, "")
	var ids []string
	for _, prefix := range []string{k.ClientValue, k.ClientPermits} {
		// All have the limiter's hash tag, and so are where it is.
		err := nodes.On(ctx, rdb, k.Config, func(ctx context.Context, node nodes.Client) error {
			keys := node.Scan(ctx, 0, EscapeGlob(prefix)+"*", pageKeys).Iterator()
			for keys.Next(ctx) {
				ids = append(ids, strings.TrimPrefix(keys.Val(), prefix))
			}
			return keys.Err()
		})
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// EscapeGlob returns the pattern that matches s alone.
func EscapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}
