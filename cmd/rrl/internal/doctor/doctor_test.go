package doctor

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/story"
)

func options() Options {
	return Options{Sample: 100, Time: 20 * time.Second, Check: func(context.Context, string) (Checked, error) { return Checked{}, nil }}
}

func examine(t *testing.T, rdb redistest.Client, opts Options) *Report {
	t.Helper()
	report := limitertest.Must(Run(t.Context(), rdb, opts))(t)
	for _, f := range report.Findings {
		assert.NotEmpty(t, f.Text)
		if f.Level == Warning || f.Level == Error {
			assert.NotEmpty(t, f.Reason, f.Text)
			assert.NotEmpty(t, f.Advice, f.Text)
		}
	}
	// A busy machine's round trips are slow.
	report.Findings = slices.DeleteFunc(report.Findings, func(f Finding) bool { return f.Check == "round trip" && f.Level == Warning })
	report.worst()
	return report
}

// says requires one finding of a check, of that level, whose text has a part.
func says(t *testing.T, r *Report, check string, level Level, text string) Finding {
	t.Helper()
	found := slices.DeleteFunc(slices.Clone(r.Findings), func(f Finding) bool { return f.Check != check })
	require.Len(t, found, 1, "%q among %+v", check, r.Findings)
	assert.Equal(t, level, found[0].Level, "%+v", found)
	assert.Contains(t, found[0].Text, text)
	return found[0]
}

func limiters(t *testing.T, rdb redistest.Client, prefix string, n int) {
	t.Helper()
	pipe := rdb.Pipeline()
	for i := range n {
		pipe.HSet(t.Context(), fmt.Sprint(prefix, i), "rate", 1, "interval", 1000, "type", 0)
	}
	require.NoError(t, limitertest.Second(pipe.Exec(t.Context())))
}

func TestExamine_ProxyThatChecksScripts(t *testing.T) {
	t.Parallel()
	rdb := redistest.MiniClient(t, miniredis.RunT(t), nil)
	rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		if cmds[0].Name() == "eval" {
			return redistest.Fail(cmds, redistest.AnswerError("ERR bad lua script for redis cluster, all the keys that the script uses should be passed using the KEYS array"))
		}
		return next()
	}))
	f := says(t, examine(t, rdb, options()), "rights", Error, "a proxy refuses limiters' scripts")
	assert.Contains(t, f.Advice, "script_check_enable")
	assert.Contains(t, limitertest.Must(SelfTest(t.Context(), rdb, options()))(t).Findings[0].Advice, "script_check_enable")
}

func TestExamine_HealthyServer(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartRedis(t, "--appendonly", "yes").Client(t, nil)
	r := examine(t, rdb, options())
	assert.Equal(t, Note, r.Worst, "%+v", r.Findings)
	for check, text := range map[string]string{
		"version": "Redis ", "rights": "user default may do all", "eviction": "noeviction", "persistence": "append-only", "clock": "",
		"limiters": "there are none",
	} {
		says(t, r, check, Fine, text)
	}
	says(t, r, "replication", Note, "no replicas")
	assert.Empty(t, redistest.Keys(t, rdb, "*"), "the probe's keys are gone")
}

func TestExamine_ServerConfiguration(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartRedis(t, "--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru").Client(t, nil)
	r := examine(t, rdb, options())
	assert.Equal(t, Warning, r.Worst)
	says(t, r, "eviction", Warning, "maxmemory-policy is volatile-lru")
	says(t, r, "persistence", Note, "none")
	says(t, r, "memory", Fine, "of 100 MB")
	assert.Equal(t, "eviction", r.Findings[0].Check, "the worst comes first")
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
	require.NoError(t, rdb.Set(t.Context(), "k", strings.Repeat("x", 1<<20), 0).Err())
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1mb").Err())
	require.Eventually(t, func() bool {
		_ = rdb.Set(t.Context(), "other", "v", 0)
		info, _ := rdb.Info(t.Context(), "stats").Result()
		return !strings.Contains(info, "evicted_keys:0")
	}, time.Minute, time.Millisecond)
	r = examine(t, rdb, options())
	assert.Equal(t, Error, r.Worst)
	says(t, r, "eviction", Error, "evicted since the server's start")
}

func TestExamine_WrongClock(t *testing.T) {
	t.Parallel()
	s := redistest.StartStepped(t)
	rdb := s.Client(t, nil)
	s.SetAhead(t, 10*time.Second)
	says(t, examine(t, rdb, options()), "clock", Warning, "ahead of this machine's")
	s.SetAhead(t, -10*time.Second)
	says(t, examine(t, rdb, options()), "clock", Warning, "behind this machine's")
}

func TestRights(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	with := func(rules ...string) redistest.Client { return redistest.AddUser(t, server, nil, rules...) }
	opts := options()
	r := examine(t, with(redistest.LeastCommands, "~*"), opts)
	says(t, r, "rights", Fine, "may do all that limiters do")
	says(t, r, "server", Note, "info")
	says(t, r, "limiters", Note, "could not be checked")
	says(t, r, "wait", Note, "may not run wait")
	for _, f := range examine(t, with(redistest.LeastCommands, "~*", "+wait"), opts).Findings {
		assert.NotEqual(t, "wait", f.Check, "%+v", f)
	}
	for command := range strings.FieldsSeq(redistest.LeastCommands) {
		name := strings.TrimPrefix(command, "+")
		level, text := Error, "may not run "+name
		switch name {
		case "hget", "hscan", "rename", "zmscore":
			level = Warning
		case "eval":
			text = "may not run scripts"
		}
		r := examine(t, with(redistest.LeastCommands, "~*", "-"+name), opts)
		says(t, r, "rights", level, text)
	}
	r = examine(t, with(redistest.LeastCommands, "~*", "-get", "-zadd"), opts)
	assert.Contains(t, says(t, r, "rights", Error, "may not run get, zadd").Advice, "+get +zadd")
	few := with(redistest.LeastCommands, redistest.KeysWithPrefix("api:"))
	says(t, examine(t, few, opts), "rights", Warning, "may not use keys")
	opts.Pattern = "api:*"
	says(t, examine(t, few, opts), "rights", Fine, "may do all")
	opts.Pattern = "jobs:*"
	says(t, examine(t, few, opts), "rights", Error, "may not use keys such as jobs:")
	assert.Empty(t, redistest.Keys(t, server.Client(t, nil), "*"))
}

func TestExamine_Replica(t *testing.T) {
	t.Parallel()
	master, replica := redistest.StartRedis(t), redistest.StartRedis(t)
	replica.Follow(t, master)
	rdb := master.Client(t, nil)
	require.Eventually(t, func() bool { return rdb.Wait(t.Context(), 1, time.Second).Val() == 1 }, time.Minute, time.Millisecond)
	r := examine(t, rdb, options())
	says(t, r, "replication", Fine, "online")
	r = examine(t, replica.Client(t, nil), options())
	assert.Equal(t, Error, r.Worst)
	says(t, r, "replication", Error, "this is a replica")
}

func TestExamine_Cluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	rdb := c.Client(t, nil)
	limiters(t, rdb, "limiter:", 30)
	r := examine(t, rdb, options())
	says(t, r, "cluster", Fine, "state ok, 16384 of 16384 slots")
	assert.Len(t, r.Servers, 3)
	assert.Equal(t, Sampled{Keys: 30, Walked: 30, Found: 30, Checked: 30, All: true}, r.Limiters)
	c.Nodes()[2].Kill()
	require.Eventually(t, func() bool {
		info, err := c.Nodes()[0].Client(t, nil).ClusterInfo(t.Context()).Result()
		return err == nil && strings.Contains(info, "cluster_slots_fail:5")
	}, time.Minute, 100*time.Millisecond)
	opts := options()
	opts.Time = 2 * time.Second
	assert.Equal(t, Error, examine(t, rdb, opts).Worst)
}

func TestProblemsOfLimitersAreSummedUp(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	limiters(t, rdb, "limiter:\x1b", 10)
	opts := options()
	opts.Check = func(_ context.Context, name string) (Checked, error) {
		c := Checked{State: look.UsedUp, Layouts: []string{"B", "D2"}}
		if !strings.HasSuffix(name, "0") {
			c.State = look.IsBroken
			c.Problems = []Problem{
				{Kind: "mixed_layouts", Text: "layouts B, D2"}, {Kind: "sum_not_rate", Text: "1 permit lost"}, {Kind: "new_kind", Text: "something"},
			}
		}
		return c, nil
	}
	r := examine(t, rdb, opts)
	assert.Equal(t, Error, r.Worst)
	assert.Regexp(t, `^9 limiters broken: "limiter:\\x1b\d", "limiter:\\x1b\d", "limiter:\\x1b\d" and 6 more; of the first: layouts B, D2$`,
		says(t, r, "mixed_layouts", Error, "").Text)
	says(t, r, "limiters", Fine, "all 10 limiters looked at; 9 broken, 1 used up")
	says(t, r, "used_up", Note, `1 limiter: "limiter:\x1b0": no permit is free`)
	says(t, r, "sum_not_rate", Warning, "")
	says(t, r, "new_kind", Warning, "")
	says(t, r, "old layouts", Note, "10 limiters with members of layout B, as Redisson 3.13.3 to 3.16.3 writes")
}

// What was not looked at is not said to be well: limiters behind the first ones, and all clients' keys of many.
func TestManyLimitersAreSampledInTime(t *testing.T) {
	t.Parallel()
	rdb := redistest.Redis(t)
	prefix := redistest.Name(t)
	limiters(t, rdb, prefix, 3000)
	opts := options()
	opts.Pattern, opts.Sample = prefix+"*", 250
	r := examine(t, rdb, opts)
	assert.Equal(t, 250, r.Limiters.Checked)
	assert.False(t, r.Limiters.All)
	f := says(t, r, "limiters", Note, "")
	assert.Regexp(t, `^250 of about \d+ limiters looked at, about \d+ of \d+ keys walked; nothing is wrong with what was looked at$`, f.Text)
	assert.Contains(t, f.Advice, "--all")
	opts.Sample, opts.Time = 0, 0
	says(t, examine(t, rdb, opts), "limiters", Fine, "all 3000 limiters looked at")
	opts.Time = 300 * time.Millisecond
	opts.Check = func(ctx context.Context, _ string) (Checked, error) {
		<-ctx.Done()
		return Checked{}, ctx.Err()
	}
	assert.False(t, examine(t, rdb, opts).Limiters.All)
	opts.Pattern, opts.Time = prefix+"299?", time.Minute
	opts.Check = func(_ context.Context, name string) (Checked, error) {
		return Checked{Partly: name != prefix+"2990"}, nil
	}
	r = examine(t, rdb, opts)
	assert.False(t, r.Limiters.All)
	says(t, r, "clients", Note, "9 limiters whose clients have permits of their own")
}

func TestProbe_TriesWhatLimitersNeed(t *testing.T) {
	t.Parallel()
	tried := []string{"eval", "evalsha"}
	for _, c := range needed {
		tried = append(tried, c[0])
	}
	assert.ElementsMatch(t, strings.Fields(strings.ReplaceAll(redistest.LeastCommands, "+", "")), tried)
}

func TestOlderVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"5.0.14": true, "6.0.20": true, "6.2.0": false, "6.10": false, "7.0.15": false, "10": false, "5": true,
	} {
		assert.Equal(t, want, older(version, oldestRedis), version)
	}
}

func TestReportForPeople(t *testing.T) {
	t.Parallel()
	r := &Report{Name: "the cluster of a:1 and 2 more", TookMS: 1234, Worst: Error, Findings: []Finding{
		{
			Check: "rights", Level: Error, Text: "user least may not run get, zadd",
			Reason: "calls of limiters fail with NOPERM", Advice: "ACL SETUSER with +get +zadd",
		},
		{
			Check: "eviction", Level: Warning, Server: "a:1", Text: "maxmemory-policy is volatile-lru",
			Reason: "a limiter whose keys are evicted starts anew", Advice: "set maxmemory-policy to noeviction",
		},
		{Check: "version", Level: Fine, Server: "a:1", Text: "Redis 7.0.15 \x1b[2J \"x\""},
	}}
	for _, columns := range []int{40, 80, 200} {
		text := Text(r, columns, func(_, text string) string { return text })
		for line := range strings.Lines(text) {
			assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), columns, line)
		}
		if columns == 80 {
			story.Golden(t, filepath.Join("testdata", "report-80.txt"), text)
		}
	}
}

func selfTested(t *testing.T, rdb redistest.Client) *Report {
	t.Helper()
	r := limitertest.Must(SelfTest(t.Context(), rdb, Options{Name: "the server", Pattern: "api:*"}))(t)
	assert.Len(t, r.Findings, len(proofs))
	return r
}

func TestSelfTest_PassesOnServers(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	all := map[string]func(t testing.TB) redistest.Client{
		"cluster": func(t testing.TB) redistest.Client { return redistest.StartCluster(t, 3, 0).Client(t, nil) },
		"ring":    func(t testing.TB) redistest.Client { return redistest.StartRing(t, 2).Client(t, nil) },
		"least rights": func(t testing.TB) redistest.Client {
			return redistest.AddUser(t, redistest.StartRedis(t), nil, redistest.LeastCommands, "+wait +incr", "~*")
		},
	}
	for _, version := range append(redistest.Versions(), redistest.Default) {
		all[string(version)+" alone"] = func(t testing.TB) redistest.Client { return redistest.StartServer(t, version).Client(t, nil) }
	}
	if topology := redistest.CurrentTopology(t); !strings.Contains(string(topology), "acl") {
		all["by "+string(topology)] = redistest.CurrentClient // in each cell of make test-matrix
	}
	limitertest.Named(t, all, func(t *testing.T, name string, start func(testing.TB) redistest.Client) {
		rdb := start(t)
		r := selfTested(t, rdb)
		assert.Contains(t, []Level{Fine, Note}, r.Worst, "%+v", r.Findings)
		if name != "least rights" {
			assert.Empty(t, redistest.Keys(t, rdb, "*rrl-self-test*"))
		}
	})
}

// A server that stops says nothing of what comes after, nor one that refuses this user.
func TestSelfTestOfServersThatRefuse(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	r := selfTested(t, redistest.AddUser(t, server, nil, "+@all", "~other:*"))
	assert.Equal(t, "this user may not do that, so the server's behaviour is unknown", r.Findings[0].Reason)
	proxy, stopped := redistest.StartProxy(t, server.Addr()), false
	proxy.OnCommand(func(c redistest.Command) redistest.Action {
		if stopped = stopped || c.Args[0] == "evalsha"; stopped {
			return redistest.Cut
		}
		return redistest.Pass
	})
	r = limitertest.Must(SelfTest(t.Context(), proxy.Client(t, nil), Options{Name: "the server"}))(t)
	require.Len(t, r.Findings, 2, "scripts were tried before")
	says(t, r, "evalsha", Error, "no longer answers")
}

// In each of these a server does one thing otherwise: what is in a command is replaced.
func TestSelfTest_FindsDeviatingServer(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	server := redistest.StartRedis(t)
	for lie, found := range map[string][]string{
		"errors have the server's code":     {"scripts", "error_reply('MINE", "error_reply('ERR MINE"},
		"unknown scripts are another error": {"evalsha", "evalsha", "evalxsha"},
		"time stands":                       {"time", "redis.call('TIME')", "{'1700000000', '5'}"},
		"integers are floats":               {"integers", "redis.call('INCRBY', KEYS[1], 1)", "redis.call('SET', KEYS[1], string.format('%.0f', redis.call('GET', KEYS[1]) + 1))"},
		"bytes are text":                    {"bytes", "1, ARGV[1])", "1, (string.gsub(ARGV[1], '[\\128-\\255]', '?')))"},
		"ZADD knows no NX":                  {"sorted sets", "'NX', ", ""},
		"PERSIST does nothing":              {"times to live", "redis.call('PERSIST', key)", "1"},
		"slow scripts are stopped":          {"slow script", "1, tonumber(ARGV[1]) do", "1, 1e3 do if i == 9 then error('stopped') end"},
		"other types are replaced":          {"wrong types", "set\x00{api:rrl", "get\x00{api:rrl"},
		"ZCARD is about":                    {"RateLimiter", "zcard\x00", "exists\x00rrl"},
		"clients are not told apart":        {"PerClient", ":second", ":first"},
		"keys of windows move":              {"other limiters", "}fixedwindow", "}"},
		"there is no WAIT":                  {"wait", "wait\x00", "wait1\x00"},
		"WAIT tells of others":              {"wait", "wait\x001\x00500", "incrby\x00replicas\x007"},
	} {
		t.Run(lie, func(t *testing.T) {
			t.Parallel()
			proxy := redistest.StartProxy(t, server.Addr())
			calls := 0
			proxy.OnCommand(func(c redistest.Command) redistest.Action {
				const part = "\x00" // between arguments
				text, with := strings.Join(c.Args, part), found[2]
				if calls++; lie == "keys of windows move" {
					with += strings.Repeat("x", calls)
				}
				if !strings.Contains(text, found[1]) {
					return redistest.Pass
				}
				return redistest.Instead(strings.Split(strings.ReplaceAll(text, found[1], with), part)...)
			})
			r := selfTested(t, proxy.Client(t, nil))
			bad := map[string]Level{}
			for _, f := range r.Findings {
				if f.Level == Warning || f.Level == Error {
					bad[f.Check] = f.Level
					assert.NotEmpty(t, f.Reason)
				}
			}
			assert.Contains(t, bad, found[0], "%+v", r.Findings)
			t.Logf("%v", bad)
		})
	}
}
