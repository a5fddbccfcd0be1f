package concurrency_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Limiters of keys of one Client that may share keys, or that give the same keys two
// rates, are told of in the log, once; those that share a rate on purpose are not.
func TestPrefixesOfOneClient(t *testing.T) {
	t.Parallel()
	minute := rratelimiter.PerMinute
	keyed := func(prefix string, rate int64) func(t *testing.T, c *rratelimiter.Client) {
		return func(t *testing.T, c *rratelimiter.Client) {
			_, err := c.Keyed(prefix, minute(rate)).Take(t.Context(), "x", 1)
			require.NoError(t, err)
		}
	}
	handler := func(rate int64, opts ...httplimit.Option) func(t *testing.T, c *rratelimiter.Client) {
		return func(t *testing.T, c *rratelimiter.Client) {
			h := httplimit.New(c.Keyed("", minute(rate)), opts...)(http.NotFoundHandler())
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
		}
	}
	api, apiIP := httplimit.WithPrefix("api:"), httplimit.WithPrefix("api:ip:")
	for name, test := range map[string]struct {
		first, second func(t *testing.T, c *rratelimiter.Client)
		kind          limit.EventKind
		says          string
	}{
		"another rate":             {keyed("api", 10), keyed("api", 5), limit.RateDiffers, `limiter=api found="10 in 1m0s`},
		"a prefix that goes on":    {keyed("api", 5), keyed("api2", 5), limit.PrefixesMeet, `neither continues`},
		"the longer one first":     {keyed("api2", 5), keyed("api", 5), limit.PrefixesMeet, `neither continues`},
		"the same twice":           {keyed("api", 5), keyed("api", 5), "", ""},
		"prefixes that part":       {keyed("api:", 5), keyed("api2:", 7), "", ""},
		"middleware, another rate": {handler(10), handler(5), limit.RateDiffers, `limiter=http: found="10 in 1m0s`},
		"middleware, the same":     {handler(5), handler(5), "", ""},
		"middleware, apart":        {handler(10, api), handler(5), "", ""},
		"middleware, continued":    {handler(10, api), handler(5, apiIP), limit.PrefixesMeet, `api:ip:`},
		"middleware, hash tags":    {handler(10, api, httplimit.WithHashTag()), handler(5, apiIP, httplimit.WithHashTag()), "", ""},
		"middleware, and without":  {handler(10, api), keyed("", 10), limit.PrefixesMeet, `neither continues`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb, _ := redistest.Mini(t)
				told, log := &limitertest.Recorder{}, &bytes.Buffer{}
				client := limitertest.NewClient(t, rdb, rratelimiter.WithObserver(told), rratelimiter.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
				for range 3 { // as where they are made for each request
					test.first(t, client)
					test.second(t, client)
				}
				synctest.Wait()
				var kinds []limit.EventKind
				for _, e := range told.Events() {
					kinds = append(kinds, e.Kind)
				}
				if test.kind == "" {
					assert.Empty(t, kinds)
					assert.Empty(t, log.String())
					return
				}
				assert.Contains(t, kinds, test.kind)
				assert.Contains(t, log.String(), test.says)
				assert.LessOrEqual(t, strings.Count(log.String(), "\n"), 2)
			})
		})
	}
}

// Of two rates under one prefix the first that a key was asked for by stays.
func TestTwoRatesOfOnePrefix(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	client := limitertest.NewClient(t, rdb)
	first, second := client.Keyed("api", rratelimiter.PerMinute(10)), client.Keyed("api", rratelimiter.PerMinute(5))
	for range 3 {
		for _, k := range []*rratelimiter.KeyedLimiter{first, second} {
			d, err := k.Take(t.Context(), "ann", 1)
			require.NoError(t, err)
			assert.EqualValues(t, 10, d.Limit)
		}
	}
}

// Without a log of its own the Client tells slog's.
func TestPrefixesWithoutALogger(t *testing.T) { //nolint:paralleltest // the log is the process's
	log := &bytes.Buffer{}
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(log, nil)))
	defer slog.SetDefault(before)
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		client := limitertest.NewClient(t, rdb)
		for _, rate := range []int64{10, 5} {
			_, err := client.Keyed("api", rratelimiter.PerMinute(rate)).Take(t.Context(), "ann", 1)
			require.NoError(t, err)
		}
		synctest.Wait()
		assert.Contains(t, log.String(), `rate differs" limiter=api`)
	})
}
