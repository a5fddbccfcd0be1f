package lua

import (
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// runRaw runs a script by its text, as nothing is cached where memory is full.
func runRaw(t *testing.T, rdb *redis.Client, s *Script, keys []string, args ...any) error {
	t.Helper()
	return rdb.Eval(t.Context(), s.Source, keys, args...).Err()
}

// Where memory is full, a script that needs some is refused before it changes
// anything, whatever is there; one that frees some goes on.
func TestFullMemory(t *testing.T) {
	t.Parallel()
	for _, version := range redistest.Versions() {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()
			rdb := redistest.StartServer(t, version).Client(t, nil)
			ctx := t.Context()
			full := func(on bool) {
				limit := "0"
				if on {
					limit = "1"
				}
				require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", limit).Err())
			}
			hash := func(name string) { rdb.HSet(ctx, name, "rate", 10, "interval", 3600000, "type", 0) }
			stale := func(name string) { rdb.ZAdd(ctx, name+":p", redis.Z{Score: 1, Member: member(3)}) }
			states := map[string]func(name string){
				"new":                      func(string) {},
				"known":                    func(name string) { hash(name); rdb.Set(ctx, name+":v", 10, 0) },
				"lost config":              func(name string) { rdb.Set(ctx, name+":v", 10, 0) },
				"lost config, run out":     func(name string) { rdb.Set(ctx, name+":v", 7, 0); stale(name) },
				"lost config and value":    stale,
				"lost value":               hash,
				"lost value, run out":      func(name string) { hash(name); stale(name) },
				"full value, run out":      func(name string) { hash(name); rdb.Set(ctx, name+":v", 10, 0); stale(name) },
				"log or bucket or counter": func(name string) { rdb.ZAdd(ctx, name, redis.Z{Score: 1, Member: "id:7"}) },
				"counter without an end":   func(name string) { rdb.Set(ctx, name, 1, 0) },
			}
			calls := map[string]struct {
				script *Script
				args   []any
				keys   int
			}{
				"acquire":      {Acquire, []any{member(3), "3", "10 3600000 0 0"}, 5},
				"acquire all":  {AcquireAll, []any{member(3), 3, "", "", "", "10 3600000 0 0"}, 5},
				"try set rate": {TrySetRate, []any{10, 3600000, 0, 0, "", ""}, 5},
				"set rate":     {SetRate, []any{20, 1000, 0, 0, 1, 0, ""}, 5},
				"migrate":      {Migrate, []any{member(0), ""}, 5},
				"sliding log":  {SlidingLog, []any{"10", 1000, "", "id", "", "1", "1"}, 1},
				"fixed window": {FixedWindow, []any{10, 1000, 1, 1}, 1},
				"token bucket": {TokenBucket, []any{10, 1, 1, 0, 10000, 1, 1}, 2},
			}
			for state, prepare := range states {
				for name, call := range calls {
					key := "{" + strconv.Quote(state+name) + "}"
					keys := []string{key, key + ":v", key + ":cv", key + ":p", key + ":cp"}[:call.keys]
					full(false)
					prepare(key)
					before := dump(t, rdb, keys)
					full(true)
					err := runRaw(t, rdb, call.script, keys, call.args...)
					if err != nil {
						assert.Equal(t, before, dump(t, rdb, keys), "%s of %s: %v", name, state, err)
					} else {
						same := assert.ObjectsAreEqual(before, dump(t, rdb, keys))
						assert.True(t, same, "%s of %s was not refused", name, state)
					}
				}
			}
			full(false)
			hash("f")
			full(true)
			for _, s := range []*Script{Reset, ClearExpire, Delete} {
				assert.NoError(t, runRaw(t, rdb, s, []string{"f", "f:v", "f:cv", "f:p", "f:cp"}, ""), s.Name)
			}
		})
	}
}

func dump(t *testing.T, rdb *redis.Client, keys []string) []string {
	t.Helper()
	all := make([]string, len(keys))
	for i, key := range keys {
		text, err := rdb.Dump(t.Context(), key).Result()
		if err != nil {
			require.ErrorIs(t, err, redis.Nil)
		}
		all[i] = text
	}
	return all
}

// A repeated give-back tells where it can't know whether it has run.
func TestGiveBackInDoubt(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for left, want := range map[byte]int64{5: 2, 4: 2, 3: 2, 1: -1} {
			name := redistest.Name(t) + strconv.Itoa(int(left))
			keys := []string{name, name + ":v", name + ":cv", name + ":p", name + ":cp"}
			now, err := rdb.Time(t.Context()).Result()
			require.NoError(t, err)
			rdb.HSet(t.Context(), name, "rate", 10, "interval", 3600000, "type", 0)
			rdb.Set(t.Context(), name+":v", 10-int(left), 0)
			rdb.ZAdd(t.Context(), name+":p", redis.Z{Score: float64(now.UnixMilli()), Member: member(left)})
			got, err := rdb.Eval(t.Context(), GiveBack.Source, keys, member(5), 2, "1", 1000, "", "own").Int64()
			require.NoError(t, err)
			assert.Equal(t, want, got, "%d left", left)
		}
	})
}
