package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/story"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

func TestErrors_ServerUnreachable(t *testing.T) {
	t.Parallel()
	gone := servers{t: t, flags: []string{"--redis", "redis://127.0.0.1:1"}}
	for _, line := range []string{
		"acquire orders", "release orders", "set-rate orders 1/1s", "delete orders", "expire orders 1s", "show orders", "ls", "demo",
		"top", "watch a", "doctor", "bench", "take counter k --limit 1/1s", "take sliding-log k --limit 1/1s",
		"take token-bucket k --capacity 1 --refill 1/1s", "threshold k",
	} {
		gone.fails("connection refused", story.Words(line)...)
	}
}

// behind returns the server s, reached through a proxy.
func (s servers) behind(t *testing.T) (servers, *redistest.Proxy) {
	t.Helper()
	proxy := redistest.StartProxy(t, s.addr)
	return servers{t: t, flags: []string{"--redis", proxy.Addr()}}, proxy
}

// greets reports whether a command is one by which a connection begins.
func greets(c redistest.Command) bool { return c.Name() == "hello" || c.Name() == "client" }

// ends runs a command that must come to its end by itself: its context has none.
func (s servers) ends(ctx context.Context, line string) outcome {
	s.t.Helper()
	done := make(chan outcome, 1)
	go func() { done <- rrlWith(ctx, s.env, append(story.Words(line), s.flags...)...) }()
	select {
	case got := <-done:
		return got
	case <-time.After(time.Minute):
		require.Fail(s.t, "it does not end", line)
		return outcome{}
	}
}

// Ctrl-C ends a command at once, whatever it waits for, and however long it would wait.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	const interrupted = "rrl: interrupted\n"
	for line, c := range map[string]struct {
		at     string // a command, "" for any
		times  int    // it is interrupted when it was sent so often
		hangs  bool   // the server no longer answers then
		code   int
		stderr string
	}{
		"acquire orders --wait":     {"evalsha", 1, false, exitError, interrupted},
		"bench --prefix orders":     {"", 20, false, exitError, interrupted},
		"update-rate o* 9/1h --yes": {"", 1, false, exitError, interrupted},
		"ls":                        {"scan", 1, true, exitError, interrupted},
		"doctor":                    {"", 1, true, exitError, interrupted},
		"doctor --self-test":        {"eval", 3, false, exitError, interrupted},
		"top":                       {"", 1, true, exitYes, ""},
		"watch orders":              {"", 1, true, exitYes, ""},

		"top --json --interval 100ms":          {"", 20, false, exitYes, ""},
		"watch orders --json --interval 100ms": {"", 20, false, exitYes, ""},
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.play("set-rate orders 1/1h => ...\nacquire orders => ...\n")
			through, proxy := s.behind(t)
			ctx, cancel := context.WithCancel(t.Context())
			sent := 0
			proxy.OnCommand(func(command redistest.Command) redistest.Action {
				if greets(command) || c.at != "" && command.Name() != c.at {
					return redistest.Pass
				}
				if sent++; sent < c.times {
					return redistest.Pass
				}
				cancel()
				if c.hangs {
					return redistest.Pass.After(time.Hour)
				}
				return redistest.Pass
			})
			through.flags = []string{"--connect-timeout", "1h", "--redis", "redis://" + proxy.Addr() + "?read_timeout=1h"}
			got := through.ends(ctx, line)
			assert.Equal(t, c.code, got.code, "%+v", got)
			assert.Equal(t, c.stderr, got.stderr)
			for _, key := range s.Keys() {
				assert.NotContains(t, key, "rrl-", "a bench's or a self-test's")
			}
		})
	}
}

// A command waits for a few answers at most, each for as long as the client reads.
func TestErrors_HungServerEndsCommandInTime(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.play("set-rate orders 5/1h => ...\n")
	for line, most := range map[string]int{"acquire orders": 4, "show orders": 2, "ls": 2, "set-rate orders 5/1h": 4, "delete orders": 4} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			through, proxy := s.behind(t)
			var waited redistest.List[int]
			proxy.OnCommand(func(c redistest.Command) redistest.Action {
				if greets(c) {
					return redistest.Pass
				}
				waited.Add(c.Conn)
				return redistest.Pass.After(time.Hour)
			})
			through.flags = []string{"--redis", "redis://" + proxy.Addr() + "?read_timeout=100ms"}
			got := through.ends(t.Context(), line)
			assert.Equal(t, exitError, got.code, "%+v", got)
			assert.Contains(t, got.stderr, proxy.Addr())
			assert.LessOrEqual(t, len(slices.Compact(waited.All())), most, "connections, each of which is given up with its answer")
		})
	}
}

func TestPasswordFile(t *testing.T) {
	t.Parallel()
	s := alone(t, "--requirepass", "secret")
	path := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(path, []byte("secret\n"), 0o600))
	assert.Zero(t, s.rrl("ls --password-file %s", path).code)
	for _, line := range []string{"ls", "show x", "acquire x", "set-rate x 1/1s", "take counter x --limit 1/1s"} {
		s.fails(s.addr+" wants a password (NOAUTH): give it", story.Words(line)...)
	}
}

func TestSetRate_ReplicaRefusesChanges(t *testing.T) {
	t.Parallel()
	master, replica := redistest.StartRedis(t), redistest.StartRedis(t)
	replica.Follow(t, master)
	rdb := master.Client(t, nil)
	require.Eventually(t, func() bool { return rdb.Wait(t.Context(), 1, time.Second).Val() == 1 }, time.Minute, time.Millisecond)
	s := servers{t: t, flags: []string{"--redis", replica.Addr(), "--connect-timeout", "3s"}}
	for _, command := range []string{"set-rate", "try-set-rate"} {
		s.fails(replica.Addr()+" is a replica, which takes no changes (READONLY)", command, "orders", "5/1h")
	}
}

// A user of the least rights for some names can try all that needs no list of names.
func TestCommands_UserRestrictedToPrefix(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	user := redistest.Username(redistest.AddUser(t, server, nil, redistest.LeastCommands, redistest.KeysWithPrefix("api:")))
	s := servers{t: t, flags: []string{"--redis", "redis://" + user + ":" + user + "@" + server.Addr()}}
	s.play(`
set-rate api:x 5/1h           => ...
acquire api:x                 => ...
release api:x                 => ...
watch api:x --once            => ...
demo --prefix api: --tries 1  => ...
bench --prefix api: --time 100ms --callers 2 --limiters 3 => ...
`)
	assert.Empty(t, s.run(t.Context(), "doctor", "api:*").stderr) // it may warn of a busy machine
	s.play("delete api:x => ...\n")
	assert.Empty(t, redistest.Keys(t, server.Client(t, nil), "*"))
}

func TestErrors_NameMissingRight(t *testing.T) {
	t.Parallel()
	for _, v := range redistest.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			server := redistest.StartServer(t, v)
			require.Zero(t, rrl(t, "set-rate orders 5/1h --redis %s", server.Addr()).code)
			hset := "may not run HSET (NOPERM): ACL SETUSER USER +hset"
			if v == redistest.Redis62 || v == redistest.Redis70 { // which do not name what a script may not run
				hset = "may not run a command that a limiter's script needs (NOPERM)"
			}
			for _, c := range []struct{ rules, line, words string }{
				{"~*", "ls", "may not run SCAN (NOPERM): ACL SETUSER USER +scan"},
				{"~* +scan", "ls", "may not run HMGET (NOPERM): ACL SETUSER USER +hmget"},
				{"~*", "acquire orders", "may not run EVALSHA (NOPERM)"},
				{"+@all ~other", "acquire orders", "may not use these keys (NOPERM): a limiter called NAME needs ACL SETUSER USER ~NAME ~{NAME}:*"},
				{"+@all ~other", "show orders", "may not use these keys (NOPERM)"},
				{"~*", "show orders", "may not run MULTI (NOPERM)"},
				{"~* +@all -hset", "set-rate orders 7/1h", hset},
			} {
				user := redistest.Username(redistest.AddUser(t, server, nil, c.rules))
				got := rrl(t, "%s --redis redis://%s:%s@%s", c.line, user, user, server.Addr())
				assert.Equal(t, exitError, got.code, "%+v", got)
				assert.Contains(t, strings.ReplaceAll(got.stderr, user, "USER"), `rrl: user "USER" `+c.words, c.line)
			}
		})
	}
}

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
		user := redistest.Username(redistest.AddUser(t, s, nil, redistest.LeastCommands, rrlRights, "~*"))
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
		user := redistest.Username(redistest.AddUser(t, c, nil, redistest.LeastCommands, redistest.ClusterCommands, rrlRights, "~*"))
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

// rrlRights are what rrl's commands need beside what limiters do: docs/rrl.md has them.
const rrlRights = "+scan +multi +exec +hexists"

func TestEachCommandOnEachTopology(t *testing.T) {
	t.Parallel()
	for name, start := range topologies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t).in(t)
			keys := []string{"k1"}
			if name == "ring" || strings.Contains(name, "cluster") {
				keys = append(keys, "k2", "k3", "k4") // they fall to all of three servers
			}
			life, err := os.ReadFile("testdata/life.txt")
			require.NoError(t, err)
			for _, key := range keys {
				s.play(string(life), "NAME", key)
			}
			looksAt(t, s)
			s.play(ofClients, "NOW", fmt.Sprint(time.Now().UnixMilli()))
			if len(s.flags) > 0 {
				got := s.rrl("demo --tries 3 --rate 3/1m")
				assert.Equal(t, exitYes, got.code, "%+v", got)
				assert.Contains(t, got.stdout, "never over the limit")
			}
		})
	}
}

// oneOfMany is a limiter of 20 permits.
const oneOfMany = `
set-rate NAME 20/1h
acquire NAME -n USED
show NAME --json      =~ "free":FREE,.*"anomalies":\[\]
watch NAME --count 1  =~ free FREE of 20
`

// looksAt looks in all ways at limiters on all masters, of which more and more is in use.
func looksAt(t *testing.T, s servers) {
	t.Helper()
	const limiters = 12
	names, byUse := "", ""
	for i := range limiters {
		name, free := fmt.Sprintf("api:%02d", i), fmt.Sprint(19-i)
		s.play(oneOfMany, "NAME", name, "USED", fmt.Sprint(i+1), "FREE", free)
		names, byUse = names+name+"\n", fmt.Sprintf(`\{"name":%q[^{]*"free":%s,.*`, name, free)+byUse
	}
	assert.Len(t, s.list("api:*"), limiters)
	completing := servers{t: t, env: s.env}
	completed := completing.run(t.Context(), slices.Concat([]string{"__complete"}, s.flags, []string{"show", "api:"})...)
	assert.Equal(t, names+":4\n", completed.stdout)
	s.play(`
top api:* --count 1 --json   =~ "known":12,.*BYUSE
update-rate api:* 30/1h --yes =~ changed 12 of 12 limiters
bench --prefix api: --time 300ms --callers 4 --limiters 30 --json =~ "results":\[(\{[^}]*\},?){3}\]
`, "BYUSE", byUse)
	assert.Len(t, s.list("api:*"), limiters, "the bench's are gone")
	doctor := s.rrl("doctor api:* --json")
	assert.NotEqual(t, exitError, doctor.code, "%+v", doctor) // of slow round trips, as a busy machine's, it warns
	assert.Contains(t, doctor.stdout, `"checked":12,`)
}

// ofClients takes permits as two clients, one of which writes as an older Redisson does.
const ofClients = `
set-rate mail 5/1h --type per-client
acquire mail --client-id a
acquire mail --client-id b
redis ZADD {mail}:permits:b NOW "\x08abcdefgh\x01\x00\x00\x00"
redis DECR {mail}:value:b
show mail --json  =~ "clients":2,
migrate mail      => mail: 1 member rewritten
`

func TestList_MigratingLimiterIsListedOnce(t *testing.T) {
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
		assert.Eventually(t, func() bool { // it asks until its time is over; a busy machine answers nothing by then
			got = s.rrl("%s {shop}:1 --connect-timeout 3s", command)
			return got.code == exitError && strings.Contains(got.stderr, "the cluster is moving these keys to another node: try again")
		}, time.Minute, time.Millisecond, "%s: %v", command, &got)
	}
	move.MoveKeys(t, "{shop}:0", "{shop}:3", "{shop}:4", "{shop}:5", "{shop}:6", "{shop}:7")
	move.Finish(t)
	assert.Len(t, s.list("*"), 8)
	assert.Zero(t, s.rrl("show {shop}:1").code)
}

func TestCluster_ReplicaLeadsToMasters(t *testing.T) {
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

func TestList_ReportsMasterThatIsDown(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	s := servers{t: t, flags: []string{"--redis", strings.Join(c.Addrs(), ",")}}
	for i := range 12 {
		require.Zero(t, s.rrl("set-rate api:%02d 5/1h", i).code)
	}
	s.flags = append(s.flags, "--connect-timeout", "3s")
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

// One of a millisecond may be over before it is read.
func TestSetRate_OverrideThatIsOver(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	a, from, to := &app{out: output.Printer{Writer: &out}}, "5/1h", "9/1h"
	rdb, _ := redistest.Mini(t)
	l := limitertest.NewLimiter(t, rdb, rratelimiter.PerHour(5))
	require.NoError(t, a.answerOverride(t.Context(), l, rateChange{From: &from, To: &to}))
	assert.Contains(t, out.String(), "5/1h -> 9/1h, override\n")
}

// Ctrl-C ends a command that waits for the answer.
func TestAsk_EndsWhenInterrupted(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	typed, keyboard := io.Pipe() // on which nothing is typed
	t.Cleanup(func() { _ = keyboard.Close() })
	s.terminal, s.input = true, func() io.Reader { return onRead{typed, cancel} }
	got := s.run(ctx, "set-rate", "orders", "5/1h")
	assert.Equal(t, outcome{exitError, "", "orders is no limiter: create it with 5 permits every 1h? [y/N] \nrrl: interrupted\n"}, got)
	assert.Empty(t, redistest.Keys(t, s.rdb, "*"))
}

// onRead calls a function when it is read.
type onRead struct {
	io.Reader

	f func()
}

func (r onRead) Read(p []byte) (int, error) {
	r.f()
	return r.Reader.Read(p)
}

func TestParseRate(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	for text, want := range map[string]rratelimiter.Config{
		"100/1s": rratelimiter.PerSecond(100), "5/500ms": limitertest.Every(5, 500*time.Millisecond), "1000/1h": rratelimiter.PerHour(1000),
		"1/1ms": limitertest.Every(1, time.Millisecond), "7/1m30s": limitertest.Every(7, 90*time.Second),
		"3/1.5s": limitertest.Every(3, 1500*time.Millisecond), "9007199254740991/1s": rratelimiter.PerSecond(rratelimiter.MaxRate),
		"10/s": rratelimiter.PerSecond(10), "10/m": rratelimiter.PerMinute(10), "10/h": rratelimiter.PerHour(10), "10/d": rratelimiter.PerDay(10),
		"10/ms": limitertest.Every(10, time.Millisecond), "10/1d": rratelimiter.PerDay(10), "5/90s": limitertest.Every(5, 90*time.Second),
		"5/1d12h": limitertest.Every(5, 36*time.Hour), "5/0.5d": limitertest.Every(5, day/2), "1/106751d": limitertest.Every(1, 106_751*day),
	} {
		permits, interval, err := parseRate(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, limitertest.Every(permits, interval), text)
	}
}

func TestParseRateRefuses(t *testing.T) {
	t.Parallel()
	for why, texts := range map[string][]string{
		"want permits/interval, such as 100/s, 5/500ms or 1000/1d": {"", "100"},
		"PERMITS is not a number of permits, 1 to 9007199254740991": {
			"/1s", "0/s", "0/1s", "many/1s", "1.5/1s", "-1/1s", "9007199254740992/1s",
		},
		"INTERVAL is not a whole number of milliseconds": {"1/1.5ms"},
		"INTERVAL is not an interval from 1ms to 106751d, such as s, 500ms, 1m30s or 1d": {
			"1/", "1/1", "1/min", "1/1s/1s", "1/0s", "1/0d", "1/-1s", "1/1us", "1/106752d", "1/99999999999d", "1/1d-1s", "1/2h1d", "1/1dd",
		},
	} {
		for _, text := range texts {
			permits, interval, _ := strings.Cut(text, "/")
			want := strings.NewReplacer("PERMITS", strconv.Quote(permits), "INTERVAL", strconv.Quote(interval)).Replace(why)
			_, _, err := parseRate(text)
			assert.ErrorContains(t, err, want, text)
		}
	}
}

func FuzzParseRate(f *testing.F) {
	for _, text := range []string{
		"100/1s", "5/500ms", "1000/1h", "1/1h0m1s", "1/", "/", "-1/1s", "1/9223372036854ms", "9007199254740991/.5s", "10/d",
		"1/106751d1h", "1/0.1d2h",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		permits, interval, err := parseRate(text)
		if err != nil {
			if permits != 0 || interval != 0 {
				t.Errorf("%q: %d, %v beside %v", text, permits, interval, err)
			}
			return
		}
		if permits < 1 || permits > rratelimiter.MaxRate || interval < time.Millisecond || interval%time.Millisecond != 0 {
			t.Errorf("%q: %d, %v", text, permits, interval)
		}
		written := words.ShortRate(permits, interval.Milliseconds())
		if again, same, err := parseRate(written); err != nil || again != permits || same != interval {
			t.Errorf("%q is written as %q, which is %d, %v, %v", text, written, again, same, err)
		}
	})
}
