package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
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
		"doctor --self-test":        {"eval", 3, false, exitError, interrupted},
		"top":                       {"", 1, true, exitYes, ""},
		"watch orders --json":       {"", 5, false, exitYes, ""},
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.play("set-rate orders 1/1h => ...\nacquire orders => ...\n")
			proxy := redistest.StartProxy(t, s.addr)
			ctx, cancel := context.WithCancel(t.Context())
			sent := 0
			proxy.OnCommand(func(command redistest.Command) redistest.Action {
				if name := command.Name(); name == "hello" || name == "client" || c.at != "" && name != c.at {
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
			got := rrlWith(ctx, nil, story.Words(line+" --connect-timeout 1h --redis redis://"+proxy.Addr()+"?read_timeout=1h")...)
			assert.Equal(t, c.code, got.code, "%+v", got)
			assert.Equal(t, c.stderr, got.stderr)
			for _, key := range s.Keys() {
				assert.NotContains(t, key, "rrl-", "a bench's or a self-test's")
			}
		})
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
	limitertest.Each(t, limitertest.Rows(redistest.Versions()...), func(t *testing.T, v redistest.Version) {
		server := redistest.StartServer(t, v)
		require.Zero(t, rrl(t, "set-rate orders 5/1h --redis %s", server.Addr()).code)
		hset := "may not run HSET (NOPERM): ACL SETUSER USER +hset"
		if v == redistest.Redis62 || v == redistest.Redis70 { // which do not name what a script may not run
			hset = "may not run a command that a limiter's script needs (NOPERM)"
		}
		for _, c := range []struct{ rules, line, words string }{
			{"~*", "ls", "may not run SCAN (NOPERM): ACL SETUSER USER +scan"},
			{"~*", "acquire orders", "may not run EVALSHA (NOPERM)"},
			{"+@all ~other", "acquire orders", "may not use these keys (NOPERM): a limiter called NAME needs ACL SETUSER USER ~NAME ~{NAME}:*"},
			{"+@all ~other", "show orders", "may not use these keys (NOPERM)"},
			{"~* +@all -hset", "set-rate orders 7/1h", hset},
		} {
			user := redistest.Username(redistest.AddUser(t, server, nil, c.rules))
			got := rrl(t, "%s --redis redis://%s:%s@%s", c.line, user, user, server.Addr())
			assert.Equal(t, exitError, got.code, "%+v", got)
			assert.Contains(t, strings.ReplaceAll(got.stderr, user, "USER"), `rrl: user "USER" `+c.words, c.line)
		}
	})
}

// topologies are all that rrl knows; each starts servers of its own.
var topologies = map[string]func(*testing.T) servers{
	"miniredis": func(t *testing.T) servers { return newServer(t).servers },
	"single":    func(t *testing.T) servers { return alone(t) },
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
	limitertest.Named(t, topologies, func(t *testing.T, name string, start func(*testing.T) servers) {
		s := start(t)
		s.t = t
		keys := []string{"k1"}
		if name == "ring" || name == "cluster" {
			keys = append(keys, "k2", "k3", "k4") // they fall to all of three servers
		}
		life := limitertest.Must(os.ReadFile("testdata/life.txt"))(t)
		for _, key := range keys {
			s.play(string(life), "NAME", key)
		}
		s.play(string(limitertest.Must(os.ReadFile("testdata/many.txt"))(t)), "NOW", fmt.Sprint(time.Now().UnixMilli()))
		doctor := s.rrl("doctor api:* --json")
		assert.NotEqual(t, exitError, doctor.code, "%+v", doctor) // of slow round trips, as a busy machine's, it warns
		assert.Contains(t, doctor.stdout, `"checked":6,`)
	})
}

func TestList_MigratingLimiterIsListedOnce(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 2, 0)
	s := servers{t: t, flags: []string{"--redis", c.Addrs()[0]}}
	for i := range 4 {
		require.Zero(t, s.rrl("set-rate {shop}:%d 5/1h", i).code)
	}
	slot, to := c.Slot(t, "{shop}"), c.Nodes()[0]
	if from, _ := c.Owner(t, slot); from == to {
		to = c.Nodes()[1]
	}
	c.StartMove(t, slot, to).MoveKeys(t, "{shop}:1", "{shop}:2")
	assert.Len(t, s.list("*"), 4)
	assert.Eventually(t, func() bool { // it asks until its time is over; a busy machine answers nothing by then
		return strings.Contains(s.rrl("show {shop}:1 --connect-timeout 3s").stderr, "the cluster is moving these keys to another node: try again")
	}, time.Minute, time.Millisecond)
}

func TestList_ReportsMasterThatIsDown(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	s := servers{t: t, flags: []string{"--redis", strings.Join(c.Addrs(), ",")}}
	for i := range 12 {
		require.Zero(t, s.rrl("set-rate api:%02d 5/1h", i).code)
	}
	s.flags = append(s.flags, "--connect-timeout", "20s")
	gone := c.Nodes()[1]
	gone.Kill()
	for line, listed := range map[string]string{"ls": `(?m)^api:\d\d `, "ls --json": `"name":"api:\d\d"`} {
		got := s.rrl("%s", line)
		assert.Equal(t, exitError, got.code)
		assert.Regexp(t, listed, got.stdout)
		assert.Regexp(t, `the list is not complete: .*`+gone.Addr(), got.stderr)
	}
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

func TestParseRate(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	for text, want := range map[string]rratelimiter.Config{
		"100/1s": rratelimiter.PerSecond(100), "1/1ms": limitertest.Every(1, time.Millisecond), "7/1m30s": limitertest.Every(7, 90*time.Second),
		"3/1.5s": limitertest.Every(3, 1500*time.Millisecond), "9007199254740991/1s": rratelimiter.PerSecond(rratelimiter.MaxRate),
		"10/s": rratelimiter.PerSecond(10), "10/d": rratelimiter.PerDay(10), "5/1d12h": limitertest.Every(5, 36*time.Hour),
		"5/0.5d": limitertest.Every(5, day/2), "1/106751d": limitertest.Every(1, 106_751*day),
	} {
		permits, interval, err := parseRate(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, limitertest.Every(permits, interval), text)
		permits, interval, err = parseRate(words.ShortRate(permits, interval.Milliseconds()))
		require.NoError(t, err, text)
		assert.Equal(t, want, limitertest.Every(permits, interval), "%s, as rrl writes it", text)
	}
}

func TestParseRateRefuses(t *testing.T) {
	t.Parallel()
	for why, texts := range map[string][]string{
		"want permits/interval, such as 100/s, 5/500ms or 1000/1d":  {"", "100"},
		"PERMITS is not a number of permits, 1 to 9007199254740991": {"/1s", "0/s", "0/1s", "many/1s", "1.5/1s", "-1/1s", "9007199254740992/1s"},
		"INTERVAL is not a whole number of milliseconds":            {"1/1.5ms"},
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
