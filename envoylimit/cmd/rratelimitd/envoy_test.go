package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/envoylimit"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// envoy is a real one that asks a rratelimitd.
type envoy struct {
	t       *testing.T
	process *redistest.Process
	url     string // of its listener
	log     string // the file
}

// startEnvoy starts one with a file of examples/envoy, before a server and a rratelimitd.
func startEnvoy(t *testing.T, file, server, service string) *envoy {
	t.Helper()
	program, err := exec.LookPath("../../../.cache/bin/envoy")
	if err != nil {
		redistest.SkipOrFail(t, "no envoy: .cache/bin has none (scripts/install-envoy.sh installs it)")
	}
	data, err := os.ReadFile(filepath.Join(examples, file))
	require.NoError(t, err)
	text := string(data)
	port := func(address string) string { return "port_value: " + address[strings.LastIndex(address, ":")+1:] }
	for _, change := range []struct{ from, to string }{
		{port(":10000"), port(":0")},
		{port(":9901"), port(":0")},
		{port(":8000"), port(":0")}, // where the stand-in listens
		{port(":8000"), port(server)},
		{port(":8081"), port(service)},
	} {
		require.Contains(t, text, change.from)
		text = strings.Replace(text, change.from, change.to, 1)
	}
	text = strings.NewReplacer("timeout: 1s", "timeout: 60s", "timeout: 0.5s", "timeout: 60s").Replace(text) // the machine may stall
	dir := t.TempDir()
	config, admin := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
	e := &envoy{t: t, log: filepath.Join(dir, "log")}
	out, err := os.Create(e.log)
	require.NoError(t, err)
	defer func() { _ = out.Close() }()
	e.process, err = redistest.StartProcess("", out, program, "-c", config, "--disable-hot-restart", "--concurrency", "1", "-l", "warn",
		"--admin-address-path", admin)
	require.NoError(t, err)
	t.Cleanup(e.process.Kill)
	require.NoError(t, e.process.AwaitReady(t.Context(), func() error { return e.find(admin) }), "%s", e)
	return e
}

func (e *envoy) String() string {
	text, _ := os.ReadFile(e.log)
	return string(text)
}

// find finds out where the Envoy listens, once it does.
func (e *envoy) find(admin string) error {
	address, err := os.ReadFile(admin)
	if err != nil {
		return err
	}
	answer, err := http.Get("http://" + string(address) + "/listeners")
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		name, at, _ := strings.Cut(lines.Text(), "::")
		if name != "stand_in" && name != "app" && at != "" && !strings.HasSuffix(at, ":0") {
			e.url = "http://127.0.0.1" + at[strings.LastIndex(at, ":"):]
			return nil
		}
	}
	return errors.New("it does not listen yet")
}

type got struct {
	code   int
	header http.Header
}

func (e *envoy) send(path, body string, headers ...string) got {
	e.t.Helper()
	answer, rest := e.stream(path, body, headers...)
	_, err := io.Copy(io.Discard, rest)
	require.NoError(e.t, err)
	return answer
}

// stream sends a request, and returns the answer and its body, which is open until the test ends.
func (e *envoy) stream(path, body string, headers ...string) (got, io.ReadCloser) {
	e.t.Helper()
	r, err := http.NewRequestWithContext(e.t.Context(), http.MethodPost, e.url+path, strings.NewReader(body))
	require.NoError(e.t, err)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	require.NoError(e.t, err, "%s", e)
	e.t.Cleanup(func() { _ = answer.Body.Close() })
	return got{answer.StatusCode, answer.Header}, answer.Body
}

// model is a stand-in for a language model: 37 tokens, as JSON or as a stream that goes on when it is let.
type model struct {
	*httptest.Server

	goOn chan struct{}
}

func newModel(t *testing.T) *model {
	m := &model{goOn: make(chan struct{})}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/stream" {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"usage":{"total_tokens":37}}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {\"delta\":\"hello\"}\n\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-m.goOn:
			_, _ = io.WriteString(w, "data: {\"usage\":{\"total_tokens\":37}}\n\ndata: [DONE]\n\n")
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(m.Close)
	return m
}

const llm = `
domain: llm
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 200, estimate: 100, hold: 60s}}
- {key: user_calls, rate_limit: {unit: minute, requests_per_unit: 30}}
`

func startLLM(t *testing.T) (*envoy, *running, *model) {
	t.Helper()
	redistest.SkipShort(t, "several streams through Envoy")
	backend, r := newModel(t), startMini(t, llm)
	return startEnvoy(t, "envoy-llm.yaml", backend.URL, r.grpc), r, backend
}

// left returns how many of ann's tokens are left, by what /json answers.
func (r *running) left(user string) string {
	r.t.Helper()
	_, text := r.get("/json", `{"domain":"llm","descriptors":[{"entries":[{"key":"user","value":"`+user+`"}],"hits_addend":0}]}`)
	var answer struct {
		Statuses []struct{ LimitRemaining json.Number }
	}
	require.NoError(r.t, json.Unmarshal([]byte(text), &answer), "%s", text)
	return answer.Statuses[0].LimitRemaining.String()
}

// settles waits until so many of a user's tokens are left: a stream's end reaches Envoy's client first.
func (r *running) settles(user, left string) {
	r.t.Helper()
	r.until(user+" has "+left+" tokens left", func() bool { return r.left(user) == left })
}

func TestEnvoy_PlainRoute(t *testing.T) {
	t.Parallel()
	dir := directory(t, `
domain: web
descriptors:
- {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 5}}
- {key: plan, value: free, rate_limit: {unit: hour, requests_per_unit: 2}}
`)
	app, m := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})), miniredis.RunT(t)
	t.Cleanup(app.Close)
	r := start(t, dir, m.Addr())
	e := startEnvoy(t, "envoy-plain.yaml", app.URL, r.grpc)
	answer := e.send("/", "")
	assert.Equal(t, 200, answer.code)
	assert.Equal(t, "5, 5;w=60", answer.header.Get("X-Ratelimit-Limit"))
	assert.Equal(t, "4", answer.header.Get("X-Ratelimit-Remaining"))
	for _, want := range []int{200, 200, 429, 429} {
		answer = e.send("/", "", "X-Plan", "free")
		assert.Equal(t, want, answer.code)
	}
	assert.Equal(t, "2, 5;w=60, 2;w=3600", answer.header.Get("X-Ratelimit-Limit"))
	assert.Equal(t, "0", answer.header.Get("X-Ratelimit-Remaining"))
	assert.NotEmpty(t, answer.header.Get("X-Envoy-Ratelimited"))
	assert.Regexp(t, "^(3600|359[0-9])$", answer.header.Get("Retry-After"))
	// What the plan refused was not charged to the address.
	assert.Equal(t, "1", e.send("/", "").header.Get("X-Ratelimit-Remaining"))

	// Without Redis, failure_mode_deny decides, or what the domain says.
	m.Close()
	r.until("Redis is away", func() bool { return e.send("/", "").code == 500 })
	write(t, dir, "failure: open\n"+web)
	r.until("it opens", func() bool { return e.send("/", "").code == 200 })
}

// Each request reserves its estimate, and the end of its stream settles what it has cost.
func TestEnvoy_LLMRoute(t *testing.T) {
	t.Parallel()
	e, r, backend := startLLM(t)
	ann := []string{"X-User", "ann"}
	assert.Equal(t, 200, e.send("/v1/json", `{"max_tokens":100}`, ann...).code)
	r.settles("ann", "163")
	answer, body := e.stream("/v1/stream", `{"max_tokens":50}`, ann...)
	assert.Equal(t, 200, answer.code)
	assert.Equal(t, "113", r.left("ann"), "while the stream goes on")
	close(backend.goOn)
	_, err := io.ReadAll(body)
	require.NoError(t, err)
	r.settles("ann", "126")
	refused := e.send("/v1/json", `{"max_tokens":190}`, ann...)
	assert.Equal(t, 429, refused.code)
	assert.Equal(t, "126", r.left("ann"))
	assert.Equal(t, "27", e.send("/v1/json", `{"max_tokens":1}`, ann...).header.Get("X-Ratelimit-Remaining"), "of the calls")
	// Nothing says what it may cost: the service's own estimate counts.
	e.send("/v1/json", `{}`, "X-User", "bob")
	r.settles("bob", "163")
}

// A stream that is cut has no cost: the hold ends its reservation.
func TestEnvoy_StreamsThatAreCut(t *testing.T) {
	t.Parallel()
	e, r, _ := startLLM(t)
	now := time.Now()
	r.redis.SetTime(now)
	_, body := e.stream("/v1/stream", `{"max_tokens":150}`, "X-User", "ann")
	_, err := bufio.NewReader(body).ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "50", r.left("ann"))
	require.NoError(t, body.Close())
	r.redis.SetTime(now.Add(time.Minute))
	r.settles("ann", "200")
}

var examples = filepath.Join("..", "..", "..", "examples", "envoy")

var serveLine = regexp.MustCompile(`(?:command|args): \[serve, (.*)\]`)

// The limits of the examples are right, and the flags exist.
func TestExamples(t *testing.T) {
	t.Parallel()
	config, err := envoylimit.Load(filepath.Join(examples, "limits"))
	require.NoError(t, err)
	assert.Equal(t, []string{"llm", "web"}, config.Domains())
	assert.Empty(t, config.Warnings())
	for _, file := range []string{"compose.yaml", "kubernetes.yaml"} {
		text, err := os.ReadFile(filepath.Join(examples, file))
		require.NoError(t, err)
		match := serveLine.FindStringSubmatch(string(text))
		require.NotNil(t, match, file)
		s := &settings{}
		require.NoError(t, newFlags(s).Parse(strings.Split(strings.ReplaceAll(match[1], `"`, ""), ", ")), file)
		assert.Equal(t, "/limits", s.config)
	}
}
