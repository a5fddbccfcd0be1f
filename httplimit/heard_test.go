package httplimit_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/limit"
)

// paused returns how long the second request of a transport waits because of the answer to the first.
func paused(t *testing.T, status int, header []string, opts ...httplimit.Option) (took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		first := true
		transport := httplimit.NewTransport(roundTripper(func(r *http.Request) (*http.Response, error) {
			if first {
				first = false
				return answers(status, header...)(r)
			}
			return answers(http.StatusOK)(r)
		}), grants(), opts...)
		_, err := send(t.Context(), t, transport, api)
		require.NoError(t, err)
		took, err = send(t.Context(), t, transport, api)
		require.NoError(t, err)
	})
	return took
}

// Upstreams say in many ways when to come again.
func TestTransportHeedsWhatUpstreamsSay(t *testing.T) {
	t.Parallel()
	const second, ms = time.Second, time.Millisecond
	for name, c := range map[string]struct {
		status int
		header []string
		want   time.Duration
	}{
		"forbidden":          {403, []string{"Retry-After", "7"}, 7 * second},
		"forbidden for good": {403, nil, 0},
		"overloaded":         {529, []string{"Retry-After", "7"}, 7 * second},
		"too large":          {413, []string{"Retry-After", "7"}, 0},

		"ms":          {429, []string{"Retry-After-Ms", "1200"}, 1200 * ms},
		"ms first":    {503, []string{"Retry-After-Ms", " 1200 ", "Retry-After", "2"}, 1200 * ms},
		"part of ms":  {429, []string{"Retry-After-Ms", "0.4"}, ms},
		"no ms":       {429, []string{"Retry-After-Ms", "soon", "Retry-After", "2"}, 2 * second},
		"NaN ms":      {429, []string{"Retry-After-Ms", "NaN"}, 0},
		"ms below 0":  {429, []string{"Retry-After-Ms", "-5", "Retry-After", "2"}, 2 * second},
		"huge ms":     {429, []string{"Retry-After-Ms", strings.Repeat("9", 400)}, httplimit.DefaultPause},
		"infinite ms": {429, []string{"Retry-After-Ms", "Inf"}, httplimit.DefaultPause},
		"ms, passed":  {200, []string{"Retry-After-Ms", "1200"}, 0},

		"used up":            {200, []string{"RateLimit", `"default";r=0;t=2`}, 2 * second},
		"used up, no name":   {200, []string{"RateLimit", "r=0;t=2"}, 2 * second},
		"used up, refused":   {429, []string{"RateLimit", `"default";r=0;t=2`}, 2 * second},
		"of several":         {200, []string{"RateLimit", `"a, \"";r=1;t=9, "b";r=0;t=3;pk=:AAE=:, "c";t=2;r=0`}, 3 * second},
		"Retry-After counts": {429, []string{"RateLimit", `"default";r=0;t=38`, "Retry-After", "1"}, second},
		"some left":          {429, []string{"RateLimit", `"default";r=1;t=2`}, 0},
		"no time":            {200, []string{"RateLimit", `"default";r=0`}, 0},
		"no figures":         {200, []string{"RateLimit", `"default"`}, 0},
		"a list":             {200, []string{"RateLimit", `("default");r=0;t=2`}, 0},
		"no integers":        {200, []string{"RateLimit", `"default";r="0";t=2, "day";r=0;t=2.5`}, 0},
		"below 0":            {200, []string{"RateLimit", `"default";r=0;t=-2`}, 0},
		"huge":               {200, []string{"RateLimit", `"default";r=0;t=999999999999999`}, httplimit.DefaultPause},
		"another draft":      {200, []string{"RateLimit", "limit=10, remaining=0, reset=2"}, 0},
		"no list":            {200, []string{"RateLimit", `"`}, 0},
		"nothing":            {200, []string{"RateLimit", ""}, 0},
	} {
		assert.Equal(t, c.want, paused(t, c.status, c.header), name)
	}
	assert.Zero(t, paused(t, 200, []string{"RateLimit", `"default";r=0;t=2`}, httplimit.WithPause(0)))
}

// A program's own function is asked about each response, and comes before the headers.
func TestTransportHeedsWhatTheProgramReads(t *testing.T) {
	t.Parallel()
	read := httplimit.WithPauseOn(func(resp *http.Response) time.Duration {
		d, _ := time.ParseDuration(resp.Header.Get("X-Backoff"))
		return d
	})
	for name, c := range map[string]struct {
		status int
		header []string
		want   time.Duration
		opts   []httplimit.Option
	}{
		"its header":      {status: 200, header: []string{"X-Backoff", "90ms"}, want: 90 * time.Millisecond},
		"before others":   {status: 429, header: []string{"X-Backoff", "90ms", "Retry-After", "7"}, want: 90 * time.Millisecond},
		"beside others":   {status: 429, header: []string{"Retry-After", "7"}, want: 7 * time.Second},
		"none whatever":   {status: 429, header: []string{"X-Backoff", "-1s", "Retry-After", "7"}},
		"bounded":         {status: 200, header: []string{"X-Backoff", "5h"}, want: httplimit.DefaultPause},
		"bounded by half": {status: 200, header: []string{"X-Backoff", "1m"}, want: time.Minute / 2, opts: []httplimit.Option{httplimit.WithPause(time.Minute / 2)}},
	} {
		assert.Equal(t, c.want, paused(t, c.status, c.header, append(c.opts, read)...), name)
	}
}

// A server of this module says r=0 with its last grant: a transport sends nothing that it would refuse.
func TestTransport_IsNotRefusedByAServerOfThisModule(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := httplimit.New(httplimit.Local(5, 10*time.Second)).Handler(hello)
		var refused int
		transport := httplimit.NewTransport(roundTripper(func(r *http.Request) (*http.Response, error) {
			r.RemoteAddr = "192.0.2.1:1"
			resp := serve(server, r).Result()
			if resp.StatusCode != http.StatusOK {
				refused++
			}
			return resp, nil
		}), says(limit.Decision{Granted: true, Limit: 100}, nil))
		start := time.Now()
		for range 20 {
			_, err := send(t.Context(), t, transport, api)
			require.NoError(t, err)
		}
		assert.Zero(t, refused)
		assert.Equal(t, 30*time.Second, time.Since(start))
	})
}
