package main

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/docs/page"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

const (
	docs      = "../../docs/observability"
	rulesFile = docs + "/alerts.yml"
	pageFile  = docs + "/measured.txt"

	// window stands for 5 minutes of the rules, and for Grafana's $__rate_interval.
	window = 4 * time.Second
)

var update = flag.Bool("update", false, "write what the queries returned to docs/observability/measured.txt")

func TestPromtoolAcceptsTheRules(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "promtool")
	promtool := program(t, "promtool")
	for _, args := range [][]string{{"check", "rules", rulesFile}, {"test", "rules", docs + "/alerts_test.yml"}} {
		said, err := exec.Command(promtool, args...).CombinedOutput()
		assert.NoError(t, err, "promtool %v: %s", args, said)
	}
}

// target is a query of a panel.
type target struct {
	Expr         string
	LegendFormat string

	panel string
	place int // in the dashboard
}

var legendLabel = regexp.MustCompile(`^\{\{(\w+)\}\}$`)

// label is by which the target tells its lines apart, "" if it has one line.
func (q target) label() string {
	if match := legendLabel.FindStringSubmatch(q.LegendFormat); match != nil {
		return match[1]
	}
	return ""
}

// targets returns the queries of the dashboard, by "panel: legend", as Grafana
// completes them.
func targets(t *testing.T) map[string]target {
	t.Helper()
	text, err := os.ReadFile(docs + "/dashboard.json")
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Type, Title string
			Targets     []target
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	all := map[string]target{}
	for _, panel := range dashboard.Panels {
		assert.True(t, panel.Type == "row" || len(panel.Targets) > 0, "panel %q", panel.Title)
		for _, q := range panel.Targets {
			q.Expr = strings.NewReplacer("$__rate_interval", window.String(), "$limiter", ".*").Replace(q.Expr)
			assert.NotContains(t, q.Expr, "$", "a variable that this test does not know")
			q.panel, q.place = panel.Title, len(all)
			all[panel.Title+": "+q.LegendFormat] = q
		}
	}
	return all
}

// hasty returns the alert rules with shorter times: seconds for minutes.
func hasty(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(rulesFile)
	require.NoError(t, err)
	rules := strings.NewReplacer("[5m]", "["+window.String()+"]", "[1h]", "["+(12*window).String()+"]").Replace(string(text))
	rules = regexp.MustCompile(`(?m)^( +for:) \d+m$`).ReplaceAllString(rules, "$1 1s")
	require.NotRegexp(t, `\[\d+[mh]\]|for: \d+m`, rules)
	return rules
}

// watched is two gateways under load, the Redis that they share, and a Prometheus that
// watches them. One waits for its shop and fails without Redis; the other has a shop
// that is fast, and limits by itself without Redis.
type watched struct {
	t             *testing.T
	prometheus    prometheusServer
	redis         *redistest.Server
	proxy         *redistest.Proxy
	closed, local *traffic

	targets map[string]target
	unseen  map[string]bool // targets that no phase has checked

	seen    redistest.List[sight] // in this phase
	results [][]string
}

func watch(t *testing.T) *watched {
	t.Helper()
	w := &watched{t: t, redis: redistest.StartRedis(t), targets: targets(t), unseen: map[string]bool{}}
	for name := range w.targets {
		w.unseen[name] = true
	}
	w.proxy = redistest.StartProxy(t, w.redis.Addr())
	at := "redis://" + w.proxy.Addr()
	closed := serveBusy(t, at, 10, limit.FailClosed())
	local := serveBusy(t, at+"/1", 10000, limit.FailLocal(1))
	host := func(s *site) string { return strings.TrimPrefix(s.url, "http://") }
	w.prometheus = startPrometheus(t, hasty(t), host(closed), host(local))

	w.eventually("both gateways are scraped", func() error {
		got, err := w.prometheus.query("sum(up)", "", time.Now())
		if err == nil && got[""] != 2 {
			err = fmt.Errorf("%v of them are", got[""])
		}
		return err
	})

	w.closed = &traffic{t: t, site: closed, done: make(chan struct{})}
	w.local = &traffic{t: t, site: local, done: make(chan struct{})}
	greedy := newUser()
	w.closed.send(2, 50*time.Millisecond, func() string { return greedy }, http.MethodGet, hello)
	w.closed.send(2, 50*time.Millisecond, newUser, http.MethodGet, hello)
	w.closed.send(45, 200*time.Millisecond, newUser, http.MethodPost, orders)
	w.local.send(2, 50*time.Millisecond, newUser, http.MethodGet, hello)
	w.local.send(4, 30*time.Millisecond, newUser, http.MethodPost, orders)
	w.local.send(2, 50*time.Millisecond, newUser, http.MethodPost, prompts)
	return w
}

// sight is what a query returned.
type sight struct {
	place         int
	panel, result string
}

// phase checks queries and alerts while something is as it is: all at a time, each
// until it is so, and the queries from so long after the beginning on. quiet alerts
// must not have fired since the phase began.
func (w *watched) phase(name string, after time.Duration, queries map[string][]expect, alerts, quiet []string) {
	w.t.Helper()
	begin := time.Now()
	var checks sync.WaitGroup
	for query, expected := range queries {
		if _, ok := w.targets[query]; !assert.True(w.t, ok, "the dashboard lacks %q", query) {
			continue
		}
		delete(w.unseen, query)
		checks.Go(func() {
			time.Sleep(after)
			w.query(name, query, expected)
		})
	}
	for _, alert := range alerts {
		checks.Go(func() {
			w.eventually(name+": "+alert, func() error {
				fired, err := w.fired(begin)
				if err == nil && fired[alert] == 0 {
					err = fmt.Errorf("only %v fire", fired)
				}
				return err
			})
			w.seen.Add(sight{len(w.targets), "alert " + alert, "fires"})
		})
	}
	checks.Wait()
	fired, err := w.fired(begin)
	require.NoError(w.t, err)
	for _, alert := range quiet {
		assert.Zero(w.t, fired[alert], "%s: %s", name, alert)
	}
	w.tell(name, ratesOf(time.Now(), window, w.closed, w.local))
}

// query checks one query of the dashboard.
func (w *watched) query(phase, name string, expected []expect) {
	w.t.Helper()
	var got vector
	q := w.targets[name]
	w.eventually(phase+": "+name, func() (err error) {
		now := time.Now()
		got, err = w.prometheus.query(q.Expr, q.label(), now)
		for _, e := range expected {
			err = cmp.Or(err, e.check(got, ratesOf(now, window, w.closed, w.local)))
		}
		return err
	})
	legend := q.LegendFormat
	if q.label() != "" {
		legend = "nobody" // if the label has no value
	}
	w.seen.Add(sight{q.place, q.panel, shown(legend, got)})
}

// fired returns the alerts that have fired at some time since begin.
func (w *watched) fired(begin time.Time) (vector, error) {
	now := time.Now()
	span := max(1, int(now.Sub(begin).Seconds()))
	count := fmt.Sprintf(`count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[%ds]))`, span)
	return w.prometheus.query(count, "alertname", now)
}

// tell records what a phase showed, panel by panel.
func (w *watched) tell(phase string, load rates) {
	seen := w.seen.Take()
	slices.SortFunc(seen, func(a, b sight) int { return cmp.Or(a.place-b.place, strings.Compare(a.panel, b.panel)) })
	told := [][]string{{phase, "the load", load.String()}}
	for _, one := range seen {
		if last := told[len(told)-1]; last[1] == one.panel {
			last[2] += ", " + one.result
		} else {
			told = append(told, []string{phase, one.panel, one.result})
		}
	}
	for _, row := range told {
		w.t.Log(strings.Join(row, " | "))
	}
	w.results = append(w.results, told...)
}

func (w *watched) eventually(what string, check func() error) {
	w.t.Helper()
	assert.EventuallyWithT(w.t, func(c *assert.CollectT) { assert.NoError(c, check()) }, time.Minute, 50*time.Millisecond, what)
}

// shown writes values as a legend does; unnamed stands for no label.
func shown(unnamed string, got vector) string {
	var all []string
	for _, label := range slices.Sorted(maps.Keys(got)) {
		all = append(all, cmp.Or(label, unnamed)+" "+figure(got[label]))
	}
	if len(all) == 0 {
		return "nothing"
	}
	return strings.Join(all, ", ")
}

// figure writes a number with three digits that count.
func figure(x float64) string {
	if x >= 100 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.3g", x)
}

// full is how long after the beginning of something a rate shows that alone.
const full = window + time.Second

// expect is what a query must return for a label.
type expect struct {
	label     string
	low, high float64
	of        func(rates) float64 // what low and high are parts of, nil for 1
	absent    bool                // there may be no line
}

// about wants a value to be near what the load says.
func about(label string, of func(rates) float64) expect { return expect{label, 0.7, 1.3, of, false} }

func between(label string, low, high float64) expect { return expect{label, low, high, nil, false} }

func nothing(label string) expect { return expect{label: label, absent: true} }

func (e expect) check(got vector, load rates) error {
	part := 1.0
	if e.of != nil {
		part = e.of(load)
	}
	value, ok := got[e.label]
	if !ok && !e.absent || part == 0 || value < e.low*part || value > e.high*part {
		return fmt.Errorf("%q is not from %.3g to %.3g: %v under a load of %+v", e.label, e.low*part, e.high*part, got, load)
	}
	return nil
}

// report writes what the queries returned to the page.
func (w *watched) report() {
	text, err := os.ReadFile(pageFile)
	require.NoError(w.t, err)
	filled, err := page.Fill(string(text), func(string, string) (string, error) {
		return page.Table([]string{"while", "panel", "result"}, w.results, false), nil
	})
	require.NoError(w.t, err)
	require.NoError(w.t, os.WriteFile(pageFile, []byte(filled), 0o644))
}

const (
	plenty      = 1_000_000
	shopLimiter = "gateway:shop"
)

// busy is a gateway, and beside it what else the dashboard shows: sliding logs that refuse, and a RateLimiter with
// leases that many wait for. Each client has a limit over all.
type busy struct {
	*gateway

	shopRate int64 // requests a second; others wait
}

// serveBusy serves one until the test ends.
func serveBusy(t *testing.T, redisURL string, shopRate int64, failure limit.Failure) *site {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	rdb, closeRedis, err := connect(t.Context(), redisURL)
	require.NoError(t, err)
	t.Cleanup(closeRedis)
	model, stopModel, err := start("127.0.0.1:0", chat(), log)
	require.NoError(t, err)
	t.Cleanup(stopModel)
	meters, metrics, stopMetrics, err := newMetrics()
	require.NoError(t, err)
	t.Cleanup(stopMetrics)
	g, err := newGateway(config{
		rdb: rdb, model: model, transport: http.DefaultTransport, timeout: 20 * time.Second, failure: failure, meters: meters, log: log,
		planOf: func(string) string { return "paid" },
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = g.client.Close(t.Context()) })
	b := &busy{g, shopRate}
	ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	routes := http.NewServeMux()
	routes.Handle("GET "+hello, b.limited("hello", 2, 30*time.Second)(ok))
	routes.Handle("POST "+orders, b.limited("orders", 3, time.Minute)(b.paced(ok)))
	routes.Handle("POST "+prompts, g)
	all := http.NewServeMux()
	all.Handle("GET /metrics", metrics)
	all.Handle("/", httplimit.New(
		httplimit.Policy{Name: "client", Limiter: g.client.Keyed("gateway:", rratelimiter.PerMinute(plenty))}, httplimit.WithPrefix("client:"), httplimit.WithTimeout(g.timeout)).Handler(routes))
	address, stop, err := start("127.0.0.1:0", all, log)
	require.NoError(t, err)
	t.Cleanup(stop)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	t.Cleanup(client.CloseIdleConnections)
	return &site{t: t, url: address.String(), logged: &redistest.Buffer{}, send: client.Do}
}

// limited returns middleware for one route, with the keys of services in Java.
func (b *busy) limited(name string, threshold int64, period time.Duration) func(http.Handler) http.Handler {
	log := slidinglog.New(b.client, slidinglog.Config{Limit: threshold, Window: period, Thresholds: "rate:limit:config"},
		rratelimiter.WithName(name))
	return httplimit.New(log,
		httplimit.WithPrefix("limit:"), httplimit.WithKey(httplimit.User(user), httplimit.Path()), httplimit.WithTimeout(b.timeout)).Handler
}

// paced returns middleware that limits the requests a second that a service gets from all callers together.
// Requests above that wait, for the timeout at most.
func (b *busy) paced(next http.Handler) http.Handler {
	shop := b.client.RateLimiter(shopLimiter,
		rratelimiter.WithDefault(rratelimiter.PerSecond(b.shopRate)), rratelimiter.WithLease(rratelimiter.Lease{Permits: 100, Life: 200 * time.Millisecond}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if granted, _ := shop.TryAcquire(r.Context(), 1, b.timeout); !granted {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many are waiting", http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, r)
	})
}
