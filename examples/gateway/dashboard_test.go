package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// program returns the path of a program that scripts/install-prometheus.sh installs.
func program(t *testing.T, name string) string {
	t.Helper()
	for _, at := range []string{"../../.cache/bin/" + name, name} {
		if path, err := exec.LookPath(at); err == nil {
			path, err = filepath.Abs(path)
			require.NoError(t, err)
			return path
		}
	}
	redistest.SkipOrFail(t, "no "+name+": neither .cache/bin nor $PATH has one (scripts/install-prometheus.sh installs it)")
	return ""
}

// prometheusServer is the URL of one that runs for a test.
type prometheusServer string

// startPrometheus starts one that scrapes the targets several times a second and
// evaluates the rules as often.
func startPrometheus(t *testing.T, rules string, targets ...string) prometheusServer {
	t.Helper()
	binary, dir := program(t, "prometheus"), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rules.yml"), []byte(rules), 0o600))
	config := fmt.Sprintf(`
global: {scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms}
rule_files: [rules.yml]
scrape_configs: [{job_name: gateway, static_configs: [{targets: ["%s"]}]}]
`, strings.Join(targets, `", "`))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600))
	for range 5 {
		// Another process may take the port between the look for a free one and the start.
		if p := tryPrometheus(t, binary, dir); p != "" {
			return p
		}
	}
	said, err := os.ReadFile(filepath.Join(dir, "log"))
	require.NoError(t, err)
	require.Fail(t, "prometheus does not come up", "%s", said)
	return ""
}

// tryPrometheus returns "" if the server does not come up.
func tryPrometheus(t *testing.T, binary, dir string) prometheusServer {
	t.Helper()
	address, err := redistest.FreeAddr()
	require.NoError(t, err)
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	defer func() { _ = log.Close() }()
	server, err := redistest.StartProcess("", log, binary,
		"--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address)
	require.NoError(t, err)
	t.Cleanup(server.Kill)
	p := prometheusServer("http://" + address)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if server.AwaitReady(ctx, func() error { _, err := p.get("/-/ready", nil); return err }) != nil {
		return ""
	}
	return p
}

func (p prometheusServer) get(path string, query url.Values) ([]byte, error) {
	client := http.Client{Timeout: 10 * time.Second}
	got, err := client.Get(string(p) + path + "?" + query.Encode())
	if err != nil {
		return nil, err
	}
	defer func() { _ = got.Body.Close() }()
	text, err := io.ReadAll(got.Body)
	if err == nil && got.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", got.Status, text)
	}
	return text, err
}

// vector is the answer to a query: values by one label's value.
type vector map[string]float64

// query asks for the value of an expression at a moment.
func (p prometheusServer) query(expr, label string, at time.Time) (vector, error) {
	seconds := strconv.FormatFloat(float64(at.UnixMilli())/1000, 'f', 3, 64)
	text, err := p.get("/api/v1/query", url.Values{"query": {expr}, "time": {seconds}})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, err
	}
	all := vector{}
	for _, one := range answer.Data.Result {
		text, _ := one.Value[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, err
		}
		if !math.IsNaN(value) {
			all[one.Metric[label]] = value
		}
	}
	return all, nil
}

// Refusals, slow calls and outages must show in the dashboard and the alerts.
func TestDashboardAndAlertsUnderLoad(t *testing.T) {
	t.Parallel()
	w := watch(t)
	w.overload()
	w.slowRedis()
	w.noRedis()
	w.redisAgain()
	assert.Empty(t, slices.Sorted(maps.Keys(w.unseen)), "queries of the dashboard that nothing has checked")

	w.closed.stop()
	w.local.stop()
	w.allCounted()
	if *update && !t.Failed() {
		w.report()
	}
}

const byOutcome = "Decisions by outcome: {{ratelimiter_outcome}}"

// overload: of one user most is refused, and many wait for the shop of one gateway.
func (w *watched) overload() {
	hellos := func(l rates) float64 { return l.hello + l.helloRefused }
	w.phase("overload", full, map[string][]expect{
		byOutcome: {
			// Each request has passed the limit of its client, those for the shop one more, and those for the model four.
			about("granted", func(l rates) float64 { return hellos(l) + l.hello + 3*l.orders + 5*l.prompts }),
			about("refused", func(l rates) float64 { return l.helloRefused }), nothing("failed")},
		"Share refused: {{ratelimiter_name}}": {
			about("hello", func(l rates) float64 { return l.helloRefused / hellos(l) }), nothing("orders"), nothing("gateway:")},
		"Errors by kind: {{error_type}}": {nothing("unavailable")},
		"Time to a decision: p50":        {between("", 0.00001, 0.5)},
		"Time to a decision: p99":        {between("", 0.0001, 10)},
		"Wait of granted calls, p99: {{ratelimiter_name}}": {
			between("gateway:shop", 1, 10), between("hello", 0.00001, 1)},
		"Callers waiting: {{ratelimiter_name}}": {between("gateway:shop", 21, 45)},
		"Permits granted: {{ratelimiter_name}}": {
			about("gateway:shop", func(l rates) float64 { return l.orders }), about("hello", func(l rates) float64 { return l.hello })},
		"Reservations: reserved":              {about("", func(l rates) float64 { return 2 * float64(usualAnswer+len(prompt)/4) * l.prompts })},
		"Reservations: used":                  {about("", func(l rates) float64 { return 2 * 152 * l.prompts })},
		"Round trip to Redis: p50":            {between("", 0.00001, 0.1)},
		"Round trip to Redis: p99":            {between("", 0.00001, 1)},
		"Round trips: answered":               {between("", 10, 10000)},
		"Requests in a round trip: requests":  {between("", 0.5, 50)},
		"Who decides: {{ratelimiter_source}}": {between("redis", 10, 10000), between("memory", 0.1, 10000), nothing("local")},
		"Open breakers: open":                 {between("", 0, 0)},
		"Leases: {{ratelimiter_name}}":        {between("gateway:shop", 1, 10)},
		"Permits taken ahead: taken":          {between("", 1, 200)},
		"Permits taken ahead: given back":     {between("", 0, 50)}, // the demand is steady
	}, []string{"RateLimiterRefusalsRising", "RateLimiterCallersWaiting"}, []string{"RateLimiterErrors", "RateLimiterRedisNotAsked"})
}

// slowRedis: each answer takes longer, and some are lost. It is not so slow that calls of a busy machine fail.
func (w *watched) slowRedis() {
	commands := 0
	w.proxy.OnCommand(func(redistest.Command) redistest.Action {
		if commands++; commands%20 == 0 {
			return redistest.DropAnswer
		}
		return redistest.Pass.After(75 * time.Millisecond)
	})
	w.phase("slow Redis", full, map[string][]expect{
		"Round trip to Redis: p50": {between("", 0.07, 1)},
		"Round trip to Redis: p99": {between("", 0.07, 5)},
		"Repeats: repeats":         {between("", 0.1, 1000)},
	}, []string{"RateLimiterRedisSlow"}, []string{"RateLimiterRedisNotAsked"})
}

// noRedis: one gateway fails, the other limits by itself.
func (w *watched) noRedis() {
	w.proxy.OnCommand(nil)
	w.redis.Crash()
	w.phase("no Redis, at first", 0, map[string][]expect{"Rare events: {{ratelimiter_event}}": {between("asked_no_more", 2, 7)}}, nil, nil)
	w.phase("no Redis", full, map[string][]expect{
		"Errors by kind: {{error_type}}":        {about("unavailable", func(l rates) float64 { return l.undecided })},
		byOutcome:                               {about("failed", func(l rates) float64 { return l.undecided })},
		"Who decides: {{ratelimiter_source}}":   {between("local", 10, 10000), nothing("redis")},
		"Callers waiting: {{ratelimiter_name}}": {nothing("gateway:shop")},
		"Open breakers: open":                   {between("", 2, 6)},
	}, []string{"RateLimiterErrors", "RateLimiterRedisNotAsked"}, nil)
}

func (w *watched) redisAgain() {
	w.redis.Restart(w.t)
	w.phase("Redis again", 0, map[string][]expect{
		"Open breakers: open":                 {between("", 0, 0)},
		"Rare events: {{ratelimiter_event}}":  {between("asked_again", 2, 7)},
		"Who decides: {{ratelimiter_source}}": {between("redis", 10, 10000), nothing("local")},
	}, nil, nil)
}

// allCounted compares the total counts with the single answers.
func (w *watched) allCounted() {
	forever := time.Hour
	for outcome, status := range map[string]int{"granted": 200, "refused": 429} {
		w.eventually("answers of "+hello+" that were "+outcome, func() error {
			now := time.Now()
			sum := fmt.Sprintf(`sum(ratelimiter_decisions_total{ratelimiter_name="hello",ratelimiter_outcome=%q})`, outcome)
			got, err := w.prometheus.query(sum, "", now)
			want := w.closed.count(hello, status, now, forever) + w.local.count(hello, status, now, forever)
			if err == nil && got[""] != want {
				err = fmt.Errorf("%v were counted, and there were %v", got[""], want)
			}
			return err
		})
	}
}

// traffic is requests to a gateway, and their results.
type traffic struct {
	t    *testing.T
	site *site

	done    chan struct{}
	callers sync.WaitGroup
	answers redistest.List[sample]
}

var userNumber atomic.Int64

func newUser() string { return fmt.Sprintf("user%d", userNumber.Add(1)) }

// sample is an answer.
type sample struct {
	at     time.Time
	path   string
	status int
}

// send makes that many callers send requests until stop is called, each with a pause after an
// answer.
func (l *traffic) send(callers int, pause time.Duration, user func() string, method, path string) {
	for range callers {
		l.callers.Go(func() {
			for {
				select {
				case <-l.done:
					return
				case <-time.After(pause):
				}
				got, err := l.site.try(method+" "+path, map[string]string{prompts: prompt}[path], http.Header{"X-User": {user()}})
				if !assert.NoError(l.t, err) {
					return
				}
				l.answers.Add(sample{time.Now(), path, got.StatusCode})
			}
		})
	}
}

// stop ends the requests and returns when all are answered.
func (l *traffic) stop() {
	close(l.done)
	l.callers.Wait()
}

// count returns how many answers of a path had a status, in a span that ends at a moment.
func (l *traffic) count(path string, status int, end time.Time, span time.Duration) (n float64) {
	for _, s := range l.answers.All() {
		if s.path == path && s.status == status && s.at.After(end.Add(-span)) && !s.at.After(end) {
			n++
		}
	}
	return n
}

// The paths.
const (
	hello   = "/hello"
	orders  = "/orders"
	prompts = "/chat"
)

// prompt is the body sent to prompts: 2 words that ask for 150.
const prompt = `{"prompt": "say hello", "words": 150}`

// rates are how many answers of each kind came a second.
type rates struct{ hello, helloRefused, orders, prompts, undecided float64 }

func (r rates) String() string {
	return fmt.Sprintf("answers a second: %s to hello, %s refused, %s to orders, %s to prompts, %s undecided",
		figure(r.hello), figure(r.helloRefused), figure(r.orders), figure(r.prompts), figure(r.undecided))
}

// ratesOf are those of several gateways in a span that ends at a moment.
func ratesOf(at time.Time, span time.Duration, all ...*traffic) (r rates) {
	for _, l := range all {
		each := func(path string, status int) float64 { return l.count(path, status, at, span) / span.Seconds() }
		r.hello += each(hello, http.StatusOK)
		r.prompts += each(prompts, http.StatusOK)
		r.helloRefused += each(hello, http.StatusTooManyRequests)
		r.orders += each(orders, http.StatusOK)
		r.undecided += each(hello, http.StatusServiceUnavailable) + each(orders, http.StatusServiceUnavailable)
	}
	return r
}
