package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// topologies are all that rrl knows; each starts servers of its own.
var topologies = map[string]func(*testing.T) servers{
	"miniredis": func(t *testing.T) servers { return newServer(t).servers },
	"single":    func(t *testing.T) servers { return alone(t) },
	"resp2": func(t *testing.T) servers {
		s := alone(t)
		return servers{flags: []string{"--redis", "redis://" + s.addr + "?protocol=2"}, rdb: s.rdb}
	},
	"unix socket": func(t *testing.T) servers {
		s := redistest.StartRedis(t)
		return servers{env: map[string]string{"REDIS_URL": s.Socket()}, rdb: s.Client(t, nil)}
	},
	"tls": func(t *testing.T) servers {
		s := redistest.StartTLS(t)
		ca, cert, key := s.TLSFiles()
		return servers{flags: []string{"--redis", s.Addr(), "--tls-ca", ca, "--tls-cert", cert, "--tls-key", key}, rdb: s.Client(t, nil)}
	},
	"acl": func(t *testing.T) servers {
		s := redistest.StartRedis(t)
		user := redistest.AddUser(t, s, nil, redistest.LeastCommands, rrlRights, "~*").Options().Username
		env := map[string]string{"REDIS_PASSWORD": user}
		return servers{flags: []string{"--redis", s.Addr(), "--user", user}, env: env, rdb: s.Client(t, nil)}
	},
	"sentinel": func(t *testing.T) servers {
		s := redistest.StartSentinel(t, 1, 30*time.Second)
		name, addrs := s.Watch()
		return servers{flags: []string{"--redis", strings.Join(addrs, ","), "--sentinel-master", name}, rdb: s.Client(t, nil)}
	},
	"cluster": func(t *testing.T) servers {
		c := redistest.StartCluster(t, 3, 1)
		return servers{env: map[string]string{"REDIS_URL": strings.Join(c.Addrs(), ",")}, rdb: c.Client(t, nil)}
	},
	"a node of a cluster": func(t *testing.T) servers {
		c := redistest.StartCluster(t, 3, 0)
		return servers{flags: []string{"--redis", c.Addrs()[2]}, rdb: c.Client(t, nil)}
	},
	"acl of a cluster": func(t *testing.T) servers {
		c := redistest.StartCluster(t, 3, 0)
		user := c.AddUser(t, nil, redistest.LeastCommands, redistest.ClusterCommands, rrlRights, "~*").Options().Username
		return servers{flags: []string{"--redis", "redis://" + user + ":" + user + "@" + c.Addrs()[0]}, rdb: c.Client(t, nil)}
	},
	"ring": func(t *testing.T) servers {
		r := redistest.StartRing(t, 3)
		var addrs []string
		for i, s := range r.Servers {
			addrs = append(addrs, fmt.Sprintf("shard%d=%s", i, s.Addr()))
		}
		return servers{flags: []string{"--ring", "--redis", strings.Join(addrs, ",")}, rdb: r.Client(t, nil)}
	},
}

// rrlRights are what rrl's commands need beside what limiters do: docs/rrl.md
// has them.
const rrlRights = "+scan +multi +exec +hexists"

// life takes a limiter called NAME through all commands.
const life = `
update-rate NAME 5/1h                   -> NAME has no rate, nothing changed
delete NAME                             -> NAME is no limiter, nothing changed
expire NAME 1h                          -> NAME is no limiter, nothing changed
show NAME                               -> NAME: no such limiter
watch NAME                              -> NAME: no such limiter
try-set-rate NAME 5/1h                  => NAME has 5 permits every 1h
try-set-rate NAME 6/1h                  -> NAME has a rate already, nothing changed
acquire NAME                            => granted 1 permit, 4 left
acquire NAME --permits 4                => granted 4 permits, 0 left
release NAME -n 2                       => gave back 2 permits
acquire NAME --permits 2 --wait         => granted 2 permits...
acquire NAME --timeout 1s               -> denied 1 permit...
update-rate NAME 7/1h --keep-state      => NAME has 7 permits every 1h
acquire NAME --permits 2 --timeout 10s  => granted 2 permits...
acquire NAME --timeout 0                -> denied 1 permit, 0 left, try again in ...
show NAME                               => ...
migrate NAME                            => NAME: 0 members rewritten
set-rate NAME 2/1m --type per-client --keep-alive 1h => NAME has 2 permits every 1m for each client, deleted when unused for 1h
acquire NAME --permits 2 --client-id a  => granted 2 permits, 0 left
acquire NAME --permits 2 --client-id b  => granted 2 permits, 0 left
expire NAME 90s                         => NAME expires in 1m30s
expire NAME 1d                          => NAME expires in 24h
expire NAME --clear                     => NAME no longer expires
delete NAME --client-id a               => deleted NAME
delete NAME --client-id a               -> NAME is no limiter, nothing changed
`

// others uses limiters of other kinds, of the key NAME.
const others = `
take fixed-window w:NAME --limit 5/1h                    => granted 1 permit, 4 left
take counter c:NAME --limit 5/1h                         => granted 1 permit, 4 left
take sliding-log l:NAME --limit 5/1h                     => granted 1 permit, 4 left
take token-bucket {b:NAME} --capacity 5 --refill 1/1h    => granted 1 permit, 4 left
threshold l:NAME 3                                       => l:NAME has a threshold of 3
threshold l:NAME                                         => l:NAME has a threshold of 3
threshold l:NAME --reset                                 => l:NAME has no threshold
`

func TestEachCommandOnEachTopology(t *testing.T) {
	t.Parallel()
	for name, start := range topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t).in(t)
			for _, key := range []string{"k1", "k2", "k3", "k4"} { // that fall to all of three servers
				s.play(life+others, "NAME", key)
			}
			const limiters = 12
			for i := range limiters {
				s.play(fmt.Sprintf("set-rate api:%02d 20/1h => ...\nacquire api:%02[1]d -n %d => ...\n", i, i+1))
			}
			looksAt(t, s, limiters)
			perClient(t, s)
			if len(s.flags) > 0 {
				got := s.rrl("demo --tries 3 --rate 3/1m")
				assert.Equal(t, exitYes, got.code, "%+v", got)
				assert.Contains(t, got.stdout, "never over the limit")
			}
		})
	}
}

// looksAt looks at limiters api:00 and so on of 20 permits, 1 of which is in use, 2 and
// so on, in all ways.
func looksAt(t *testing.T, s servers, limiters int) {
	t.Helper()
	var names []string
	for _, l := range s.list("api:*") {
		names = append(names, l.Name)
	}
	require.Len(t, names, limiters)
	completed := rrlWith(t.Context(), s.env, slices.Concat([]string{"__complete"}, s.flags, []string{"show", "api:"})...)
	assert.Equal(t, strings.Join(names, "\n")+"\n:4\n", completed.stdout)

	var top struct {
		Known    int
		Limiters []struct {
			Name string
			Free int
		}
	}
	require.NoError(t, json.Unmarshal([]byte(s.rrl("top api:* --count 1 --json").stdout), &top))
	require.Equal(t, limiters, top.Known)
	for i, l := range top.Limiters {
		assert.Equal(t, names[limiters-1-i], l.Name)
		assert.Equal(t, 20-limiters+i, l.Free)
	}
	for i, name := range names {
		found := s.show("%s", name)
		assert.Empty(t, found.Anomalies)
		assert.EqualValues(t, 19-i, *found.States[0].Free)
		assert.Contains(t, s.rrl("watch %s --count 1", name).stdout, fmt.Sprintf("free %d of 20", 19-i))
	}
	doctor := s.rrl("doctor api:* --json")
	assert.NotEqual(t, exitError, doctor.code, "%+v", doctor) // of slow round trips, as a busy machine's, it warns
	checked, _ := object(t, doctor.stdout)["limiters"].(map[string]any)
	assert.InDelta(t, limiters, checked["checked"], 0)
	bench := s.rrl("bench --prefix api: --time 300ms --callers 4 --limiters 30 --json")
	require.Equal(t, exitYes, bench.code, "%+v", bench)
	results, _ := object(t, bench.stdout)["results"].([]any)
	assert.Len(t, results, 3)
	assert.Len(t, s.list("api:*"), limiters, "the bench's are gone")
}

// perClient has two clients take permits, one of which wrote as an older
// Redisson does.
func perClient(t *testing.T, s servers) {
	t.Helper()
	s.play("set-rate mail 5/1h --type per-client => ...\nacquire mail --client-id a => ...\nacquire mail --client-id b => ...\n")
	older := redis.Z{Score: float64(time.Now().UnixMilli()), Member: member(t, codec.LayoutD1, 7, 1)}
	require.NoError(t, s.rdb.ZAdd(t.Context(), "{mail}:permits:b", older).Err())
	require.NoError(t, s.rdb.Decr(t.Context(), "{mail}:value:b").Err())
	assert.Equal(t, 2, s.show("mail").Clients)
	s.play("migrate mail => mail: 1 member rewritten\n")
}

func TestALimiterThatIsBeingMovedIsListedOnce(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 2, 0)
	s := servers{t: t, flags: []string{"--redis", c.Addrs()[0]}}
	for i := range 8 {
		require.Zero(t, s.rrl("set-rate {shop}:%d 5/1h", i).code)
	}
	slot := c.Slot(t, "{shop}")
	from, _ := c.Owner(t, slot)
	to := c.Nodes()[0]
	if to == from {
		to = c.Nodes()[1]
	}
	move := c.StartMove(t, slot, to)
	assert.Len(t, s.list("*"), 8)
	move.MoveKeys(t, "{shop}:1", "{shop}:2")
	assert.Len(t, s.list("*"), 8)
	for _, command := range []string{"show", "acquire", "delete"} {
		var got outcome
		assert.Eventually(t, func() bool { // a busy machine answers nothing in time
			got = s.rrl("%s {shop}:1", command)
			return got.code == exitError && strings.Contains(got.stderr, "the cluster moves these keys to another node just now: try again")
		}, time.Minute, time.Millisecond, "%s: %v", command, &got)
	}
	move.MoveKeys(t, "{shop}:0", "{shop}:3", "{shop}:4", "{shop}:5", "{shop}:6", "{shop}:7")
	move.Finish(t)
	assert.Len(t, s.list("*"), 8)
	assert.Zero(t, s.rrl("show {shop}:1").code)
}

func TestAReplicaOfAClusterLeadsToItsMasters(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 1)
	for _, node := range c.Nodes() {
		if node.IsMaster(t) {
			continue
		}
		s := servers{t: t, flags: []string{"--redis", node.Addr()}}
		for _, name := range []string{"a", "b", "c", "d"} {
			assert.Zero(t, s.rrl("set-rate %s 5/1h", name).code)
		}
		assert.Len(t, s.list("*"), 4)
	}
}

func TestListTellsOfAMasterThatIsGone(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	s := servers{t: t, flags: []string{"--redis", strings.Join(c.Addrs(), ","), "--connect-timeout", "1s"}}
	for i := range 12 {
		require.Zero(t, s.rrl("set-rate api:%02d 5/1h", i).code)
	}
	gone := c.Nodes()[1]
	gone.Kill()
	got := s.rrl("ls")
	assert.Equal(t, exitError, got.code)
	assert.Regexp(t, `(?m)^api:\d\d `, got.stdout)
	assert.Less(t, strings.Count(got.stdout, "\n"), 13)
	assert.Regexp(t, `^rrl: the list is not complete: .*`+gone.Addr()+`.*\n$`, got.stderr)

	got = s.rrl("ls --json")
	assert.Equal(t, exitError, got.code)
	var all []listed
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &all))
	assert.NotEmpty(t, all)
	assert.Contains(t, object(t, got.stderr)["error"], gone.Addr())
}
