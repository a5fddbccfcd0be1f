package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// hello checks the answers to requests of a user for /hello, one for each number: what is
// left to the user then, -1 if the request is refused.
func (s *site) hello(user string, threshold int64, left ...int64) {
	s.t.Helper()
	s.route(user, "GET /hello", threshold, 30, left...)
}

func (s *site) route(user, what string, threshold, window int64, left ...int64) {
	s.t.Helper()
	for _, n := range left {
		status, names := http.StatusOK, []string{"Content-Type", "Ratelimit", "Ratelimit-Policy"}
		if n < 0 {
			status, names = http.StatusTooManyRequests, []string{
				"Cache-Control", "Content-Type", "Ratelimit", "Ratelimit-Policy", "Retry-After", "X-Content-Type-Options",
			}
			if threshold == 0 {
				names = slices.DeleteFunc(names, func(name string) bool { return name == "Retry-After" })
			}
		}
		got := s.as(user, what, status)
		all := quotas(s.t, got.Header)
		assert.Len(s.t, all, 2)
		assert.Equal(s.t, []int64{s.quota, 60}, []int64{all["client"][0], all["client"][1]})
		assert.Equal(s.t, [3]int64{threshold, window, max(0, n)}, all["user"])
		assert.Equal(s.t, names, slices.Sorted(maps.Keys(got.Header)))
		assert.NotEmpty(s.t, got.body)
		if n < 0 {
			assert.Contains(s.t, got.body, `"violated-policies":["user"]`)
		}
	}
}

func TestEachUserHasTheDeclaredRateOfEachRoute(t *testing.T) {
	t.Parallel()
	virtual(t, plenty, limit.FailClosed(), func(t *testing.T, s *site, rdb redistest.Client, _ *redistest.Proxy) {
		for _, user := range []string{"ann", "bob", "zoë"} {
			s.hello(user, 2, 1, 0, -1, -1, -1)
			s.route(user, "POST /orders", 3, 60, 2, 1, 0, -1, -1, -1)
		}
		checkKeys(t, rdb)
		time.Sleep(30 * time.Second)
		s.hello("ann", 2, 1, 0, -1)
		s.route("ann", "POST /orders", 3, 60, -1)
	})
}

// A changed threshold holds for the next request, whichever way it was changed.
func TestThresholdsChange(t *testing.T) {
	t.Parallel()
	virtual(t, plenty, limit.FailClosed(), func(t *testing.T, s *site, rdb redistest.Client, _ *redistest.Proxy) {
		set := func(n int64) {
			s.admin("PUT "+threshold("ann"), fmt.Sprintf(`{"threshold":%d}`, n), http.StatusOK)
		}
		s.hello("ann", 2, 1, 0, -1)
		set(4)
		s.hello("ann", 4, 1, 0, -1)
		set(1)
		s.hello("ann", 1, -1)
		require.NoError(t, rdb.HSet(t.Context(), thresholds, "limit:ann:/hello", "0").Err())
		s.hello("ann", 0, -1)
		set(7)
		s.hello("ann", 7, 2, 1, 0, -1)
		s.admin("DELETE "+threshold("ann"), "", http.StatusNoContent)
		s.hello("ann", 2, -1)
		assert.Contains(t, s.logged.String(), `msg="limit changed" actor=admin action=change kind=sliding-log limiter=hello`)
	})
}

func TestEachClientHasALimitOverAllItsUsers(t *testing.T) {
	t.Parallel()
	virtual(t, 5, limit.FailClosed(), func(t *testing.T, s *site, _ redistest.Client, _ *redistest.Proxy) {
		user := 0
		others := func(what string, status int, rate, left int64) {
			t.Helper()
			user++
			got := s.ask(what, "", http.Header{"X-User": {fmt.Sprint(user)}, "X-Forwarded-For": {"198.51.100.7"}}, status)
			all := quotas(t, got.Header)
			assert.Equal(t, [3]int64{rate, 60, left}, all["client"])
			if status == http.StatusTooManyRequests {
				assert.Len(t, all, 1, "the user's policy is not asked")
				assert.Contains(t, got.body, `"violated-policies":["client"]`)
			}
		}
		for left := range int64(5) {
			others("GET /hello", http.StatusOK, 5, 4-left)
		}
		others("GET /hello", http.StatusTooManyRequests, 5, 0)
		s.admin("PATCH /admin/rate?name=gateway:client:192.0.2.1", `{"rate":6,"keepState":true}`, http.StatusOK)
		others("GET /hello", http.StatusOK, 6, 0)
		others("GET /nowhere", http.StatusTooManyRequests, 6, 0)
	})
}

// Who guesses the token is refused after as many guesses as requests are allowed,
// and is not let in by the right one either.
func TestAdminNeedsTheToken(t *testing.T) {
	t.Parallel()
	guesses := []string{"", "Bearer", "Bearer ", "Bearer secre", "Bearer secret2", "bearer secret", "secret", "Basic secret"}
	paths := []string{"/limiters", "/openapi.json", "/rate?name=gateway:x", "/", "/nowhere"}
	virtual(t, int64(len(guesses)*len(paths))+1, limit.FailClosed(), func(t *testing.T, s *site, _ redistest.Client, _ *redistest.Proxy) {
		for _, guess := range guesses {
			for _, path := range paths {
				got := s.ask("PUT /admin"+path, "{}", http.Header{"Authorization": {guess}}, http.StatusUnauthorized)
				assert.Equal(t, "Bearer", got.Header.Get("WWW-Authenticate"))
			}
		}
		got := s.admin("GET /admin/limiters", "", http.StatusOK)
		assert.JSONEq(t, `{"rateLimiters":[],"prefixes":["gateway:"],"slidingLogs":["hello","orders"]}`, got.body)
		assert.NotEmpty(t, s.admin("GET /admin/limiters", "", http.StatusTooManyRequests).Header.Get("Retry-After"))
		s.as("ann", "GET /hello", http.StatusOK)
	})
}

func TestRequestsReachTheServices(t *testing.T) {
	t.Parallel()
	s := serve(t, plenty)
	assert.Equal(t, "Hello \"zoë\"\n", s.as("zoë", "GET /hello", http.StatusOK).body)
	for i := range 3 {
		got := s.ask("POST /orders", "tea", http.Header{"X-User": {"zoë"}}, http.StatusOK)
		assert.Equal(t, fmt.Sprintf("%d orders\n", i+1), got.body)
	}
	s.ask("POST /orders", strings.Repeat("x", 1<<17), http.Header{"X-User": {"greedy"}}, http.StatusRequestEntityTooLarge)
	s.as("zoë", "GET /nowhere", http.StatusNotFound)
	s.as("zoë", "DELETE /hello", http.StatusMethodNotAllowed)
}

func TestWhileRedisIsDownThePolicyAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		statuses [3]int // of a user whose threshold is 2
		says     string
	}{
		"closed": {[3]int{503, 503, 503}, "The rate limit could not be checked."},
		"open":   {[3]int{200, 200, 200}, "Hello"},
		"local":  {[3]int{200, 200, 429}, "quota has been exceeded"},
	} {
		failure, err := failureOf(name)
		require.NoError(t, err)
		virtual(t, plenty, failure, func(t *testing.T, s *site, _ redistest.Client, proxy *redistest.Proxy) {
			s.as("ann", "GET /hello", http.StatusOK) // tells the rate of the client's limit
			proxy.OnCommand(func(redistest.Command) redistest.Action { return redistest.Cut })
			var got answer
			for _, status := range c.statuses {
				got = s.as("bob", "GET /hello", status)
			}
			assert.Contains(t, got.body, c.says)
			if name == "closed" {
				assert.NotEmpty(t, got.Header.Get("Retry-After"))
				assert.True(t, json.Valid([]byte(got.body)), got.body)
				time.Sleep(time.Minute)
				s.admin("PUT "+threshold("ann"), `{"threshold":5}`, http.StatusServiceUnavailable)
			}
			proxy.OnCommand(nil)
			time.Sleep(time.Minute)
			s.hello("carl", 2, 1)
		})
	}
}

func TestRunReportsWhatIsWrong(t *testing.T) {
	t.Parallel()
	for says, args := range map[string][]string{
		"not defined":      {"--nonsense"},
		"invalid URL":      {"--redis", "x"},
		"listen":           {"--listen", "256.0.0.1:0"},
		"help requested":   {"--help"},
		"parse error":      {"--per-client", "many"},
		"redis: invalid U": {"--redis", "http://127.0.0.1"},
		"open or local":    {"--failure", "ajar"},
	} {
		require.ErrorContains(t, run(t.Context(), args, &redistest.Buffer{}, &redistest.Buffer{}), says)
	}
}

// FuzzGateway is an outsider who does not know the token and may send anything else.
func FuzzGateway(f *testing.F) {
	f.Add("GET", "/hello", "ann", "", "", "", "", "")
	f.Add("POST", "/orders?x=%00", "{a}:b", "198.51.100.7", "Bearer x", "Connection", "X-User, Upgrade", strings.Repeat("x", 100))
	f.Add("PUT", "/admin/threshold?limiter=hello&key=limit:ann:/hello", "rate:limit:config", "::1",
		"Bearer secret", "Content-Type", "application/json", `{"threshold":5}`)
	f.Add("PUT", "//admin/../admin/rate?name=gateway:", "\xff\r\n", "unknown", "Basic eDp5", "Upgrade", "h2c", "")
	f.Add("HEAD", "/hello", strings.Repeat("é", 200), "1.2.3.4, ::ffff:1.2.3.4%eth0", "", "X-Real-Ip", "}{", "")
	f.Add("CONNECT", "*", "", "", "", "Content-Length", "-1", "")

	rdb, _ := redistest.Mini(f)
	var log bytes.Buffer
	g, transport := inMemory(rdb, &log, 40, limit.FailClosed())
	g.token = "known to nobody"
	f.Cleanup(g.close)
	asked := 0
	f.Fuzz(func(t *testing.T, method, target, user, forwarded, authorization, name, value, body string) {
		at, err := url.ParseRequestURI(target)
		if err != nil {
			return // the server does not take it
		}
		transport.t = t
		log.Reset()
		r := httptest.NewRequest(http.MethodGet, "/", strings.NewReader(body))
		r.Method, r.URL, r.RequestURI = method, at, target
		r.Header = http.Header{
			"X-User": {user}, "X-Forwarded-For": {forwarded}, "Forwarded": {"for=" + forwarded}, "Authorization": {authorization},
		}
		r.Header[http.CanonicalHeaderKey(name)] = []string{value}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)

		// 502 is the answer to an Upgrade that the service does not know.
		if w.Code >= http.StatusInternalServerError && (w.Code != http.StatusBadGateway || !strings.EqualFold(name, "Upgrade")) {
			t.Errorf("answer %d: %s", w.Code, log.String())
		}
		if strings.HasPrefix(at.Path, "/admin/") && w.Code/100 != 3 {
			assert.Contains(t, []int{http.StatusUnauthorized, http.StatusTooManyRequests}, w.Code)
		}
		quotas(t, w.Header())
		if w.Code == http.StatusTooManyRequests && method != http.MethodHead {
			assert.True(t, json.Valid(w.Body.Bytes()), w.Body)
		}
		checkKeys(t, rdb)
		assert.Zero(t, rdb.Exists(t.Context(), thresholds).Val())
		if asked++; asked%50 == 0 {
			require.NoError(t, rdb.FlushDB(t.Context()).Err())
		}
	})
}

// curl does what that command does with the few flags that README.md uses, and
// returns what it would print.
func (s *site) curl(words []string) (string, error) {
	header, flags := http.Header{}, flag.NewFlagSet("curl", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	method, body := flags.String("X", "", ""), flags.String("d", "", "")
	shown := flags.Bool("i", false, "")
	flags.Func("H", "", func(text string) error {
		name, value, _ := strings.Cut(text, ": ")
		header.Add(name, value)
		return nil
	})
	if err := flags.Parse(words); err != nil {
		return "", err
	}
	path, ok := strings.CutPrefix(flags.Arg(0), "http://127.0.0.1:8080")
	if !ok || flags.NArg() != 1 {
		return "", fmt.Errorf("curl %q", words)
	}
	if *body != "" {
		*method = cmp.Or(*method, http.MethodPost)
	}
	got, err := s.try(cmp.Or(*method, http.MethodGet)+" "+path, *body, header)
	if err != nil || !*shown {
		return got.body, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", got.Proto, got.Status)
	if err := got.Header.Write(&b); err != nil {
		return "", err
	}
	return b.String() + "\n" + got.body, nil
}

var (
	consoles = regexp.MustCompile("(?s)```console\n(.*?)```")
	commands = regexp.MustCompile(`(?m)^\$ `)
	quoted   = regexp.MustCompile(`'[^']*'|\S+`)
	waits    = regexp.MustCompile(`t=\d+|Retry-After: \d+|in \d+ s`)
)

// TestReadmeShowsWhatHappens runs the commands in README.md, in their order, and
// looks for each line that they are said to print. How long to wait may differ.
func TestReadmeShowsWhatHappens(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	t.Run("in the process", func(t *testing.T) {
		t.Parallel()
		tryReadme(t, string(text), func() *site { return serve(t, 600) })
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := redistest.StartRedis(t)
		tryReadme(t, string(text), func() *site {
			require.NoError(t, server.Client(t, nil).FlushAll(t.Context()).Err())
			return serve(t, 600, "--redis", redisURL(server.Addr()))
		})
	})
}

// tryReadme does so until it has taken less than a window: what it sees is otherwise once
// that is over, and a busy machine must not decide a test.
func tryReadme(t *testing.T, text string, start func() *site) {
	t.Helper()
	for {
		began, s := time.Now(), start()
		err := s.runConsoles(text)
		if time.Since(began) > 30*time.Second {
			t.Logf("it took %v, again: %v", time.Since(began), err)
			continue
		}
		require.NoError(t, err)
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "level=") {
				assert.Contains(t, s.logged.String(), strings.TrimSpace(line))
			}
		}
		return
	}
}

// runConsoles runs all commands of the text, and returns the error of the first that prints
// something else.
func (s *site) runConsoles(text string) error {
	run := 0
	for _, console := range consoles.FindAllStringSubmatch(text, -1) {
		for _, command := range commands.Split(console[1], -1)[1:] {
			line, said, _ := strings.Cut(command, "\n")
			words := quoted.FindAllString(line, -1)
			for i, word := range words {
				words[i] = strings.Trim(word, "'")
			}
			if words[0] != "curl" {
				return fmt.Errorf("%s is no curl", line)
			}
			got, err := s.curl(words[1:])
			if err != nil {
				return err
			}
			got = strings.ReplaceAll(waits.ReplaceAllString(got, "N"), "\r", "")
			for want := range strings.Lines(said) {
				if !strings.Contains("\n"+got+"\n", "\n"+strings.TrimSuffix(waits.ReplaceAllString(want, "N"), "\n")+"\n") {
					return fmt.Errorf("%s prints %s and not %s", line, got, want)
				}
			}
			run++
		}
	}
	if run < 10 {
		return fmt.Errorf("only %d commands", run)
	}
	return nil
}
