package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// outcome is what one command line came to.
type outcome struct {
	code           int
	stdout, stderr string
}

// rrl runs a command line without any environment.
func rrl(t testing.TB, args ...string) outcome {
	t.Helper()
	return rrlWith(t.Context(), nil, args...)
}

func rrlWith(ctx context.Context, env map[string]string, args ...string) outcome {
	var stdout, stderr bytes.Buffer
	code := run(ctx, args, &stdout, &stderr, func(name string) string { return env[name] })
	return outcome{code, stdout.String(), stderr.String()}
}

// server is a miniredis that commands are run against.
type server struct {
	*miniredis.Miniredis
	t testing.TB
}

func newServer(t testing.TB) server {
	t.Helper()
	return server{miniredis.RunT(t), t}
}

func (s server) url() string { return "redis://" + s.Addr() }

func (s server) rrl(args ...string) outcome {
	s.t.Helper()
	return rrl(s.t, append(args, "--redis", s.url())...)
}

// fails runs a command that must end with an error, on one line.
func (s server) fails(stderr string, args ...string) {
	s.t.Helper()
	got := s.rrl(args...)
	assert.Equal(s.t, exitError, got.code, "%q", args)
	assert.Empty(s.t, got.stdout, "%q", args)
	assert.Contains(s.t, got.stderr, stderr, "%q", args)
	assert.Regexp(s.t, `^rrl: .*\n$`, got.stderr, "%q", args)
}

// reachNobody runs commands against a server that is not there.
func reachNobody(t *testing.T, commands ...[]string) {
	t.Helper()
	m := miniredis.RunT(t)
	url := "redis://" + m.Addr()
	m.Close()
	for _, args := range commands {
		got := rrl(t, append(args, "--redis", url)...)
		assert.Equal(t, exitError, got.code, "%q", args)
		assert.Contains(t, got.stderr, "connection refused", "%q", args)
	}
}

// object parses the one JSON object on a line of its own that text must be.
func object(t testing.TB, text string) map[string]any {
	t.Helper()
	var v map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &v), "%q", text)
	return v
}

func TestTheWayThroughALimitersLife(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, step := range []struct {
		args   []string
		code   int
		stdout string
	}{
		{[]string{"update-rate", "orders", "5/1h"}, 1, "orders has no rate, nothing changed\n"},
		{[]string{"delete", "orders"}, 1, "orders is no limiter, nothing changed\n"},
		{[]string{"expire", "orders", "1h"}, 1, "orders is no limiter, nothing changed\n"},
		{[]string{"try-set-rate", "orders", "5/1h"}, 0, "orders has 5 permits every 1h\n"},
		{[]string{"try-set-rate", "orders", "6/1h"}, 1, "orders has a rate already, nothing changed\n"},
		{[]string{"acquire", "orders"}, 0, "granted 1 permit, 4 left\n"},
		{[]string{"acquire", "orders", "--permits", "4"}, 0, "granted 4 permits, 0 left\n"},
		{[]string{"release", "orders", "-n", "2"}, 0, "gave back 2 permits\n"},
		{[]string{"acquire", "orders", "--permits", "2", "--wait"}, 0, ""},
		{[]string{"acquire", "orders", "--timeout", "1s"}, 1, ""},
		{[]string{"update-rate", "orders", "7/1h", "--keep-state"}, 0, "orders has 7 permits every 1h\n"},
		{[]string{"acquire", "orders", "--permits", "2", "--timeout", "10s"}, 0, ""},
		{[]string{"acquire", "orders", "--timeout", "0"}, 1, ""},
		{
			[]string{"set-rate", "orders", "2/1m", "--type", "per-client", "--keep-alive", "1h"}, 0,
			"orders has 2 permits every 1m for each client, deleted when unused for 1h\n",
		},
		{[]string{"acquire", "orders", "--permits", "2", "--client-id", "a"}, 0, "granted 2 permits, 0 left\n"},
		{[]string{"acquire", "orders", "--permits", "2", "--client-id", "b"}, 0, "granted 2 permits, 0 left\n"},
		{[]string{"expire", "orders", "90s"}, 0, "orders expires in 1m30s\n"},
		{[]string{"expire", "orders", "1d"}, 0, "orders expires in 24h\n"},
		{[]string{"expire", "orders", "--clear"}, 0, "orders no longer expires\n"},
		{[]string{"delete", "orders", "--client-id", "a"}, 0, "deleted orders\n"},
		{[]string{"delete", "orders", "--client-id", "a"}, 1, "orders is no limiter, nothing changed\n"},
	} {
		got := s.rrl(step.args...)
		require.Equal(t, step.code, got.code, "%q: %+v", step.args, got)
		require.Empty(t, got.stderr, "%q", step.args)
		if step.stdout != "" {
			require.Equal(t, step.stdout, got.stdout, "%q", step.args)
		}
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, step := range []struct {
		args []string
		code int
		json string
	}{
		{[]string{"try-set-rate", "orders", "5/1h"}, 0, `{"name":"orders","set":true}`},
		{[]string{"try-set-rate", "orders", "5/1h"}, 1, `{"name":"orders","set":false}`},
		{[]string{"set-rate", "orders", "5/1h"}, 0, `{"name":"orders","set":true}`},
		{[]string{"update-rate", "orders", "5/1h"}, 0, `{"name":"orders","set":true}`},
		{
			[]string{"acquire", "orders", "-n", "5"}, 0,
			`{"name":"orders","permits":5,"granted":true,"waited_ms":0,"remaining":0,"retry_after_ms":0}`,
		},
		{[]string{"release", "orders", "-n", "5"}, 0, `{"name":"orders","released":5}`},
		{[]string{"expire", "orders", "1h"}, 0, `{"name":"orders","changed":true}`},
		{[]string{"expire", "orders", "--clear"}, 0, `{"name":"orders","changed":true}`},
		{[]string{"delete", "orders"}, 0, `{"name":"orders","deleted":true}`},
		{[]string{"delete", "orders"}, 1, `{"name":"orders","deleted":false}`},
	} {
		got := s.rrl(append(step.args, "--json")...)
		require.Equal(t, step.code, got.code, "%q: %+v", step.args, got)
		require.JSONEq(t, step.json, got.stdout, "%q", step.args)
		require.Empty(t, got.stderr, "%q", step.args)
	}
}

func TestDeniedAcquireTellsWhenToTryAgain(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	require.Zero(t, s.rrl("set-rate", "orders", "2/1h").code)
	require.Zero(t, s.rrl("acquire", "orders").code)
	got := s.rrl("acquire", "orders", "--permits", "2", "--json")
	require.Equal(t, exitNo, got.code)
	answer := object(t, got.stdout)
	assert.Equal(t, false, answer["granted"])
	assert.InDelta(t, 1, answer["remaining"], 0)
	assert.InDelta(t, 3_600_000, answer["retry_after_ms"], 60_000)

	got = s.rrl("acquire", "orders", "--timeout", "1s", "--permits", "2", "--json")
	require.Equal(t, exitNo, got.code)
	answer = object(t, got.stdout)
	assert.Nil(t, answer["remaining"])
	assert.Nil(t, answer["retry_after_ms"])
}

func TestErrors(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	require.Zero(t, s.rrl("set-rate", "orders", "5/1h").code)
	s.HSet("bad", "rate", "x", "interval", "1", "type", "0")
	for _, c := range []struct {
		args   []string
		stderr string
	}{
		{[]string{"acquire", "none"}, "none: limiter has no rate; give it one by rrl try-set-rate"},
		{[]string{"migrate", "none"}, "none: limiter has no rate; give it one by rrl try-set-rate"},
		{[]string{"migrate", "orders", "--redisson", "3.13.0"}, "which --redisson names"},
		{[]string{"acquire", "x \"SetRate or Delete\" y"}, `"x \"SetRate or Delete\" y": limiter has no rate`},
		{[]string{"acquire", "bad"}, "rrl set-rate --reset or rrl delete cures it"},
		{[]string{"take", "counter", "bad", "--limit", "1/1s"}, "name it otherwise or remove it"},
		{[]string{"take", "sliding-log", commonHash, "--limit", "1/1s", "--thresholds", commonHash}, "the hash that --thresholds names"},
		{[]string{"threshold", "k", "--thresholds", ""}, "--thresholds names no hash"},
		{[]string{"acquire", "orders", "-n", "6"}, "permits exceed the rate"},
		{[]string{"acquire", "orders", "-n", "0"}, "invalid number of permits"},
		{[]string{"release", "orders", "-n", "-1"}, "invalid number of permits"},
		{[]string{"set-rate", "orders", "5/1h", "--keep-alive", "1m"}, "orders: keep-alive time 1m is shorter than the interval 1h"},
		{[]string{"acquire", ""}, "name"},

		{[]string{"acquire"}, "NAME is missing; usage: rrl acquire NAME"},
		{[]string{"acquire", "a", "b"}, `unexpected argument "b"`},
		{[]string{"acquire", "a", "--timeout", "-1s"}, "--wait waits without end"},
		{[]string{"acquire", "a", "--timeout", "1s", "--wait"}, "--timeout and --wait exclude each other"},
		{[]string{"acquire", "a", "--timeout", "soon"}, `--timeout "soon": want a time, such as 500ms`},
		{[]string{"acquire", "a", "-n", "two"}, `--permits "two": want a whole number`},
		{[]string{"acquire", "a", "-n", "99999999999999999999"}, `--permits "99999999999999999999" is out of range`},
		{[]string{"acquire", "a", "--wait=maybe"}, `--wait "maybe": want true or false`},
		{[]string{"bench", "--callers", "1,x"}, `--callers "1,x": want whole numbers, with commas`},
		{[]string{"set-rate", "orders", "-5/1s"}, "-5/1s is below 0; a name that begins so goes after --"},
		{[]string{"set-rate", "orders"}, "RATE is missing; usage: rrl set-rate NAME RATE"},
		{[]string{"try-set-rate", "orders", "100"}, "want permits/interval, such as 100/s"},
		{[]string{"update-rate", "orders", "1/1s", "--type", "each"}, "want overall or per-client"},
		{[]string{"try-set-rate", "orders", "1/1s", "--keep-state"}, "unknown flag: --keep-state"},
		{[]string{"expire", "orders"}, "TTL is missing"},
		{[]string{"expire", "orders", "tomorrow"}, "is not a time"},
		{[]string{"expire", "orders", "0s"}, "use delete"},
		{[]string{"expire", "orders", "1s", "--clear"}, "--clear and a TTL exclude each other"},
		{[]string{"show"}, "NAME is missing"},
		{[]string{"show", "a", "--limit", "-1"}, "--limit is negative"},
		{[]string{"ls", "a", "b"}, `unexpected argument "b"; usage: rrl ls [PATTERN]`},
		{[]string{"top", "a", "b"}, `unexpected argument "b"; usage: rrl top [PATTERN]`},
		{[]string{"doctor", "a", "b"}, `unexpected argument "b"; usage: rrl doctor [PATTERN]`},
		{[]string{"demo", "--tries", "0"}, "--tries"},
		{[]string{"demo", "--rate", "3"}, "want permits/interval"},
		{[]string{"demo", "now"}, `unexpected argument "now"`},
		{[]string{"version", "now"}, `unexpected argument "now"`},
		{[]string{"show", "orders", "--redisson", "3.1"}, `--redisson: "3.1" is no version of Redisson`},
		{[]string{"demo", "--redisson", "3.1"}, `--redisson: "3.1" is no version of Redisson`},
		{[]string{"version", "--redisson", "x"}, `--redisson: "x" is no version of Redisson`},
		{[]string{"ls", "--client-id", ""}, "--client-id is empty"},
		{[]string{"ls", "--user", ""}, "--user is empty"},
		{[]string{"delete", "orders", "--sentinel-master", ""}, "--sentinel-master is empty"},
		{[]string{"completion"}, "SHELL is missing; usage: rrl completion SHELL, with one of bash, fish, powershell, zsh"},
		{[]string{"completion", "tcsh"}, `unknown shell "tcsh": want one of bash, fish`},
		{[]string{"help", "frobnicate"}, `unknown command "frobnicate"`},
		{[]string{"ls", "--connect-timeout", "-1s"}, "--connect-timeout is negative"},
		{[]string{"demo", "--tls-cert", "x"}, "--tls-cert and --tls-key go together"},
		{[]string{"demo", "fixed-window", "--ring", "--sentinel-master", "x"}, "exclude each other"},
		{[]string{"frobnicate"}, `unknown command "frobnicate"`},
	} {
		s.fails(c.stderr, c.args...)

		got := rrl(t, append(c.args, "--redis", s.url(), "--json")...)
		assert.Equal(t, exitError, got.code, "%q", c.args)
		assert.Empty(t, got.stdout, "%q", c.args)
		assert.Contains(t, object(t, got.stderr)["error"], c.stderr, "%q", c.args)
		assert.NotRegexp(t, `^[^"]*[a-z][A-Z]|0m0s|WRONGTYPE|user_script`, got.stderr[len(`{"error":"`):], "it speaks of Go or Lua")
	}
}

// An empty address is a variable that is not set, and no reason to work on the
// server that is the default.
func TestEmptyAddress(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	got := rrlWith(t.Context(), map[string]string{"REDIS_URL": s.url()}, "delete", "orders", "--redis", "")
	assert.Equal(t, outcome{exitError, "", "rrl: --redis is empty\n"}, got)
}

func TestServerThatIsNotThere(t *testing.T) {
	t.Parallel()
	reachNobody(t,
		[]string{"acquire", "orders"}, []string{"release", "orders"}, []string{"set-rate", "orders", "1/1s"}, []string{"delete", "orders"},
		[]string{"expire", "orders", "1s"}, []string{"show", "orders"}, []string{"ls"}, []string{"demo"})
}

func TestURL(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.RequireAuth("secret")
	withPassword := "redis://:secret@" + s.Addr()
	for _, c := range []struct {
		name, env, flag string
		code            int
		stderr          string
	}{
		{"from the environment", withPassword, "", exitYes, ""},
		{"by flag", "", withPassword, exitYes, ""},
		{"the flag wins", "redis://:wrong@" + s.Addr(), withPassword, exitYes, ""},
		{"wrong password", "redis://:wrong@" + s.Addr(), "", exitError, "WRONGPASS"},
		{"another scheme", "", "http://localhost", exitError, `the scheme "http" is none of`},
		{"no URL", "redis://:secret@local host:1", "", exitError, "the server's URL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			args := []string{"ls"}
			if c.flag != "" {
				args = append(args, "--redis", c.flag)
			}
			got := rrlWith(t.Context(), map[string]string{"REDIS_URL": c.env}, args...)
			assert.Equal(t, c.code, got.code, "%+v", got)
			assert.Contains(t, got.stderr, c.stderr)
			assert.NotContains(t, got.stderr, "secret")
		})
	}
}

func TestInterruptedAcquireEndsAtOnce(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	require.Zero(t, s.rrl("set-rate", "orders", "1/1h").code)
	require.Zero(t, s.rrl("acquire", "orders").code)
	ctx, cancel := context.WithCancel(t.Context())
	before := s.CommandCount()
	done := make(chan outcome, 1)
	go func() { done <- rrlWith(ctx, nil, "acquire", "orders", "--wait", "--redis", s.url()) }()
	assert.Eventually(t, func() bool { return s.CommandCount() > before }, 5*time.Second, time.Millisecond)
	cancel()
	assert.Equal(t, outcome{exitError, "", "rrl: interrupted\n"}, <-done)
}

func TestAnswerMakesTheExitCode(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	require.NoError(t, yesOrNo(true, nil))
	require.ErrorIs(t, yesOrNo(false, nil), errNo)
	require.Equal(t, failed, yesOrNo(false, failed))
}

func TestHelp(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"--help"}, {"help"}} {
		got := rrlWith(t.Context(), map[string]string{"REDIS_URL": "redis://:secret@host"}, args...)
		assert.Equal(t, exitYes, got.code)
		assert.Contains(t, got.stdout, "Examples:")
		assert.Contains(t, got.stdout, "Exit codes:")
		assert.NotContains(t, got.stdout, "secret")
	}
	for _, command := range newRoot(&app{}).Commands() {
		got := rrl(t, command.Name(), "--help")
		assert.Equal(t, exitYes, got.code, command.Name())
		assert.Contains(t, got.stdout, "Examples:", command.Name())
		assert.Empty(t, got.stderr, command.Name())
	}
	assert.Contains(t, rrl(t, "help", "take", "counter").stdout, "rrl take counter KEY")
	got := rrl(t, "--version")
	assert.Equal(t, exitYes, got.code)
	assert.Contains(t, got.stdout, "rrl version")
}

func TestVersion(t *testing.T) {
	t.Parallel()
	assert.Regexp(t, `^rrl \S+, commit \S+( and changes)?, go1\.\S+, \w+/\w+\n$`, rrl(t, "version").stdout)
	got := object(t, rrl(t, "version", "--json").stdout)
	for _, field := range []string{"version", "commit", "modified", "go", "platform"} {
		assert.Contains(t, got, field)
	}
}

func TestCompletionOffersLimiters(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for _, name := range []string{"orders", "api:a", "api:b", "api[1]", "two\nlines", "api:\x1b[31m", "api:\u009b31m"} {
		require.Zero(t, s.rrl("set-rate", name, "1/1h").code)
	}
	s.HSet("api:user", "name", "ann")
	complete := func(args ...string) string {
		got := rrl(t, append([]string{"__complete", "--redis", s.url()}, args...)...)
		assert.Equal(t, exitYes, got.code)
		return got.stdout
	}
	const noFiles = ":4\n"
	for _, command := range []string{"show", "acquire", "release", "try-set-rate", "set-rate", "update-rate", "expire", "delete", "migrate"} {
		assert.Equal(t, "api:a\napi:b\n"+noFiles, complete(command, "api:"), command)
		assert.Equal(t, "api[1]\n"+noFiles, complete(command, "api["), command)
		assert.Equal(t, noFiles, complete(command, "orders", ""), command)
	}
	assert.Equal(t, "orders\n"+noFiles, complete("ls", "o"))
	assert.Equal(t, "take\nthreshold\ntop\ntry-set-rate\n"+noFiles, complete("help", "t"))
	assert.Equal(t, "overall\nper-client\n"+noFiles, complete("set-rate", "orders", "--type", ""))
	for _, args := range [][]string{{"threshold", ""}, {"version", ""}, {"demo", "counter", ""}, {"set-rate", "orders", ""}} {
		assert.Equal(t, noFiles, complete(args...), "%q", args)
	}
	s.Close()
	start := time.Now()
	assert.Equal(t, noFiles, rrl(t, "__complete", "--redis", "127.0.0.1:1", "show", "").stdout)
	assert.Less(t, time.Since(start), 5*time.Second)
}

func TestNamesThatATerminalWouldNotShowAreQuoted(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	const name = "a\nb\x1b[31m"
	for _, args := range [][]string{
		{"try-set-rate", name, "5/1s"}, {"try-set-rate", name, "5/1s"}, {"set-rate", name, "5/1s"}, {"update-rate", name, "6/1s"},
		{"acquire", name}, {"release", name}, {"show", name}, {"ls"}, {"expire", name, "1h"}, {"expire", name, "--clear"},
		{"delete", name}, {"delete", name}, {"show", name}, {"acquire", name},
	} {
		got := s.rrl(args...)
		assert.NotContains(t, got.stdout+got.stderr, "\x1b", args)
		assert.NotContains(t, got.stdout+got.stderr, "a\nb", args)
	}
}

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestWhatCannotBeWrittenIsAnError(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	require.Zero(t, s.rrl("set-rate", "orders", "5/1h").code)
	for _, command := range []string{
		"ls", "show orders", "acquire orders", "release orders", "top --count 1", "watch orders --count 1", "doctor", "version",
		"bench --time 100ms --callers 1 --limiters 2", "demo --tries 1", "demo counter",
	} {
		for _, form := range []string{"", " --json"} {
			var stderr bytes.Buffer
			args := strings.Fields(command + form)
			if command != "demo counter" {
				args = append(args, "--redis", s.url())
			}
			code := run(t.Context(), args, full{}, &stderr, func(string) string { return "" })
			assert.Equal(t, exitError, code, "%q", args)
			assert.Contains(t, stderr.String(), "no space left", "%q", args)
		}
	}
}

// A mistyped name does not cost an application its data.
func TestWhatIsNoLimiterIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	require.NoError(t, s.Set("text", "x"))
	s.HSet("user", "name", "ann")
	s.HSet("car", "type", "car", "rate", "120")
	s.HSet("job", "interval", "60", "type", "1")
	s.HSet("half", "rate", "10", "interval", "1000")
	s.SetTTL("car", time.Hour)
	for name, is := range map[string]string{"text": "string", "user": "hash of something else", "car": "hash of something else", "job": "hash of something else"} {
		for _, args := range [][]string{{"delete", name}, {"expire", name, "1m"}, {"expire", name, "--clear"}} {
			s.fails(name+" is a "+is+" and no limiter, nothing changed; rrl delete --force removes it", args...)
		}
		assert.True(t, s.Exists(name), name)
	}
	for _, command := range []string{"set-rate", "try-set-rate", "update-rate"} {
		s.fails("user is a hash of something else and no limiter, nothing changed", command, "user", "10/s", "--keep-alive", "1h")
		s.fails("config is of type string, not hash", command, "text", "10/s")
	}
	assert.Empty(t, s.HGet("user", "rate"))
	assert.Equal(t, []time.Duration{0, 0, time.Hour, 0}, []time.Duration{s.TTL("text"), s.TTL("user"), s.TTL("car"), s.TTL("job")})
	s.fails("name is empty", "delete", "")
	s.fails("name is empty", "expire", "", "1m")
	assert.Equal(t, outcome{exitYes, "deleted half\n", ""}, s.rrl("delete", "half"))
	assert.Equal(t, outcome{exitYes, "deleted text\n", ""}, s.rrl("delete", "text", "--force"))
}

// What the library refuses as a rate is no limiter's to rrl either.
func TestNumbersThatScriptsDoNotTake(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for name, rate := range map[string]string{"large": "9007199254740992", "zeros": "05", "plus": "+5"} {
		s.HSet(name, "rate", rate, "interval", "1000", "type", "0")
		s.fails("corrupt state", "acquire", name)
		assert.Contains(t, s.rrl("show", name).stdout, "not a whole number from 0 to 9007199254740991", name)
		assert.Contains(t, s.rrl("ls").stdout, name+" is broken: field rate is \""+rate+"\", not a whole number")
	}
	assert.Contains(t, s.rrl("top", "--count", "1").stdout, "3 limiters, 0 in use, 0 used up, 3 broken")
}
