package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/demo"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/story"
)

func TestDoctorJudgesLimiters(t *testing.T) {
	t.Parallel()
	s := alone(t)
	judges := func(code int, like string) {
		t.Helper()
		got := s.rrl("doctor --time 1m")
		said := strings.Join(strings.Fields(got.stdout), " ")
		if code == exitYes && regexp.MustCompile(`warning (\S+ )?round trip`).MatchString(said) { // a busy machine's are slow
			code = exitNo
		}
		assert.Equal(t, code, got.code, "%+v", got)
		assert.Empty(t, got.stderr, "findings are no error of rrl's")
		assert.Contains(t, said, like)
	}
	judges(exitYes, "may do all")
	s.play("redis HSET own rate 10 interval 60000 type 1\nredis SET {own}:value:ann 9\n")
	limitertest.AddGrants(t, s.rdb, "{own}:permits:ann", 0, 1, 1)
	judges(exitNo, "1 limiter: own: keys of 1 client have no time to live")
	s.play("redis HSET mixed rate 10 interval 60000 type 0\nredis SET {mixed}:value 8\n")
	limitertest.AddGrants(t, s.rdb, "{mixed}:permits", 0, 1, 1)
	now := float64(limitertest.ServerNow(t, s.rdb))
	require.NoError(t, s.rdb.Do(t.Context(), "zadd", "{mixed}:permits", now, limitertest.NewMember(t, codec.LayoutB, 1)).Err())
	judges(exitError, "1 limiter with members of layout B")

	// Also hashes that were meant for a limiter.
	s.play("redis HSET own rate ten\nredis SET {none}:permits x\nredis HSET none rate 10 interval 60000 type 0\n")
	judges(exitError, `bad_config: 1 limiter broken: own: field rate is "ten"`)
	judges(exitError, "all 3 limiters looked at; 3 broken, 0 used up")
	assert.Contains(t, s.rrl("doctor --all").stdout, "all 3 limiters looked at")
	assert.Contains(t, s.rrl("doctor --sample 1").stdout, "--all looks at all of them")
}

// One long name does not make each line as long, and wide letters keep the columns straight; a terminal has room for all.
func TestList_LongNamesKeepColumns(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	long := strings.Repeat("x", 4096)
	for _, name := range []string{long, "限流器"} {
		require.Zero(t, s.rrl("set-rate %s 100/1s", name).code)
	}
	assert.Equal(t, "NAME    STATE  RATE    ORIGIN    TYPE     KEEP-ALIVE  EXPIRES IN\n"+
		long+"  fine   100/1s  override  OVERALL  -           -\n"+
		"限流器  fine   100/1s  override  OVERALL  -           -\n", s.rrl("ls").stdout)
	plain := func(_ int, line string) string { return line }
	assert.Regexp(t, "^NAME +RATE\n[x…]{32}  100/1s\na +1/1s\n$", table([][]string{{"NAME", "RATE"}, {long, "100/1s"}, {"a", "1/1s"}}, 40, plain))
}

func TestProgressLeavesNoTrace(t *testing.T) {
	t.Parallel()
	w := newWalk(nil, "")
	w.add([]*look.Short{{Name: "a"}}, 1000, 500)
	assert.Equal(t, "[###############               ]  50% of 1000 keys, 1 limiter", w.progress(80))
	assert.Equal(t, "  50% of 1000 keys,", w.progress(20))
	var to bytes.Buffer
	shown := make(chan struct{}, 100)
	stop := drawProgress(&to, func() string {
		shown <- struct{}{}
		return "half"
	}, 0)
	<-shown
	stop()
	assert.Regexp(t, "half\r\x1b\\[K$", to.String())
}

// Names, and what keys hold, may be anything: a terminal shows them quoted.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	show := []string{"acquire NAME", "release NAME", "show NAME", "ls", "top --count 1", "watch NAME --count 1", "watch OTHER", "doctor"}
	for _, name := range []string{"a\nb\x1b[31m", "\u202egnp", strings.Repeat("\x1b]0;x\a", 700), "\xff\xfe"} {
		quoted := strings.NewReplacer("NAME", strconv.Quote(name), "OTHER", strconv.Quote(name+"?"))
		run := func(lines ...string) {
			for _, line := range lines {
				got := s.run(t.Context(), story.Words(quoted.Replace(line))...)
				for _, bad := range []string{"\x1b", "a\nb", "\u202e", "\a", "\xff"} {
					assert.NotContains(t, got.stdout+got.stderr, bad, line)
				}
			}
		}
		run("try-set-rate NAME 5/1s", "try-set-rate NAME 5/1s", "set-rate NAME 5/1s", "update-rate NAME 6/1s")
		run(show...)
		s.Del("{" + name + "}:permits")
		require.NoError(t, s.Set("{"+name+"}:permits", "x"))
		require.NoError(t, s.Set("{"+name+"}:value", "\x1b[31m"))
		run(show...)
		run("expire NAME 1h", "expire NAME --clear", "delete NAME", "delete NAME", "show NAME", "acquire NAME")
	}
}

// inBubble runs a demo on a clock of its own, so that waiting takes no time.
func (s servers) inBubble(t *testing.T, line string) (got outcome) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { got = rrlWith(t.Context(), s.env, story.Words(line)...) })
	require.Equal(t, exitYes, got.code, "%+v", got)
	require.Empty(t, got.stderr)
	require.NotContains(t, got.stdout, "\x1b", "no colours but on a terminal")
	return got
}

// What demos print, from the first try to the timeline; docs/demo.svg shows the usual one. With -update it is recorded anew.
func TestDemo(t *testing.T) {
	t.Parallel()
	random := regexp.MustCompile(`rrl-demo:\w+`)
	for name, line := range map[string]string{
		"usual": "demo", "many": "demo --rate 30/1s --tries 20", "long": "demo --rate 2/1m --tries 30 --timeout 1m",
		"json": "demo --json --rate 5/500ms --tries 20 --timeout 50ms",
	} {
		got := random.ReplaceAllString(servers{}.inBubble(t, line).stdout, "rrl-demo:RANDOM")
		assert.Regexp(t, `never over the limit|"within_limit":true`, got)
		story.Golden(t, filepath.Join("testdata", "demo", name+".txt"), got)
	}
	got := servers{}.inBubble(t, "demo --clients 3 --tries 10").stdout // of which the order is not known
	for _, client := range []string{"client 1 ", "client 2 ", "client 3 "} {
		assert.Equal(t, 10, strings.Count(got, client))
	}
	assert.Contains(t, got, "3 of 3\nnever over the limit")
}

// A demo on a given Redis leaves nothing, also if it is interrupted, and none uses the Redis of the environment.
func TestDemo_LeavesGivenRedisClean(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	byEnv := servers{env: map[string]string{"REDIS_URL": s.addr}}
	byEnv.inBubble(t, "demo --tries 3")
	byEnv.inBubble(t, "demo fixed-window --json")
	assert.Zero(t, s.TotalConnectionCount())
	got := s.rrl("demo --rate 30/100ms --tries 10 --timeout 10s")
	require.Equal(t, exitYes, got.code, "%+v", got)
	assert.Positive(t, s.CommandCount())
	assert.Empty(t, s.Keys())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stderr bytes.Buffer
	args := append(story.Words("demo --rate 9/1h --timeout 10s"), s.flags...)
	interrupts := writer(func() error { cancel(); return nil })
	code := run(ctx, args, interrupts, &stderr, func(string) string { return "" })
	assert.Equal(t, []any{exitError, "rrl: interrupted\n"}, []any{code, stderr.String()})
	assert.Empty(t, s.Keys())
	for _, sc := range demo.Scenarios() {
		s.fails("try rrl take "+sc.Name, "demo", sc.Name)
	}
}

// A writer calls a function when it is written to.
type writer func() error

func (w writer) Write(p []byte) (int, error) { return len(p), w() }

// dashboard runs rrl dashboard until the test ends, and returns what it printed first.
func (s servers) dashboard(format string, args ...any) served {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	r, w := io.Pipe()
	var code int
	var stderr bytes.Buffer
	line := story.Words("dashboard --json --listen 127.0.0.1:0 " + fmt.Sprintf(format, args...))
	ended := limitertest.Go(func() {
		code = runPatiently(ctx, append(line, s.flags...), w, &stderr, s.env)
		_ = w.Close()
	})
	s.t.Cleanup(func() {
		cancel()
		limitertest.Soon(s.t, ended, "rrl dashboard")
		assert.Equal(s.t, exitYes, code, stderr.String())
	})
	first, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(s.t, err, stderr.String())
	go func() { _, _ = io.Copy(io.Discard, r) }()
	var answer served
	require.NoError(s.t, json.Unmarshal([]byte(first), &answer), first)
	return answer
}

func ask(t *testing.T, url, token, host string) (status int, body string) {
	t.Helper()
	r := limitertest.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody))(t)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	r.Host = host
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	return answer.StatusCode, string(limitertest.Must(io.ReadAll(answer.Body))(t))
}

func TestDashboard_Demo(t *testing.T) {
	t.Parallel()
	answer := servers{t: t, env: map[string]string{"REDIS_URL": "nowhere:1"}}.dashboard("--write --demo")
	assert.Len(t, answer.Token, 26)
	assert.Contains(t, answer.String(), " shows a demo: ")
	servers{t: t}.fails("--demo shows keys of its own: leave out --keys", "dashboard", "--demo", "--keys", "fixed-window:api:=5/1m")
	_, body := ask(t, answer.URL+"api/about", answer.Token, "")
	assert.Contains(t, body, `"allowed":true`)
	assert.Contains(t, body, `"refusals":true`)
	require.Eventually(t, func() bool { // the demo's window is there while its callers come
		_, body := ask(t, answer.URL+"api/others", "", "")
		return strings.Contains(body, "demo:window:")
	}, time.Minute, 10*time.Millisecond)
}

func TestDashboard_ShowsLimitersAndOtherKeys(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.play("try-set-rate orders 10/1m => ...\n")
	require.NoError(t, s.rdb.Set(t.Context(), "api:ann", 3, time.Minute).Err())
	require.NoError(t, s.rdb.Set(t.Context(), "day:ann", 2, time.Minute).Err())
	s.env = map[string]string{"REDIS_URL": "nowhere:1"} // the flag counts
	answer := s.dashboard("--keys fixed-window:api:=5/1m --keys fixed-window:day:=5/daily@Europe/Berlin ord*")
	assert.Empty(t, answer.Token)
	assert.Contains(t, answer.Shows, "the server at "+s.addr)
	_, body := ask(t, answer.URL+"api/limiters", "", "")
	assert.Contains(t, body, `"name":"orders"`)
	_, body = ask(t, answer.URL+"api/others", "", "")
	assert.Contains(t, body, `"name":"api:ann","bytes":7,"of":"fixed-window","limit":5,"free":2`)
	assert.Contains(t, body, `"name":"day:ann","bytes":7,"of":"fixed-window","limit":5,"free":3`)
}

func TestDashboard_Tokens(t *testing.T) {
	t.Parallel()
	const myToken, othersToken = "sixteen characters", "another of that length"
	s := newServer(t)
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) { require.NoError(t, os.WriteFile(file, []byte(token), 0o600)) }
	write(othersToken + "\n")
	s.env = map[string]string{"RRL_DASHBOARD_TOKEN": myToken + "\n"}
	byEnv, byFile := s.dashboard("--write"), s.dashboard("--write --token-file %s", file)
	assert.Empty(t, byEnv.Token, "what is known already is not printed")
	for _, c := range []struct {
		answer       served
		token, allow string
	}{{byEnv, myToken, "true"}, {byFile, myToken, "false"}, {byFile, othersToken, "true"}} {
		_, body := ask(t, c.answer.URL+"api/about", c.token, "")
		assert.Contains(t, body, `"allowed":`+c.allow)
	}
	write("sixteen charactèrs")
	got := s.rrl("dashboard --write --token-file %s", file)
	assert.Contains(t, got.stderr, "a browser can't send")
	assert.NotContains(t, got.stderr, "sixteen")
	assert.Equal(t, "dashboard: u shows s\ntoken: t", served{URL: "u", Shows: "s", Token: "t"}.String())
}

// If other machines reach the page, looking needs a token, and its names are known.
func TestDashboard_OtherAddressesNeedToken(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	const look = "a token for looking"
	byFlag := s.dashboard("--listen 0.0.0.0:0 --host limits.example --token %q", look)
	port := func(answer served) string { return answer.URL[strings.LastIndex(answer.URL, ":"):] } // and "/"
	assert.Equal(t, "http://limits.example"+port(byFlag), byFlag.URL)
	assert.NotContains(t, byFlag.String(), look)
	s.env = map[string]string{"RRL_DASHBOARD_READ_TOKEN": look}
	byEnv := s.dashboard("--listen 0.0.0.0:0")
	s.env = nil
	open, local := s.dashboard("--listen 0.0.0.0:0 --open"), s.dashboard("")
	for _, tt := range []struct {
		answer      served
		token, host string
		want        int
	}{
		{byFlag, look, "", http.StatusOK}, {byFlag, "", "", http.StatusUnauthorized}, {byFlag, look, "limits.example", http.StatusOK},
		{byFlag, look, "evil.example", http.StatusMisdirectedRequest},
		{byEnv, look, "", http.StatusOK}, {byEnv, "", "", http.StatusUnauthorized}, {byEnv, look, "limits.example", http.StatusMisdirectedRequest},
		{open, "", "", http.StatusOK}, {open, "", "0.0.0.0", http.StatusOK}, {open, "", "192.0.2.1", http.StatusMisdirectedRequest},
		{local, "", "", http.StatusOK}, {local, "", "10.0.0.1:8320", http.StatusMisdirectedRequest},
	} {
		status, _ := ask(t, "http://127.0.0.1"+port(tt.answer)+"api/limiters", tt.token, tt.host)
		assert.Equal(t, tt.want, status, "%s by %q with %q", tt.answer.URL, tt.host, tt.token)
	}
}

// Members of grants of one slice of a large limiter become one, and show says by how much that makes permits late.
func TestShow_MergedMembers(t *testing.T) {
	t.Parallel()
	s := alone(t)
	name := redistest.Name(t)
	limiter := limitertest.NewClient(t, s.rdb).RateLimiter(name, rratelimiter.WithDefault(rratelimiter.PerDay(10_000)))
	require.Eventually(t, func() bool {
		limitertest.MustAcquire(t, limiter, 1)
		return limitertest.Available(t, limiter) < 10_000-60 &&
			strings.Contains(s.rrl("show %q", name).stdout, " of them, whose permits come back up to 22m30s late\n")
	}, time.Minute, time.Millisecond)
}

func TestShow_ReadsABoundedPartOfALargeSet(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	const members = look.MaxMembers + 1
	s.play(fmt.Sprintf("set-rate orders 10000/1h\nredis SET {orders}:value %d\n", 10_000-members))
	limitertest.AddGrants(t, s.rdb, "{orders}:permits", 0, members, 1)
	s.play(fmt.Sprintf(`show orders --json =~ "free":null,.*"members":%d,.*"anomalies":\[\{"kind":"not_all_read".* looked at"\}\]`+"\n", members))
}

// A large set takes several calls of the script, and permits that have run out are no longer in use.
func TestRelease_ManyMembers(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.play("set-rate orders 10000/1h\nredis SET {orders}:value 8950\n")
	limitertest.AddGrants(t, s.rdb, "{orders}:permits", 2*time.Hour, 50, 1)
	limitertest.AddGrants(t, s.rdb, "{orders}:permits", time.Second, 1000, 1)
	s.play(`
release orders -n 300  => gave back 300 permits
release orders -n 5000 => gave back 700 permits, no more were in use
show orders --json     =~ "free":10000,
`)
}

// What may have happened is not done twice, and not said to have been done.
func TestRelease_LostAnswerIsUnknownOutcome(t *testing.T) {
	t.Parallel()
	s := alone(t)
	proxy := redistest.StartProxy(t, s.addr)
	s.play("set-rate orders 10/1h\nacquire orders -n 9\n")
	proxy.OnCommand(func(c redistest.Command) redistest.Action {
		if c.Name() == "eval" && c.Args[1] == lua.Release.Source {
			return redistest.DropAnswer
		}
		return redistest.Pass
	})
	got := rrl(t, "release orders -n 3 --redis %s", proxy.Addr())
	assert.Equal(t, []any{exitError, ""}, []any{got.code, got.stdout})
	assert.Regexp(t, `^rrl: orders: outcome unknown`, got.stderr)
	s.play(`show orders --json =~ "free":4,` + "\n")
}
