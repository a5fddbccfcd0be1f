package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/otellimit"
)

type site struct {
	t      *testing.T
	url    string
	logged *redistest.Buffer
	send   func(*http.Request) (*http.Response, error)
}

// serve runs a gateway as the command does, until the test ends.
func serve(t *testing.T, args ...string) *site {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	s := &site{t: t, logged: &redistest.Buffer{}, send: client.Do}
	ctx, cancel := context.WithCancel(context.Background())
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		usual := []string{"--listen", "127.0.0.1:0", "--timeout", "1m"} // a busy machine is no reason to give up
		err := run(ctx, append(usual, args...), in, s.logged)
		_ = in.CloseWithError(errors.Join(err, io.EOF))
		done <- err
	}()
	t.Cleanup(func() {
		client.CloseIdleConnections()
		cancel()
		assert.NoError(t, <-done)
	})
	said := bufio.NewReader(out)
	first, err := said.ReadString('\n')
	require.NoError(t, err)
	go func() { _, _ = io.Copy(io.Discard, said) }()
	s.url = strings.Fields(first)[2]
	return s
}

// inMemory answers in place of the network, and sees what would go out.
type inMemory struct {
	t     testing.TB
	model http.Handler
}

func (s *inMemory) RoundTrip(r *http.Request) (*http.Response, error) {
	assert.Equal(s.t, []string{"192.0.2.1"}, r.Header["X-Forwarded-For"], "the model hears the peer's address and no other")
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	s.model.ServeHTTP(w, r)
	got := w.Result()
	got.Request = r
	return got, nil
}

// newInMemory returns a gateway whose model is in memory, for users of these plans; others have none.
func newInMemory(t testing.TB, rdb redistest.Client, log io.Writer, plans map[string]string) (*gateway, *inMemory) {
	t.Helper()
	transport := &inMemory{t, chat()}
	g, err := newGateway(config{
		rdb: rdb.(*redis.Client), model: &url.URL{Scheme: "http", Host: "model"}, transport: transport,
		planOf:  func(user string) string { return plans[user] },
		timeout: time.Minute, failure: limit.FailClosed(), log: slog.New(slog.NewTextHandler(log, nil)),
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, g.client.Close(context.Background())) })
	return g, transport
}

// virtual runs test in a bubble, with a site whose model and Redis are in memory.
func virtual(t *testing.T, plans map[string]string, test func(t *testing.T, s *site, rdb redistest.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		s := &site{t: t, logged: &redistest.Buffer{}}
		g, _ := newInMemory(t, rdb, s.logged, plans)
		s.send = func(r *http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			g.ServeHTTP(w, r)
			return w.Result(), nil
		}
		test(t, s, rdb)
	})
}

type answer struct {
	*http.Response

	body string
}

// ask makes a request that must be answered by a status. "GET /hello" is what it asks for.
func (s *site) ask(what, body string, header http.Header, status int) answer {
	s.t.Helper()
	method, path, _ := strings.Cut(what, " ")
	r := httptest.NewRequest(method, s.url+path, strings.NewReader(body))
	r.RequestURI = ""
	maps.Copy(r.Header, header)
	got, err := s.send(r)
	require.NoError(s.t, err)
	defer func() { _ = got.Body.Close() }()
	text, err := io.ReadAll(got.Body)
	require.NoError(s.t, err)
	require.Equal(s.t, status, got.StatusCode, "%s: %s", what, text)
	return answer{got, string(text)}
}

// chat makes a request of a user, whose answer has that many words.
func (s *site) chat(user string, words, status int) answer {
	s.t.Helper()
	return s.ask("POST /chat", fmt.Sprintf(`{"prompt": "say hello", "words": %d}`, words), http.Header{"X-User": {user}}, status)
}

// remaining is what the headers say remains of each policy.
func remaining(t testing.TB, h http.Header) map[string]int64 {
	t.Helper()
	states, err := middlewaretest.Members(h, "RateLimit")
	require.NoError(t, err)
	all := map[string]int64{}
	for _, s := range states {
		all[s.Name] = s.Params["r"]
	}
	return all
}

// checkKeys checks that Redis has keys of the gateway alone, each with the user as its hash tag.
func checkKeys(t testing.TB, rdb redistest.Client) {
	t.Helper()
	keys, err := rdb.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	for _, key := range keys {
		assert.Regexp(t, `^gateway:(requests|tokens)-(minute|day):\{[^{}]*\}(:value|:permits)?$`, key)
	}
}

func TestGateway_LimitsRequestsAndTokensOfAPlan(t *testing.T) {
	t.Parallel()
	users := map[string]string{"ann": "free", "bob": "paid", "eve": "a plan of which this program does not know"}
	virtual(t, users, func(t *testing.T, s *site, rdb redistest.Client) {
		for i := range int64(5) {
			got := s.chat("ann", 50, http.StatusOK)
			// The headers have the estimate, 100 tokens and those of the prompt, after what the answers before have cost.
			tokens := 52*i + 109
			assert.Equal(t, map[string]int64{
				"requests-minute": 4 - i, "requests-day": 99 - i, "tokens-minute": 1000 - tokens, "tokens-day": 2000 - tokens,
			}, remaining(t, got.Header))
			assert.Equal(t, fmt.Sprint(2000-tokens), got.Header.Get("X-Remaining-Tokens-Day"))
		}
		refused := s.chat("ann", 1, http.StatusTooManyRequests)
		assert.Contains(t, refused.body, `"violated-policies":["requests-minute"]`)
		assert.Equal(t, "60", refused.Header.Get("Retry-After"))
		s.chat("eve", 1, http.StatusOK)
		for range 20 {
			s.chat("bob", 1, http.StatusOK)
		}
		checkKeys(t, rdb)

		time.Sleep(time.Minute)
		got := s.chat("ann", 2000, http.StatusOK)
		assert.Equal(t, map[string]int64{
			"requests-minute": 4, "requests-day": 94, "tokens-minute": 891, "tokens-day": 2000 - 5*52 - 109,
		}, remaining(t, got.Header), "a refused request was charged nothing")
		time.Sleep(time.Minute)
		assert.Contains(t, s.chat("ann", 1, http.StatusTooManyRequests).body, `"violated-policies":["tokens-day"]`)
		assert.Empty(t, s.logged.String())
		users["ann"] = "paid"
		got = s.chat("ann", 1, http.StatusOK)
		assert.EqualValues(t, 1_000_000-5*52-2002-108, remaining(t, got.Header)["tokens-day"], "what was used stays counted")
	})
}

// The page on middleware shows the code that runs here.
func TestDocs_ShowTheGateway(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/http.md")
	require.NoError(t, err)
	source, err := os.ReadFile("gateway.go")
	require.NoError(t, err)
	_, shown, found := strings.Cut(string(page), "```go\nfunc (g *gateway)")
	require.True(t, found)
	shown, _, _ = strings.Cut(shown, "```")
	assert.Contains(t, string(source), "func (g *gateway)"+shown)
}

func TestGateway_SettlesByTheAnswer(t *testing.T) {
	t.Parallel()
	virtual(t, nil, func(t *testing.T, s *site, _ redistest.Client) {
		user := http.Header{"X-User": {"ann"}}
		left := int64(2000)
		for _, c := range []struct {
			body   string
			status int
			cost   int64
		}{
			{`{"prompt": "say hello", "words": 20}`, http.StatusOK, 22},
			{`{"prompt": "say hello", "words": 30, "stream": true}`, http.StatusOK, 32},
			{`{"prompt": "say hello", "words": -1}`, http.StatusBadRequest, 0},
			{`no JSON`, http.StatusBadRequest, 0},
		} {
			got := s.ask("POST /chat", c.body, user, c.status)
			assert.Equal(t, left-100-int64(len(c.body)/4), remaining(t, got.Header)["tokens-day"])
			left -= c.cost
		}
	})
}

func TestRunReportsWhatIsWrong(t *testing.T) {
	t.Parallel()
	for says, args := range map[string][]string{
		"not defined":      {"--nonsense"},
		"invalid URL":      {"--redis", "x"},
		"listen":           {"--listen", "256.0.0.1:0"},
		"help requested":   {"--help"},
		"parse error":      {"--timeout", "long"},
		"redis: invalid U": {"--redis", "http://127.0.0.1"},
		"open or local":    {"--failure", "ajar"},
	} {
		require.ErrorContains(t, run(t.Context(), args, &redistest.Buffer{}, &redistest.Buffer{}), says)
	}
}

// FuzzGateway is an outsider who may send anything.
func FuzzGateway(f *testing.F) {
	f.Add("POST", "/chat", "ann", "", "", "", "", `{"prompt": "say hello", "words": 20}`)
	f.Add("POST", "/chat?x=%00", "{a}:b", "198.51.100.7", "Connection", "X-User, Upgrade", "Bearer x", strings.Repeat("x", 100))
	f.Add("PUT", "//chat/../metrics", "\xff\r\n", "unknown", "Upgrade", "h2c", "Basic eDp5", "")
	f.Add("HEAD", "/chat", strings.Repeat("é", 200), "1.2.3.4, ::ffff:1.2.3.4%eth0", "X-Real-Ip", "}{", "", "{")
	f.Add("CONNECT", "*", "", "", "Content-Length", "-1", "", "")

	rdb, _ := redistest.Mini(f)
	var log bytes.Buffer
	g, transport := newInMemory(f, rdb, &log, map[string]string{"ann": "paid"})
	asked := 0
	f.Fuzz(func(t *testing.T, method, target, user, forwarded, name, value, authorization, body string) {
		at, err := url.ParseRequestURI(target)
		if err != nil {
			return // the server does not take it
		}
		transport.t = t
		log.Reset()
		r := httptest.NewRequest(http.MethodGet, "/", strings.NewReader(body))
		r.Method, r.URL, r.RequestURI = method, at, target
		r.Header = http.Header{"X-User": {user}, "X-Forwarded-For": {forwarded}, "Forwarded": {"for=" + forwarded}, "Authorization": {authorization}}
		r.Header[http.CanonicalHeaderKey(name)] = []string{value}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)

		// 502 is the answer to an Upgrade that the model does not know.
		if w.Code >= http.StatusInternalServerError && (w.Code != http.StatusBadGateway || !strings.EqualFold(name, "Upgrade")) {
			t.Errorf("answer %d: %s", w.Code, log.String())
		}
		remaining(t, w.Header())
		if w.Code == http.StatusTooManyRequests && method != http.MethodHead {
			assert.True(t, json.Valid(w.Body.Bytes()), w.Body)
		}
		checkKeys(t, rdb)
		if asked++; asked%50 == 0 {
			require.NoError(t, rdb.FlushDB(t.Context()).Err())
		}
	})
}

var (
	consoles = regexp.MustCompile("(?s)```console\n(.*?)```")
	commands = regexp.MustCompile(`(?m)^\$ `)
	waits    = regexp.MustCompile(`t=\d+|Retry-After: \d+|in \d+ s`)
)

// TestReadmeShowsWhatHappens runs the commands in README.md, in their order, and
// looks for each line that they are said to print. How long to wait may differ.
func TestReadmeShowsWhatHappens(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		redistest.SkipOrFail(t, "no curl")
	}
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	began, s := time.Now(), serve(t)
	err = s.runConsoles(string(text))
	// Until it has taken less than a window: what it sees is otherwise once that is over, and a busy machine must not decide a test.
	for time.Since(began) > 30*time.Second {
		t.Logf("it took %v, again: %v", time.Since(began), err)
		began, s = time.Now(), serve(t)
		err = s.runConsoles(string(text))
	}
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "level=") {
			assert.Contains(t, s.logged.String(), strings.TrimSpace(line))
		}
	}
}

// runConsoles runs all commands of the text, and returns the error of the first that prints something else.
func (s *site) runConsoles(text string) error {
	run := 0
	for _, console := range consoles.FindAllStringSubmatch(text, -1) {
		for _, command := range commands.Split(console[1], -1)[1:] {
			line, said, _ := strings.Cut(command, "\n")
			answer, err := exec.CommandContext(s.t.Context(), "bash", "-c", strings.ReplaceAll(line, "http://127.0.0.1:8080", s.url)).Output()
			if err != nil {
				return fmt.Errorf("%s: %w", line, err)
			}
			got := strings.ReplaceAll(waits.ReplaceAllString(string(answer), "N"), "\r", "")
			for want := range strings.Lines(said) {
				if !strings.Contains("\n"+got+"\n", "\n"+strings.TrimSuffix(waits.ReplaceAllString(want, "N"), "\n")+"\n") {
					return fmt.Errorf("%s prints %s and not %s", line, got, want)
				}
			}
			run++
		}
	}
	if run < 7 {
		return fmt.Errorf("only %d commands", run)
	}
	return nil
}

const docs = "../../docs/observability"

func TestPromtoolAcceptsTheRules(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "promtool")
	promtool := ""
	for _, at := range []string{"../../.cache/bin/promtool", "promtool"} {
		if path, err := exec.LookPath(at); err == nil && promtool == "" {
			promtool = path
		}
	}
	if promtool == "" {
		redistest.SkipOrFail(t, "no promtool: neither .cache/bin nor $PATH has one (scripts/install-prometheus.sh installs it)")
	}
	for _, args := range [][]string{{"check", "rules", docs + "/alerts.yml"}, {"test", "rules", docs + "/alerts_test.yml"}} {
		said, err := exec.Command(promtool, args...).CombinedOutput()
		assert.NoError(t, err, "promtool %v: %s", args, said)
	}
}

// export returns what Prometheus reads of a program to which everything has happened.
func export(t *testing.T) string {
	t.Helper()
	meters, metrics, stop, err := newMetrics()
	require.NoError(t, err)
	t.Cleanup(stop)
	o := otellimit.New(otellimit.WithMeterProvider(meters))
	for _, outcome := range []limit.Outcome{limit.Granted, limit.Refused, limit.TooCostly, limit.Failed} {
		o.Decided(t.Context(), limit.Decided{Limiter: "a", Limit: 10, Permits: 1, Outcome: outcome, Source: limit.FromRedis, Kind: limit.KindCanceled})
	}
	o.Landed(limit.Flight{Requests: 1, Calls: 1, Repeats: 1, RoundTrip: time.Millisecond})
	o.Waiting("a", 1)
	o.Leased(limit.Lease{Limiter: "a", Permits: 1})
	o.Leased(limit.Lease{Limiter: "a", Permits: 1, Ended: true, Unused: 1})
	o.Settled(limit.Settled{Limiter: "a", Reserved: 1, Actual: 1})
	w := httptest.NewRecorder()
	metrics.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
	return w.Body.String()
}

var (
	names  = regexp.MustCompile(`\bratelimiter_\w+`)
	values = regexp.MustCompile(`(?:ratelimiter_\w+|error_type|le)!?=~?\\?"([\w.|]+)\\?"`)
)

// Each metric, label and value of the dashboard and the alerts is one that programs export.
func TestDashboardAndAlerts_NameWhatIsExported(t *testing.T) {
	t.Parallel()
	exported := export(t)
	for _, file := range []string{"dashboard.json", "alerts.yml"} {
		text, err := os.ReadFile(docs + "/" + file)
		require.NoError(t, err)
		words := names.FindAllString(string(text), -1)
		assert.Greater(t, len(words), 10, file)
		for _, match := range values.FindAllStringSubmatch(string(text), -1) {
			words = append(words, strings.Split(match[1], "|")...)
		}
		for _, word := range words {
			assert.Regexp(t, `\b`+word+`\b`, exported, file)
		}
	}
}
