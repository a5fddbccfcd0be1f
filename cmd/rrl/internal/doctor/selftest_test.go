package doctor

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func selfTested(t *testing.T, rdb redis.UniversalClient) *Report {
	t.Helper()
	r, err := SelfTest(t.Context(), rdb, "the server", "api:*")
	require.NoError(t, err)
	assert.Len(t, r.Findings, len(proofs))
	return r
}

func TestSelfTestOfServersThatDoAll(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	all := map[string]func(t *testing.T) redis.UniversalClient{
		"cluster": func(t *testing.T) redis.UniversalClient { return redistest.StartCluster(t, 3, 0).Client(t, nil) },
		"ring":    func(t *testing.T) redis.UniversalClient { return redistest.StartRing(t, 2).Client(t, nil) },
		"least rights": func(t *testing.T) redis.UniversalClient {
			return redistest.AddUser(t, redistest.StartRedis(t), nil, redistest.LeastCommands, "+wait +publish +subscribe +incr", "~*", "&*")
		},
	}
	for _, version := range append(redistest.Versions(), redistest.Default) {
		all[string(version)+" alone"] = func(t *testing.T) redis.UniversalClient { return redistest.StartServer(t, version).Client(t, nil) }
	}
	for name, start := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := start(t)
			r := selfTested(t, rdb)
			assert.Equal(t, Note, r.Worst, "%+v", r.Findings)
			if name != "least rights" {
				assert.Empty(t, redistest.Keys(t, rdb, "*"))
			}
		})
	}
}

// In each of these a server does one thing otherwise: what is in a command is replaced.
func TestSelfTestFindsWhatAServerDoesOtherwise(t *testing.T) {
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
		"slow scripts are stopped":          {"slow script", "1, 1e7 do", "1, 1e3 do if i == 9 then error('stopped') end"},
		"other types are replaced":          {"wrong types", "set\x00{api:rrl", "get\x00{api:rrl"},
		"ZCARD is about":                    {"RateLimiter", "zcard\x00", "exists\x00rrl"},
		"clients are not told apart":        {"PerClient", ":second", ":first"},
		"keys of windows move":              {"other limiters", "}fixedwindow", "}"},
		"there is no WAIT":                  {"wait", "wait\x00", "wait1\x00"},
		"WAIT tells of others":              {"wait", "wait\x001\x00500", "incrby\x00replicas\x007"},
		"messages get lost":                 {"notices", "publish\x00", "echo\x00"},
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
