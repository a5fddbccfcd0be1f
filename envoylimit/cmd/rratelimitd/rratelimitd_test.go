package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestMain(m *testing.M) {
	logging.Disable()
	m.Run()
}

const web = "domain: web\ndescriptors:\n- {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}\n"

func directory(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, text)
	return dir
}

func write(t *testing.T, dir, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(text), 0o600))
}

type running struct {
	t                   *testing.T
	redis               *miniredis.Miniredis
	grpc, http, metrics string
	log                 *redistest.Buffer
	stop                func() // as SIGTERM does, and waits for the end
}

// startMini serves limits beside a Redis in memory until the test ends.
func startMini(t *testing.T, text string, flags ...string) *running {
	t.Helper()
	m := miniredis.RunT(t)
	r := start(t, directory(t, text), m.Addr(), flags...)
	r.redis = m
	return r
}

// start serves a directory until the test ends.
func start(t *testing.T, dir, redis string, flags ...string) *running {
	t.Helper()
	r := &running{t: t, log: &redistest.Buffer{}}
	s, up := &settings{}, make(chan struct{})
	set := newFlags(s)
	require.NoError(t, set.Parse(append([]string{
		"--config", dir, "--config-every", "5ms", "--redis", redis, "--redis-connect-timeout", "30s",
		"--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--drain", "1m",
	}, flags...)))
	s.redis.Getenv = func(string) string { return "" }
	s.listening = func(grpc, http, metrics string) {
		r.grpc, r.http, r.metrics = grpc, http, metrics
		close(up)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx, s.logger(r.log)) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	t.Cleanup(r.stop)
	select {
	case <-up:
	case err := <-ended:
		ended <- nil
		require.NoError(t, err)
	}
	return r
}

func (r *running) dial(creds credentials.TransportCredentials) *grpc.ClientConn {
	r.t.Helper()
	conn := limitertest.Must(grpc.NewClient(r.grpc, grpc.WithTransportCredentials(creds)))(r.t)
	r.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func request(user string) *ratelimitv3.RateLimitRequest {
	return &ratelimitv3.RateLimitRequest{Domain: "web", Descriptors: []*commonv3.RateLimitDescriptor{
		{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: user}}},
	}}
}

// ask returns the code and what is left, or the error's code.
func (r *running) ask(user string) string {
	r.t.Helper()
	answer, err := ratelimitv3.NewRateLimitServiceClient(r.dial(insecure.NewCredentials())).ShouldRateLimit(r.t.Context(), request(user))
	if err != nil {
		return status.Code(err).String()
	}
	return answer.GetOverallCode().String()
}

func (r *running) until(what string, is func() bool) {
	r.t.Helper()
	require.Eventually(r.t, is, redistest.Patience(30*time.Second), 5*time.Millisecond, "%s\n%s", what, r.log)
}

// get returns the status and the body of a page: /metrics, /healthcheck, or with a body /json.
func (r *running) get(page, body string) (int, string) {
	r.t.Helper()
	method, at := http.MethodGet, r.http
	switch page {
	case "/metrics":
		at = r.metrics
	case "/json":
		method = http.MethodPost
	}
	q := limitertest.Must(http.NewRequestWithContext(r.t.Context(), method, "http://"+at+page, strings.NewReader(body)))(r.t)
	answer, err := http.DefaultClient.Do(q)
	require.NoError(r.t, err)
	defer func() { _ = answer.Body.Close() }()
	return answer.StatusCode, string(limitertest.Must(io.ReadAll(answer.Body))(r.t))
}

func TestRun_Commands(t *testing.T) {
	t.Parallel()
	good, bad, twice := directory(t, web), directory(t, "domain: web\nx: y"), directory(t, web)
	require.NoError(t, os.WriteFile(filepath.Join(twice, "more.yml"), []byte("domain: web\nunit: hour"), 0o600))
	file := func(dir string) string { return filepath.Join(dir, "web.yaml") }
	for _, tc := range []struct {
		args, out, err string
		code           int
	}{
		{"check " + good, "domain web\n", "", 0},
		{"check " + bad, "", file(bad) + `:2: unknown key "x"`, 1},
		{"check " + filepath.Join(bad, "gone"), "", "no such file", 1},
		{"check " + twice, "", ":1: another file has the domain", 1},
		{"check --merge-domains " + twice, "domain web\n", `more.yml:2: the key "unit" has no effect here`, 0},
		{"check", "", "check wants one directory", 2},
		{"check --nonsense", "", "flag provided but not defined", 2},
		{"", "", "rratelimitd serve --config DIR", 2},
		{"help", "rratelimitd check", "", 0},
		{"version", "rratelimitd", "", 0},
		{"serve -h", "", "-redis-sentinel-master", 0},
		{"serve -h", "", "unless --redis-ring or --redis-sentinel-master is given", 0},
		{"serve", "", "serve wants --config", 2},
		{"serve --config x y", "", "serve wants flags only", 2},
		{"serve --config " + good + " --config-every 0", "", "--config-every is above 0", 2},
		{"serve --config " + good + " --redis http://x", "", `the scheme "http" is none of`, 2},
		{"serve --config " + good + " --redis-ring --redis-sentinel-master x", "", "--redis-ring and --redis-sentinel-master exclude", 2},
		{"serve --config " + bad, "", file(bad) + ":2: ", 1},
		{"serve --config " + good + " --tls-cert x", "", "--tls-cert and --tls-key go together", 1},
		{"serve --config " + good + " --tls-cert x --tls-key y", "", "--tls-cert and --tls-key: open x", 1},
		{"serve --config " + good + " --grpc 256.0.0.1:1", "", "256.0.0.1", 1},
	} {
		var out, err bytes.Buffer
		assert.Equal(t, tc.code, run(t.Context(), strings.Fields(tc.args), &out, &err, func(string) string { return "" }), tc.args)
		assert.Contains(t, out.String(), tc.out, tc.args)
		assert.Contains(t, err.String(), tc.err, tc.args)
	}
}

func TestServe_AnswersByGRPCAndHTTP(t *testing.T) {
	t.Parallel()
	r := startMini(t, web, "--headers", "--drain", "1h") // which clients that watch do not use up
	health := healthv1.NewHealthClient(r.dial(insecure.NewCredentials()))
	for _, name := range []string{"", "ratelimit"} {
		answer := limitertest.Must(health.Check(t.Context(), &healthv1.HealthCheckRequest{Service: name}))(t)
		assert.Equal(t, healthv1.HealthCheckResponse_SERVING, answer.GetStatus())
	}
	watches := map[string]healthv1.Health_WatchClient{}
	for name, want := range map[string]string{"ratelimit": "SERVING", "other": "SERVICE_UNKNOWN"} {
		watch := limitertest.Must(health.Watch(t.Context(), &healthv1.HealthCheckRequest{Service: name}))(t)
		assert.Equal(t, want, limitertest.Must(watch.Recv())(t).GetStatus().String())
		watches[name] = watch
	}
	_, text := r.get("/healthcheck", "")
	assert.Equal(t, "OK", text)
	ann := `{"domain":"web","descriptors":[{"entries":[{"key":"user","value":"ann"}]}]}`
	for _, tc := range []struct {
		body, want string
		code       int
	}{
		{ann, `"limitRemaining":2`, 200},
		{ann, `"limitRemaining":1`, 200},
		{ann, `"RateLimit-Remaining"`, 200},
		{ann, `"overallCode":"OVER_LIMIT"`, 429},
		{`{"domain":"web"}`, "descriptor list must not be empty", 400},
		{`{"domain":"web","x":1}`, "unknown field", 400},
		{"{", "proto:", 400},
		{strings.Repeat(" ", maxJSON+1), "too large", 400},
	} {
		code, text := r.get("/json", tc.body)
		assert.Equal(t, tc.code, code)
		assert.Contains(t, strings.ReplaceAll(text, " ", ""), strings.ReplaceAll(tc.want, " ", ""))
	}
	assert.Equal(t, "OVER_LIMIT", r.ask("ann"))
	_, text = r.get("/metrics", "")
	assert.Contains(t, text, `rratelimitd_config_valid 1`)
	for outcome, n := range map[string]string{"granted": "3", "refused": "2"} {
		assert.Contains(t, text, `ratelimiter_decisions_total{ratelimiter_name="web.user",ratelimiter_outcome="`+outcome+`",ratelimiter_source="redis"} `+n)
	}
	assert.NotContains(t, text, "ann", "a value of a request")
	// What is in the way of a counter is logged.
	require.NoError(t, r.redis.Set("envoy:{web}:user_bad:hour", "x"))
	r.until("a line in the log, one a second", func() bool {
		assert.Equal(t, "Internal", r.ask("bad"))
		return strings.Contains(r.log.String(), "envoy:{web}:user_bad:hour")
	})
	r.stop()
	assert.Contains(t, r.log.String(), "draining")
	for name, watch := range watches {
		if name == "ratelimit" {
			assert.Equal(t, healthv1.HealthCheckResponse_NOT_SERVING, limitertest.Must(watch.Recv())(t).GetStatus())
		}
		assert.ErrorIs(t, limitertest.Second(watch.Recv()), io.EOF)
	}
}

// Each way to change the files is found, and a bad one changes nothing.
func TestServe_Reloads(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	// As Kubernetes mounts a ConfigMap: web.yaml -> ..data/web.yaml, ..data -> ..1.
	for name, text := range map[string]string{"..1": web, "..2": strings.ReplaceAll(web, "3", "5"), "..3": "domain: web\nx: y", "..4": strings.ReplaceAll(web, "3", "7")} {
		require.NoError(t, os.Mkdir(filepath.Join(top, name), 0o700))
		write(t, filepath.Join(top, name), text)
	}
	swap := func(to string) {
		require.NoError(t, os.Symlink(to, filepath.Join(top, "..new")))
		require.NoError(t, os.Rename(filepath.Join(top, "..new"), filepath.Join(top, "..data")))
	}
	swap("..1")
	require.NoError(t, os.Symlink(filepath.Join("..data", "web.yaml"), filepath.Join(top, "web.yaml")))
	r := start(t, top, miniredis.RunT(t).Addr())
	for range 3 {
		assert.Equal(t, "OK", r.ask("ann"))
	}
	assert.Equal(t, "OVER_LIMIT", r.ask("ann"))
	swap("..2")
	r.until("the second", func() bool { return r.ask("ann") == "OK" })
	assert.Equal(t, "OK", r.ask("ann"))
	assert.Equal(t, "OVER_LIMIT", r.ask("ann"))
	swap("..3")
	r.until("the bad one is refused", func() bool { return strings.Contains(r.log.String(), `unknown key \"x\"`) })
	assert.Contains(t, r.log.String(), "web.yaml:2: ")
	assert.Equal(t, "OVER_LIMIT", r.ask("ann"))
	_, text := r.get("/metrics", "")
	assert.Contains(t, text, "rratelimitd_config_valid 0")
	swap("..4")
	r.until("the fourth", func() bool { return r.ask("ann") == "OK" })
	require.NoError(t, os.Remove(filepath.Join(top, "..data")))
	r.until("that it is gone", func() bool { return strings.Contains(r.log.String(), "no such file") })
	assert.Equal(t, "OK", r.ask("ann"))
	assert.Equal(t, "OVER_LIMIT", r.ask("ann"))
}

// A service that starts before its Redis answers as its domains say, and by Redis as soon as that is there.
func TestServe_StartsWithoutRedis(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	address := m.Addr()
	m.Close()
	dir := directory(t, "failure: closed\n"+web)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "open.yaml"), []byte(strings.ReplaceAll("failure: open\n"+web, "domain: web", "domain: open")), 0o600))
	r := start(t, dir, address)
	assert.Equal(t, "OVER_LIMIT", r.ask("ann"))
	code, _ := r.get("/healthcheck", "")
	assert.Equal(t, 200, code)
	code, _ = r.get("/json", `{"domain":"open","descriptors":[{"entries":[{"key":"user"}]}]}`)
	assert.Equal(t, 200, code)
	assert.Contains(t, r.log.String(), "Redis can't be reached")
	require.NoError(t, m.StartAddr(address))
	r.until("Redis", func() bool { return r.ask("ann") == "OK" })
	m.Close()
	r.until("that it has gone", func() bool { return r.ask("bob") == "OVER_LIMIT" })
}

func TestServe_Shadow(t *testing.T) {
	t.Parallel()
	r := startMini(t, web, "--shadow")
	for range 5 {
		assert.Equal(t, "OK", r.ask("ann"))
	}
	_, text := r.get("/metrics", "")
	assert.Contains(t, text, `ratelimiter_outcome="refused",ratelimiter_shadow="true",ratelimiter_source="redis"} 2`)
}

func TestServe_TLS(t *testing.T) {
	t.Parallel()
	ca, cert, key := redistest.StartTLS(t).TLSFiles()
	r := startMini(t, web, "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ca)
	pem := limitertest.Must(os.ReadFile(ca))(t)
	pair := limitertest.Must(tls.LoadX509KeyPair(cert, key))(t)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(pem))
	for name, tc := range map[string]struct {
		certs []tls.Certificate
		want  codes.Code
	}{"With": {[]tls.Certificate{pair}, codes.OK}, "Without": {nil, codes.Unavailable}} {
		conn := r.dial(credentials.NewTLS(&tls.Config{RootCAs: roots, Certificates: tc.certs, MinVersion: tls.VersionTLS12}))
		_, err := ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request("ann"))
		assert.Equal(t, tc.want, status.Code(err), name)
	}
	assert.Equal(t, "Unavailable", r.ask("ann"))
}

// startHeld starts a rratelimitd and stops it once it has a call under way to Redis, which ends after release was called.
func startHeld(t *testing.T, flags ...string) (r *running, answer <-chan string, release func(), stopped <-chan struct{}) {
	t.Helper()
	m := miniredis.RunT(t)
	proxy := redistest.StartProxy(t, m.Addr())
	r = start(t, directory(t, web), proxy.Addr(), flags...)
	assert.Equal(t, "OK", r.ask("ann"))
	held, released, answered, ended := make(chan struct{}), make(chan struct{}), make(chan string, 1), make(chan struct{})
	hold := sync.OnceFunc(func() { close(held) }) // the call is repeated if it takes long
	proxy.OnCommand(func(c redistest.Command) redistest.Action {
		if !strings.Contains(c.Name(), "eval") || !c.Contains("user_ann") {
			return redistest.Pass
		}
		hold()
		return redistest.Pass.When(released)
	})
	go func() { answered <- r.ask("ann") }()
	<-held
	go func() {
		r.stop()
		close(ended)
	}()
	return r, answered, func() { close(released) }, ended
}

// A call under way when SIGTERM comes gets its answer.
func TestServe_Drains(t *testing.T) {
	t.Parallel()
	r, answer, release, stopped := startHeld(t)
	r.until("draining", func() bool {
		code, _ := r.get("/healthcheck", "")
		return code == http.StatusInternalServerError
	})
	release()
	assert.Equal(t, "OK", <-answer)
	<-stopped
}

// A call whose Redis takes longer than --drain ends then, and what it has under way to Redis arrives nevertheless.
func TestServe_ClosesAfterTheDrain(t *testing.T) {
	t.Parallel()
	r, answer, release, stopped := startHeld(t, "--drain", "50ms")
	assert.Equal(t, "Unavailable", <-answer)
	release()
	<-stopped
	assert.NotContains(t, r.log.String(), "not all that was under way has ended")
}

// Envoy's connection_keepalive pings a connection that has no calls, and keeps it.
func TestServe_KeepsConnectionsThatPing(t *testing.T) {
	t.Parallel()
	r := startMini(t, web)
	conn := limitertest.Must((&net.Dialer{}).DialContext(t.Context(), "tcp", r.grpc))(t)
	defer func() { _ = conn.Close() }()
	send := func(frame ...byte) {
		require.NoError(t, limitertest.Second(conn.Write(frame)))
	}
	const settings, ping, goAway = 4, 6, 7
	send([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")...)
	send(0, 0, 0, settings, 0, 0, 0, 0, 0)
	for range 6 {
		time.Sleep(pingsEvery) // so often at most
		send(0, 0, 8, ping, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8)
		for head := (make([]byte, 9)); head[3] != ping; {
			require.NoError(t, limitertest.Second(io.ReadFull(conn, head)))
			require.NotEqual(t, byte(goAway), head[3])
			require.NoError(t, limitertest.Second(io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(append([]byte{0}, head[:3]...))))))
		}
	}
	assert.Equal(t, "OK", r.ask("ann"))
}
