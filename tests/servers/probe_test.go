package servers_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// The probe of a server with a breaker is refused whenever grants are, whatever a key
// holds. It changes nothing, and needs only rights that decisions need.
func TestTheProbeIsRefusedWheneverGrantsAre(t *testing.T) {
	t.Parallel()
	for _, version := range redistest.Versions() {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()
			s := redistest.StartServer(t, version, "--dbfilename", "dump")
			rdb, ctx := s.Client(t, nil), t.Context()
			set := func(name, value string) func() {
				return func() { require.NoError(t, rdb.ConfigSet(ctx, name, value).Err()) }
			}
			replicaOf := func(host, port string) func() {
				return func() { require.NoError(t, rdb.ReplicaOf(ctx, host, port).Err()) }
			}
			saved := func(status string) {
				require.Eventually(t, func() bool {
					_ = rdb.BgSave(ctx).Err()
					return strings.Contains(rdb.Info(ctx, "persistence").Val(), "rdb_last_bgsave_status:"+status)
				}, time.Minute, 20*time.Millisecond)
			}
			set("save", "3600 1000")()
			blocker := filepath.Join(rdb.ConfigGet(ctx, "dir").Val()["dir"], "dump")

			client := limitertest.NewClient(t, rdb, rratelimiter.WithCallTimeout(2*time.Second))
			l := client.RateLimiter("orders")
			limitertest.MustTrySetRate(t, l, limitertest.Every(1000, time.Hour))
			require.NoError(t, rdb.Set(ctx, "string", 7, time.Hour).Err())
			require.NoError(t, rdb.ZAdd(ctx, "log", redis.Z{Score: 1, Member: "m"}).Err())
			conns := map[string]*script.Conn{
				"SET":  script.NewConn(redistest.AddUser(t, s, nil, "~*", "+eval +evalsha +get +set +pttl +incrby +pexpire"), 2*time.Second),
				"ZADD": script.NewConn(redistest.AddUser(t, s, nil, "~*", "+eval +evalsha +zadd +zcard +pttl +pexpire"), 2*time.Second),
			}
			probe := func(want bool, why string) {
				t.Helper()
				var wg sync.WaitGroup
				for _, key := range []string{"none", "string", "log", "orders"} {
					for write, conn := range conns {
						wg.Go(func() {
							assert.Equal(t, want, script.Answers(lane.New(conn, nil), script.KeysOf(key), write), "%s: %s of %s", why, write, key)
						})
					}
				}
				wg.Wait()
			}
			held := func() (all []string) {
				for _, key := range rdb.Keys(ctx, "*").Val() {
					all = append(all, key+rdb.Dump(ctx, key).Val())
				}
				return append(all, changes(t, rdb))
			}
			before := held()
			probe(true, "works")
			assert.ElementsMatch(t, before, held())
			for _, state := range []struct {
				code      string
				make, end func()
			}{
				{"READONLY", replicaOf("127.0.0.1", "1"), replicaOf("NO", "ONE")},
				{"OOM", set("maxmemory", "1"), set("maxmemory", "0")},
				{"NOREPLICAS", set("min-replicas-to-write", "1"), set("min-replicas-to-write", "0")},
				{"MISCONF", func() {
					require.NoError(t, os.Mkdir(blocker, 0o700))
					saved("err")
				}, func() {
					require.NoError(t, os.Remove(blocker))
					saved("ok")
				}},
			} {
				state.make()
				var err error
				require.EventuallyWithT(t, func(c *assert.CollectT) {
					_, err = l.Take(ctx, 1)
					if version != redistest.Redis62 || state.code != "NOREPLICAS" { // it lets scripts write
						assert.ErrorContains(c, err, state.code, state.code)
					}
				}, time.Minute, time.Millisecond)
				probe(err == nil, state.code)
				state.end()
				probe(true, "again, after "+state.code)
			}
		})
	}
}

// changes returns how often the server's data was changed since it was last saved.
func changes(t *testing.T, rdb *redis.Client) string {
	t.Helper()
	_, rest, found := strings.Cut(rdb.Info(t.Context(), "persistence").Val(), "rdb_changes_since_last_save:")
	require.True(t, found)
	count, _, _ := strings.Cut(rest, "\r\n")
	return count
}
