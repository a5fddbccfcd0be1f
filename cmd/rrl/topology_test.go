package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
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

// servers are what commands are run against, and how they are told of it.
type servers struct {
	flags []string
	env   map[string]string
	rdb   redis.UniversalClient // of a user with all rights
}

func (s servers) rrl(t *testing.T, args ...string) outcome {
	t.Helper()
	return rrlWith(t.Context(), s.env, append(args, s.flags...)...)
}

// topologies are all that rrl knows; each starts servers of its own.
var topologies = map[string]func(*testing.T) servers{
	"single": func(t *testing.T) servers {
		s := redistest.StartRedis(t)
		return servers{flags: []string{"--redis", s.Addr()}, rdb: s.Client(t, nil)}
	},
	"resp2": func(t *testing.T) servers {
		s := redistest.StartRedis(t)
		return servers{flags: []string{"--redis", s.URL() + "?protocol=2"}, rdb: s.Client(t, nil)}
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
		return servers{flags: []string{"--redis", s.Addr(), "--user", user}, env: map[string]string{"REDIS_PASSWORD": user}, rdb: s.Client(t, nil)}
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

func TestEachCommandOnEachTopology(t *testing.T) {
	t.Parallel()
	for name, start := range topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			const limiters = 12 // that fall to all of three servers
			for i := range limiters {
				lifeOf(t, s, fmt.Sprintf("api:%02d", i))
			}
			var all []listed
			got := s.rrl(t, "ls", "api:*", "--json")
			require.NoError(t, json.Unmarshal([]byte(got.stdout), &all), "%+v", got)
			require.Len(t, all, limiters)
			assert.Equal(t, outcome{0, strings.Join(namesOf(all), "\n") + "\n:4\n", ""},
				completion(rrlWith(t.Context(), s.env, slices.Concat([]string{"__complete"}, s.flags, []string{"show", "api:"})...)))
			perClient(t, s)
			others(t, s)
			got = s.rrl(t, "delete", "api:03")
			assert.Equal(t, outcome{exitYes, "deleted api:03\n", ""}, got)
			if len(s.flags) > 0 {
				got = s.rrl(t, "demo", "--tries", "3", "--rate", "3/1m")
				assert.Equal(t, exitYes, got.code, "%+v", got)
				assert.Contains(t, got.stdout, "never over the limit")
			}
		})
	}
}

// completion leaves out what cobra says about it.
func completion(got outcome) outcome {
	got.stderr = ""
	return got
}

func namesOf(all []listed) (names []string) {
	for _, l := range all {
		names = append(names, l.Name)
	}
	return names
}

// lifeOf takes a limiter through all commands, and leaves it.
func lifeOf(t *testing.T, s servers, name string) {
	t.Helper()
	for _, step := range []struct {
		args   []string
		code   int
		stdout string
	}{
		{[]string{"try-set-rate", name, "5/1h"}, exitYes, name + " has 5 permits every 1h\n"},
		{[]string{"set-rate", name, "6/1h"}, exitYes, name + " has 6 permits every 1h\n"},
		{[]string{"update-rate", name, "5/1h", "--keep-state"}, exitYes, name + " has 5 permits every 1h\n"},
		{[]string{"acquire", name, "-n", "3"}, exitYes, "granted 3 permits, 2 left\n"},
		{[]string{"acquire", name, "-n", "3"}, exitNo, ""},
		{[]string{"release", name}, exitYes, "gave back 1 permit\n"},
		{[]string{"expire", name, "2h"}, exitYes, name + " expires in 2h\n"},
		{[]string{"expire", name, "--clear"}, exitYes, name + " no longer expires\n"},
		{[]string{"show", name}, exitYes, ""},
		{[]string{"migrate", name}, exitYes, name + ": 0 members rewritten\n"},
	} {
		got := s.rrl(t, step.args...)
		require.Equal(t, step.code, got.code, "%q: %+v", step.args, got)
		require.Empty(t, got.stderr, "%q", step.args)
		if step.stdout != "" {
			require.Equal(t, step.stdout, got.stdout, "%q", step.args)
		}
	}
	found := object(t, s.rrl(t, "show", name, "--json").stdout)
	assert.Empty(t, found["anomalies"])
	assert.InDelta(t, 3, found["states"].([]any)[0].(map[string]any)["free"], 0, "%+v", found)
}

// perClient has two clients take permits, one of which wrote as an older
// Redisson does.
func perClient(t *testing.T, s servers) {
	t.Helper()
	require.Zero(t, s.rrl(t, "set-rate", "mail", "5/1h", "--type", "per-client").code)
	for _, id := range []string{"a", "b"} {
		require.Zero(t, s.rrl(t, "acquire", "mail", "--client-id", id).code)
	}
	older := redis.Z{Score: float64(time.Now().UnixMilli()), Member: member(t, codec.LayoutD1, 7, 1)}
	require.NoError(t, s.rdb.ZAdd(t.Context(), "{mail}:permits:b", older).Err())
	require.NoError(t, s.rdb.Decr(t.Context(), "{mail}:value:b").Err())
	found := object(t, s.rrl(t, "show", "mail", "--json").stdout)
	assert.InDelta(t, 2, found["clients"], 0)
	assert.Equal(t, outcome{exitYes, "mail: 1 member rewritten\n", ""}, s.rrl(t, "migrate", "mail"))
}

// others runs the commands for limiters of other kinds.
func others(t *testing.T, s servers) {
	t.Helper()
	for _, key := range []string{"k1", "k2", "k3", "k4"} {
		for _, args := range [][]string{
			{"take", "fixed-window", "w:" + key, "--limit", "5/1h"},
			{"take", "counter", "c:" + key, "--limit", "5/1h"},
			{"take", "sliding-log", "l:" + key, "--limit", "5/1h"},
			{"take", "token-bucket", "{b:" + key + "}", "--capacity", "5", "--refill", "1/1h"},
			{"threshold", "l:" + key, "3"},
			{"threshold", "l:" + key},
			{"threshold", "l:" + key, "--reset"},
		} {
			got := s.rrl(t, args...)
			require.Equal(t, exitYes, got.code, "%q: %+v", args, got)
			require.Empty(t, got.stderr, "%q", args)
		}
	}
}

func TestListTellsOfAMasterThatIsGone(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	s := servers{flags: []string{"--redis", strings.Join(c.Addrs(), ","), "--connect-timeout", "1s"}}
	for i := range 12 {
		require.Zero(t, s.rrl(t, "set-rate", fmt.Sprintf("api:%02d", i), "5/1h").code)
	}
	gone := c.Nodes()[1]
	gone.Kill()
	got := s.rrl(t, "ls")
	assert.Equal(t, exitError, got.code)
	assert.Regexp(t, `(?m)^api:\d\d `, got.stdout)
	assert.Less(t, strings.Count(got.stdout, "\n"), 13)
	assert.Regexp(t, `^rrl: the list is not complete: .*`+gone.Addr()+`.*\n$`, got.stderr)

	got = s.rrl(t, "ls", "--json")
	assert.Equal(t, exitError, got.code)
	var all []listed
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &all))
	assert.NotEmpty(t, all)
	assert.Contains(t, object(t, got.stderr)["error"], gone.Addr())
}

// A user of the least rights who may only use some names can try all that needs no
// list of names.
func TestAUserOfAPrefix(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	user := redistest.AddUser(t, server, nil, redistest.LeastCommands, redistest.KeysWithPrefix("api:")).Options().Username
	url := "redis://" + user + ":" + user + "@" + server.Addr()
	for _, command := range []string{
		"set-rate api:x 5/1h", "acquire api:x", "release api:x", "watch api:x --count 1", "demo --prefix api: --tries 1",
		"bench --prefix api: --time 100ms --callers 2 --limiters 3", "doctor api:*", "delete api:x",
	} {
		got := rrl(t, append(strings.Fields(command), "--redis", url)...)
		assert.Equal(t, exitYes, got.code, "%s: %+v", command, got)
	}
	assert.Empty(t, redistest.Keys(t, server.Client(t, nil), "*"))
}

func TestARightThatIsMissingIsNamed(t *testing.T) {
	t.Parallel()
	for _, v := range redistest.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			rightsAreNamed(t, redistest.StartServer(t, v), v != redistest.Redis62 && v != redistest.Redis70)
		})
	}
}

// rightsAreNamed tells whether a server names the command that a script may not
// run.
func rightsAreNamed(t *testing.T, server *redistest.Server, inScripts bool) {
	t.Helper()
	ask := func(rules string, args ...string) string {
		t.Helper()
		user := redistest.AddUser(t, server, nil, rules).Options().Username
		got := rrl(t, append(args, "--redis", "redis://"+user+":"+user+"@"+server.Addr())...)
		assert.Equal(t, exitError, got.code, "%+v", got)
		return strings.ReplaceAll(got.stderr, user, "USER")
	}
	require.Zero(t, rrl(t, "set-rate", "orders", "5/1h", "--redis", server.Addr()).code)
	hset := "may not run a command that a limiter's script needs (NOPERM)"
	if inScripts {
		hset = "may not run HSET (NOPERM): ACL SETUSER USER +hset"
	}
	for _, c := range []struct{ rules, words, command string }{
		{"~*", "may not run SCAN (NOPERM): ACL SETUSER USER +scan", "ls"},
		{"~* +scan", "may not run HMGET (NOPERM): ACL SETUSER USER +hmget", "ls"},
		{"~*", "may not run EVALSHA (NOPERM)", "acquire orders"},
		{"+@all ~other", "may not use these keys (NOPERM): a limiter called NAME needs ACL SETUSER USER ~NAME ~{NAME}:*", "acquire orders"},
		{"+@all ~other", "may not use these keys (NOPERM)", "show orders"},
		{"~*", "may not run MULTI (NOPERM)", "show orders"},
		{"~* +@all -hset", hset, "set-rate orders 7/1h"},
	} {
		stderr := ask(c.rules, strings.Fields(c.command)...)
		assert.Contains(t, stderr, `rrl: user "USER" `, c.command)
		assert.Contains(t, stderr, c.words, c.command)
	}
}

func TestAServerThatHangsMeanwhileEndsTheCommandInTime(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	require.Zero(t, rrl(t, "set-rate", "orders", "5/1h", "--redis", server.Addr()).code)
	for _, args := range [][]string{{"acquire", "orders"}, {"show", "orders"}, {"ls"}, {"set-rate", "orders", "5/1h"}, {"delete", "orders"}} {
		t.Run(args[0], func(t *testing.T) { // at once, as each waits in vain for seconds
			t.Parallel()
			proxy := redistest.StartProxy(t, server.Addr())
			proxy.OnCommand(func(c redistest.Command) redistest.Action {
				if c.Name() == "hello" {
					return redistest.Action{}
				}
				return redistest.Action{}.After(time.Hour)
			})
			start := time.Now()
			got := rrl(t, append(args, "--redis", proxy.Addr())...)
			assert.Equal(t, exitError, got.code, "%q: %+v", args, got)
			assert.Contains(t, got.stderr, proxy.Addr(), args)
			assert.Less(t, time.Since(start), 10*time.Second, args)
		})
	}
}

func TestPasswordFile(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t, "--requirepass", "secret")
	path := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(path, []byte("secret\n"), 0o600))
	assert.Zero(t, rrl(t, "ls", "--redis", server.Addr(), "--password-file", path).code)
	for _, command := range []string{"ls", "show x", "acquire x", "set-rate x 1/1s", "take counter x --limit 1/1s"} {
		got := rrl(t, append(strings.Fields(command), "--redis", server.Addr())...)
		assert.Equal(t, exitError, got.code)
		assert.Contains(t, got.stderr, server.Addr()+" wants a password (NOAUTH): give it", command)
	}
}

func TestProgressLeavesNoTrace(t *testing.T) {
	t.Parallel()
	w := newWalk(nil, "")
	w.add([]listed{{Name: "a"}}, 1000, 500)
	assert.Equal(t, "[###############               ]  50% of 1000 keys, 1 limiter", w.progress(80))
	w.add([]listed{{Name: "b"}}, 0, 5000)
	assert.Equal(t, "[######] 100% of 1000 keys, 2 limiters", w.progress(39))
	assert.Equal(t, " 100% of 1000 keys", w.progress(19))
	var to bytes.Buffer
	shown := make(chan struct{}, 100)
	stop := drawProgress(&to, func() string {
		shown <- struct{}{}
		return "half"
	}, 0)
	<-shown
	stop()
	assert.Contains(t, to.String(), "half")
	assert.True(t, strings.HasSuffix(to.String(), "\r\x1b[K"))

	stop = drawProgress(&to, func() string { return "never" }, time.Hour)
	stop()
	assert.NotContains(t, to.String(), "never")
}
