package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/demo"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/story"
)

// findings runs doctor, and returns what it found by the checks.
func (s servers) findings() (outcome, map[any]map[string]any) {
	s.t.Helper()
	got := s.rrl("doctor --json --time 1m")
	found := map[any]map[string]any{}
	for _, f := range object(s.t, got.stdout)["findings"].([]any) {
		finding := f.(map[string]any)
		found[finding["check"]] = finding
	}
	return got, found
}

func TestDoctorJudgesLimiters(t *testing.T) {
	t.Parallel()
	s := alone(t)
	got, found := s.findings()
	want := exitYes
	if found["round trip"]["level"] == "warning" { // a busy machine's are slow
		want = exitNo
	}
	assert.Equal(t, want, got.code, "%+v", got)
	assert.Equal(t, "ok", found["rights"]["level"])

	s.play("redis HSET own rate 10 interval 60000 type 1\nredis SET {own}:value:ann 9\n")
	limitertest.AddGrants(t, s.rdb, "{own}:permits:ann", 0, 1, 1)
	got, found = s.findings()
	assert.Equal(t, exitNo, got.code, "%+v", got)
	assert.Contains(t, found["client_no_ttl"]["text"], "1 limiter: own: keys of 1 client have no time to live")

	s.play("redis HSET mixed rate 10 interval 60000 type 0\nredis SET {mixed}:value 8\n")
	limitertest.AddGrants(t, s.rdb, "{mixed}:permits", 0, 1, 1)
	now := float64(limitertest.ServerNow(t, s.rdb))
	require.NoError(t, s.rdb.Do(t.Context(), "zadd", "{mixed}:permits", now, limitertest.NewMember(t, codec.LayoutB, 1)).Err())
	got, found = s.findings()
	assert.Equal(t, exitError, got.code, "%+v", got)
	assert.Empty(t, got.stderr, "findings are no error of rrl's")
	assert.Equal(t, "error", found["mixed_layouts"]["level"])
	assert.Contains(t, found["old layouts"]["text"], "1 limiter with members of layout B")

	// It looks at all limiters while it has time, also at hashes that were meant for one.
	s.play("redis HSET own rate ten\nredis SET {none}:permits x\nredis HSET none rate 10 interval 60000 type 0\n")
	for _, flags := range []string{"--time 1m", "--all"} {
		got = s.rrl("doctor %s", flags)
		assert.Equal(t, exitError, got.code)
		assert.Contains(t, strings.Join(strings.Fields(got.stdout), " "), `bad_config: 1 limiter broken: own: field rate is "ten"`)
		assert.Contains(t, got.stdout, "wrong_type: 1 limiter broken")
		assert.Contains(t, got.stdout, "all 3 limiters looked at; 3 broken, 0 used up\n")
	}
	got = s.rrl("doctor --sample 1")
	assert.Contains(t, got.stdout, "1 of about ")
	assert.Contains(t, got.stdout, "--all looks at all of them")
}

// One long name does not make each line as long, and wide letters keep the columns
// straight; a terminal has room for all.
func TestList_LongNamesKeepColumns(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	long := strings.Repeat("x", 4096)
	for _, name := range []string{"orders", "限流器", long} {
		require.Zero(t, s.rrl("set-rate %s 100/1s", name).code)
	}
	assert.Equal(t, "NAME    STATE  RATE    ORIGIN    TYPE     KEEP-ALIVE  EXPIRES IN\n"+
		"orders  fine   100/1s  override  OVERALL  -           -\n"+
		long+"  fine   100/1s  override  OVERALL  -           -\n"+
		"限流器  fine   100/1s  override  OVERALL  -           -\n", s.rrl("ls").stdout)
	plain := func(_ int, line string) string { return line }
	for line := range strings.SplitSeq(table([][]string{{"NAME", "RATE"}, {long, "100/1s"}, {"a", "1/1s"}}, 40, plain), "\n") {
		assert.LessOrEqual(t, utf8.RuneCountInString(line), 40)
	}
}

func TestListWalksManyKeys(t *testing.T) {
	t.Parallel()
	s := shared(t)
	prefix := redistest.Name(t)
	pipe := s.rdb.Pipeline()
	for i := range 1500 {
		pipe.HSet(t.Context(), fmt.Sprintf("%s:%04d", prefix, i), "rate", i+1, "interval", 1000, "type", i%2)
	}
	require.NoError(t, limitertest.Second(pipe.Exec(t.Context())))
	all := s.list(look.EscapeGlob(prefix) + ":*")
	require.Len(t, all, 1500)
	for i, l := range all {
		require.EqualValues(t, i+1, l.Rate)
	}
}

func TestProgressLeavesNoTrace(t *testing.T) {
	t.Parallel()
	w := newWalk(nil, "")
	w.add([]*look.Short{{Name: "a"}}, 1000, 500)
	assert.Equal(t, "[###############               ]  50% of 1000 keys, 1 limiter", w.progress(80))
	w.add([]*look.Short{{Name: "b"}}, 0, 5000)
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
func inBubble(t *testing.T, args ...string) outcome {
	t.Helper()
	return servers{}.inBubble(t, args...)
}

func (s servers) inBubble(t *testing.T, args ...string) (got outcome) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { got = rrlWith(t.Context(), s.env, args...) })
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
		got := random.ReplaceAllString(inBubble(t, story.Words(line)...).stdout, "rrl-demo:RANDOM")
		assert.Regexp(t, `never over the limit|"within_limit":true`, got)
		story.Golden(t, filepath.Join("testdata", "demo", name+".txt"), got)
	}
	got := inBubble(t, "demo", "--clients", "3", "--tries", "10").stdout // of which the order is not known
	for _, client := range []string{"client 1 ", "client 2 ", "client 3 "} {
		assert.Equal(t, 10, strings.Count(got, client))
	}
	assert.Contains(t, got, "3 of 3\nnever over the limit")
}

// Commands with limiters of their own wait for an answer as long as others.
func TestConnectTimeout_AnAnswerMayTakeAsLong(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"bench --time 100ms --callers 1 --limiters 2", "demo --tries 1"} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			m := newServer(t)
			through, proxy := m.behind(t)
			var late atomic.Bool
			proxy.OnCommand(func(c redistest.Command) redistest.Action {
				if c.Name() == "evalsha" && late.CompareAndSwap(false, true) {
					return redistest.Pass.After(script.DefaultTimeout + time.Second/2)
				}
				return redistest.Pass
			})
			got := through.ends(t.Context(), line+" --connect-timeout 1m")
			assert.Equal(t, exitYes, got.code, "%+v", got)
			assert.True(t, late.Load())
		})
	}
}

// A demo on a given Redis leaves nothing, also if it is interrupted, and none uses the
// Redis of the environment.
func TestDemo_LeavesGivenRedisClean(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	byEnv := servers{env: map[string]string{"REDIS_URL": s.addr}}
	for _, line := range []string{"demo --tries 3", "demo sliding-log --json", "demo fixed-window"} {
		byEnv.inBubble(t, story.Words(line)...)
		assert.Zero(t, s.TotalConnectionCount())
	}
	got := s.rrl("demo --rate 30/100ms --tries 10 --timeout 10s")
	require.Equal(t, exitYes, got.code, "%+v", got)
	assert.Contains(t, got.stdout, "10 tries")
	assert.Positive(t, s.CommandCount())
	assert.Empty(t, s.Keys())
	interrupted(t, append(s.flags, "demo", "--rate", "9/1h", "--timeout", "10s")...)
	assert.Empty(t, s.Keys())
	synctest.Test(t, func(t *testing.T) { interrupted(t, "demo", "fixed-window") })

	for _, sc := range demo.Scenarios() {
		s.fails("try rrl take "+sc.Name, "demo", sc.Name)
		s.fails(`unexpected argument "more"`, "demo", sc.Name, "more")
		assert.Contains(t, rrl(t, "demo %s --help", sc.Name).stdout, "Examples:")
	}
}

// cutOff is a writer that calls a function once it has seen some lines.
type cutOff struct {
	bytes.Buffer
	after int
	call  func()
}

func (c *cutOff) Write(p []byte) (int, error) {
	if c.after--; c.after == 0 {
		c.call()
	}
	return c.Buffer.Write(p)
}

// interrupted runs a command that is interrupted once it has printed something.
func interrupted(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stderr bytes.Buffer
	code := run(ctx, args, &cutOff{after: 3, call: cancel}, &stderr, func(string) string { return "" })
	assert.Equal(t, exitError, code, args)
	assert.Equal(t, "rrl: interrupted\n", stderr.String(), args)
}

// dashboard runs rrl dashboard until the test ends, and returns what it printed first.
func (s servers) dashboard(format string, args ...any) served {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	r, w := io.Pipe()
	ended := make(chan int, 1)
	var stderr bytes.Buffer
	line := story.Words("dashboard --json --listen 127.0.0.1:0 " + fmt.Sprintf(format, args...))
	go func() {
		code := runPatiently(ctx, append(line, s.flags...), w, &stderr, s.env)
		_ = w.Close()
		ended <- code
	}()
	s.t.Cleanup(func() {
		cancel()
		select {
		case code := <-ended:
			assert.Equal(s.t, exitYes, code, stderr.String())
		case <-time.After(time.Minute):
			s.t.Error("it does not end")
		}
	})
	first, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(s.t, err, stderr.String())
	go func() { _, _ = io.Copy(io.Discard, r) }()
	var answer served
	require.NoError(s.t, json.Unmarshal([]byte(first), &answer), first)
	return answer
}

// with returns the servers with these variables of the environment.
func (s servers) with(env map[string]string) servers {
	s.env = env
	return s
}

func ask(t *testing.T, method, url, token, host string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	require.NoError(t, err)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	r.Host = host
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(text)
}

func TestDashboard_Demo(t *testing.T) {
	t.Parallel()
	answer := servers{t: t}.with(map[string]string{"REDIS_URL": "nowhere:1"}).dashboard("--write --demo")
	url := answer.URL
	assert.Len(t, answer.Token, 26)
	_, body := ask(t, http.MethodGet, url+"api/about", answer.Token, "")
	assert.Contains(t, body, `"allowed":true`)
	assert.Contains(t, body, `"refusals":true`)
	_, body = ask(t, http.MethodGet, url+"api/limiters?limit=100", "", "")
	for _, want := range []string{"demo:orders", "demo:damaged", "PER_CLIENT"} {
		assert.Contains(t, body, want)
	}
	require.Eventually(t, func() bool { // the demo's window is there while its callers come
		_, body := ask(t, http.MethodGet, url+"api/others", "", "")
		return strings.Contains(body, "demo:window:")
	}, time.Minute, 10*time.Millisecond)
}

func TestDashboard_ShowsLimitersAndOtherKeys(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.play("try-set-rate orders 10/1m => ...\n")
	require.NoError(t, s.rdb.Set(t.Context(), "api:ann", 3, time.Minute).Err())
	require.NoError(t, s.rdb.Set(t.Context(), "day:ann", 2, time.Minute).Err())
	answer := s.dashboard("--keys fixed-window:api:=5/1m --keys fixed-window:day:=5/daily@Europe/Berlin ord*")
	assert.Empty(t, answer.Token)
	_, body := ask(t, http.MethodGet, answer.URL+"api/limiters", "", "")
	assert.Contains(t, body, `"name":"orders"`)
	_, body = ask(t, http.MethodGet, answer.URL+"api/others", "", "")
	assert.Contains(t, body, `"name":"api:ann","bytes":7,"of":"fixed-window","limit":5,"free":2`)
	assert.Contains(t, body, `"name":"day:ann","bytes":7,"of":"fixed-window","limit":5,"free":3`)
	status, _ := ask(t, http.MethodPost, answer.URL+"api/change/delete?name=orders", "", "")
	assert.Equal(t, http.StatusUnauthorized, status)
}

const myToken, othersToken = "sixteen characters", "another of that length"

func tokenFile(t *testing.T, token string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(token), 0o600))
	return file
}

func TestDashboard_Tokens(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	answer := s.with(map[string]string{"RRL_DASHBOARD_TOKEN": myToken + "\n"}).dashboard("--write")
	assert.Empty(t, answer.Token, "what is known already is not printed")
	_, body := ask(t, http.MethodGet, answer.URL+"api/about", myToken, "")
	assert.Contains(t, body, `"allowed":true`)
	file := tokenFile(t, othersToken+"\n")
	answer = s.with(map[string]string{"RRL_DASHBOARD_TOKEN": myToken}).dashboard("--write --token-file %s", file)
	for token, want := range map[string]string{myToken: `"allowed":false`, othersToken: `"allowed":true`} {
		_, body := ask(t, http.MethodGet, answer.URL+"api/about", token, "")
		assert.Contains(t, body, want)
	}
	got := s.rrl("dashboard --write --token-file %s", tokenFile(t, "sixteen charactèrs"))
	assert.Contains(t, got.stderr, "a browser can't send")
	assert.NotContains(t, got.stderr, "sixteen")
	assert.True(t, strings.HasPrefix(served{URL: "u", Shows: "s", Token: "t"}.String(), "dashboard: u shows s\ntoken: t"))
}

func TestDashboard_FlagsAreCheckedFirst(t *testing.T) {
	t.Parallel()
	servers{t: t}.fails("--demo shows keys of its own: leave out --keys", "dashboard", "--demo", "--keys", "fixed-window:api:=5/1m")
	// Before a server that is away.
	for flags, want := range map[string]string{"--keys x": "want KIND:PREFIX", "--token short": "easily guessed"} {
		servers{t: t, flags: []string{"--redis", "127.0.0.1:1"}}.fails(want, story.Words("dashboard "+flags)...)
	}
}

// It shows the server that was named, and says so first.
func TestDashboard_NamesServerItShows(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.play("try-set-rate orders 10/1m => ...\n")
	env, elsewhere := map[string]string{"REDIS_URL": "redis://" + s.addr}, map[string]string{"REDIS_URL": "nowhere:1"}
	for name, tt := range map[string]struct {
		s     servers
		args  string
		shows string
		has   string
	}{
		"a variable":               {servers{t: t, env: env}, "", "the server at " + s.addr, "orders"},
		"a flag before a variable": {s.with(elsewhere), "", "the server at " + s.addr, "orders"},
		"a demo by name":           {servers{t: t, env: env}, "--demo", "a demo: ", "demo:orders"},
	} {
		answer := tt.s.dashboard("%s", tt.args)
		assert.Contains(t, answer.Shows, tt.shows, name)
		assert.Contains(t, strings.SplitN(answer.String(), "\n", 2)[0], tt.shows, name)
		_, body := ask(t, http.MethodGet, answer.URL+"api/limiters?limit=100", "", "")
		assert.Contains(t, body, `"name":"`+tt.has, name)
	}
}

// If other machines reach the page, looking needs a token, and its names are known.
func TestDashboard_OtherAddressesNeedToken(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	const look = "a token for looking"
	byFlag := s.dashboard("--listen 0.0.0.0:0 --host limits.example --token %q", look)
	assert.Equal(t, "http://limits.example"+portOf(byFlag), byFlag.URL)
	assert.NotContains(t, byFlag.String(), look)
	byEnv := s.with(map[string]string{"RRL_DASHBOARD_READ_TOKEN": look}).dashboard("--listen 0.0.0.0:0")
	open, local := s.dashboard("--listen 0.0.0.0:0 --open"), s.dashboard("")
	for _, tt := range []struct {
		answer      served
		token, host string
		want        int
	}{
		{byFlag, look, "", http.StatusOK}, {byFlag, "", "", http.StatusUnauthorized}, {byFlag, look + "x", "", http.StatusUnauthorized},
		{byFlag, look, "limits.example", http.StatusOK}, {byFlag, look, "evil.example", http.StatusMisdirectedRequest},
		{byEnv, look, "", http.StatusOK}, {byEnv, "", "", http.StatusUnauthorized},
		{byEnv, look, "limits.example", http.StatusMisdirectedRequest},
		{open, "", "", http.StatusOK}, {open, "", "localhost", http.StatusOK}, {open, "", "0.0.0.0", http.StatusOK},
		{open, "", "evil.example", http.StatusMisdirectedRequest}, {open, "", "192.0.2.1", http.StatusMisdirectedRequest},
		{local, "", "", http.StatusOK}, {local, "", "10.0.0.1:8320", http.StatusMisdirectedRequest},
	} {
		for _, path := range []string{"", "api/limiters"} {
			status, _ := ask(t, http.MethodGet, "http://127.0.0.1"+portOf(tt.answer)+path, tt.token, tt.host)
			assert.Equal(t, tt.want, status, "%s by %q with %q", tt.answer.URL, tt.host, tt.token)
		}
	}
	addrs, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, addr := range addrs {
		if network, ok := addr.(*net.IPNet); ok && network.IP.To4() != nil {
			status, _ := ask(t, http.MethodGet, "http://127.0.0.1"+portOf(open), "", network.IP.String())
			assert.Equal(t, http.StatusOK, status, "%s", network.IP)
		}
	}
}

// portOf returns ":", the port at which a page is served, and "/".
func portOf(answer served) string { return answer.URL[strings.LastIndex(answer.URL, ":"):] }

// Without an address it looks at this machine's Redis, as all other commands do, and says how to see a demo
// if there is none.
func TestTheDashboardOfNoAddress(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var stderr bytes.Buffer
	stdout := cutOff{after: 1, call: cancel}
	code := runPatiently(ctx, story.Words("dashboard --listen 127.0.0.1:0"), &stdout, &stderr, nil)
	if code == exitYes {
		assert.Contains(t, stdout.String(), " shows the server at 127.0.0.1:6379\n")
		return
	}
	assert.Contains(t, stderr.String(), "127.0.0.1:6379")
	assert.Contains(t, stderr.String(), "; --redis or $REDIS_URL names another server, --demo starts one to look around\n")
}

// Members of grants of one slice of a large limiter become one, and show says by how much that makes permits late.
func TestShowOfMergedMembers(t *testing.T) {
	t.Parallel()
	s := shared(t)
	name := redistest.Name(t)
	limiter := limitertest.NewClient(t, s.rdb).RateLimiter(name, rratelimiter.WithDefault(rratelimiter.PerDay(10_000)))
	taken := int64(0)
	require.Eventually(t, func() bool {
		limitertest.MustAcquire(t, limiter, 1)
		taken++
		return taken > 60 && s.show("%q", name).States[0].Merged > 0
	}, time.Minute, time.Millisecond)
	found := s.show("%q", name)
	assert.Empty(t, found.Anomalies)
	st := found.States[0]
	assert.Equal(t, taken, st.InUse)
	assert.Less(t, st.Members, taken)
	assert.Equal(t, (22*time.Minute + 30*time.Second).Milliseconds(), st.LateMS)
	assert.Regexp(t, `(?m)^  merged +\d+ of them, whose permits come back up to 22m30s late$`, s.rrl("show %q", name).stdout)
}

func TestShowReadsABoundedPartOfALargeSet(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.play(fmt.Sprintf("set-rate orders 10000/1h\nredis SET {orders}:value %d\n", 10_000-look.MaxMembers-1))
	limitertest.AddGrants(t, s.rdb, "{orders}:permits", 0, look.MaxMembers+1, 1)
	found := s.show("orders")
	require.Len(t, found.Anomalies, 1)
	assert.Equal(t, "not_all_read", found.Anomalies[0].Kind)
	assert.Nil(t, found.States[0].Free)
	assert.EqualValues(t, look.MaxMembers+1, found.States[0].Members)
	assert.Len(t, found.States[0].Permits, 20)
}

// A large set takes several calls of the script, and permits that have run out are no
// longer in use.
func TestReleaseOfManyMembers(t *testing.T) {
	t.Parallel()
	s := shared(t)
	name := redistest.Name(t)
	s.play(fmt.Sprintf("set-rate %[1]s 10000/1h => ...\nredis SET {%[1]s}:value 8950\n", name))
	limitertest.AddGrants(t, s.rdb, "{"+name+"}:permits", 2*time.Hour, 50, 1)
	limitertest.AddGrants(t, s.rdb, "{"+name+"}:permits", time.Second, 1000, 1)
	s.play(`
release NAME -n 300  => gave back 300 permits
release NAME -n 5000 => gave back 700 permits, no more were in use
`, "NAME", name)
	assert.EqualValues(t, 10_000, *s.show("%q", name).States[0].Free)
}

// What may have happened is not done twice, and not said to have been done.
func TestRelease_LostAnswerIsUnknownOutcome(t *testing.T) {
	t.Parallel()
	s := alone(t)
	proxy := redistest.StartProxy(t, s.addr)
	s.play("set-rate orders 10/1h => ...\nacquire orders -n 9 => ...\n")
	var sent atomic.Int64
	proxy.OnCommand(func(c redistest.Command) redistest.Action {
		if c.Name() == "evalsha" && c.Args[1] == lua.Release.SHA || c.Name() == "eval" && c.Args[1] == lua.Release.Source {
			sent.Add(1)
			if c.Name() == "eval" {
				return redistest.DropAnswer
			}
		}
		return redistest.Pass
	})
	got := rrl(t, "release orders -n 3 --redis %s", proxy.Addr())
	assert.Equal(t, exitError, got.code)
	assert.Empty(t, got.stdout)
	assert.Regexp(t, `^rrl: orders: outcome unknown`, got.stderr)
	assert.LessOrEqual(t, sent.Load(), int64(2), "by its hash, then by its source")
	assert.EqualValues(t, 4, *s.show("orders").States[0].Free)
}
