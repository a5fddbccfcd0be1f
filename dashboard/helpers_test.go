package dashboard

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

const token, lookToken = "a token of some length", "a token for those who look"

type site struct {
	t   *testing.T
	h   http.Handler
	log *redistest.Buffer
	rdb redistest.Client
	cfg Config

	mini   *miniredis.Miniredis // of a story
	expect map[string]any       // of its last preview, by path
}

// newSite returns a dashboard that may be written to, on a server in memory.
func newSite(t *testing.T, with ...func(*Config)) *site {
	t.Helper()
	rdb, _ := redistest.Mini(t)
	return siteOn(t, rdb, with...)
}

func siteOn(t *testing.T, rdb redistest.Client, with ...func(*Config)) *site {
	t.Helper()
	s := &site{t: t, log: &redistest.Buffer{}, rdb: rdb, expect: map[string]any{}}
	cfg := Config{Redis: rdb.(redis.UniversalClient), Write: true, Authorize: WithToken(token), Logger: slog.New(slog.NewTextHandler(s.log, nil)), Server: "a test"}
	cfg.patience = redistest.Patience(0)
	for _, change := range with {
		change(&cfg)
	}
	s.h, s.cfg = Handler(cfg), cfg
	return s
}

// withLogs adds sliding logs with these hashes of thresholds to a site.
func withLogs(hashes ...string) func(*Config) {
	return func(c *Config) {
		for _, hash := range hashes {
			c.Others = append(c.Others, Other{
				Name: "logs", Prefix: "log:", Thresholds: hash,
				Limiter: slidinglog.New(limitertest.OpenClient(c.Redis), slidinglog.Config{Limit: 20, Window: time.Hour, Thresholds: hash}),
			})
		}
	}
}

// withOthers adds limiters of keys of each kind to a site.
func withOthers(c *Config) {
	client := limitertest.OpenClient(c.Redis)
	c.Others = append(c.Others,
		Other{Name: "windows", Prefix: "window:", Limiter: fixedwindow.New(client, fixedwindow.Config{Limit: 10, Window: time.Hour})},
		Other{
			Name: "logs", Prefix: "log:", Thresholds: "log:thresholds",
			Limiter: slidinglog.New(client, slidinglog.Config{Limit: 20, Window: time.Hour, Thresholds: "log:thresholds"}),
		},
		Other{Name: "buckets", Prefix: "bucket:", Limiter: tokenbucket.New(client, tokenbucket.Config{Capacity: 40, Refill: 1, Interval: time.Hour})},
	)
}

// client is a client of limiters that is closed when do returns.
func (s *site) client(do func(*rratelimiter.Client), opts ...rratelimiter.Option) {
	s.t.Helper()
	client := limitertest.NewClient(s.t, s.rdb, opts...)
	do(client)
	require.NoError(s.t, client.Close(context.WithoutCancel(s.t.Context())))
}

func (s *site) limiter(name string, cfg rratelimiter.Config, permits int64, opts ...rratelimiter.Option) {
	s.t.Helper()
	s.client(func(client *rratelimiter.Client) {
		l := client.RateLimiter(name)
		require.NoError(s.t, l.SetRate(s.t.Context(), cfg))
		if permits > 0 {
			limitertest.MustAcquire(s.t, l, permits)
		}
	}, opts...)
}

func (s *site) config(name string) (cfg rratelimiter.Config) {
	s.t.Helper()
	s.client(func(client *rratelimiter.Client) { cfg = limitertest.ConfigOf(s.t, client.RateLimiter(name)) })
	return cfg
}

func (s *site) do(r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	if r.Host == "example.com" { // httptest's own
		r.Host = "localhost"
	}
	s.h.ServeHTTP(w, r)
	described().checkAnswer(s.t, r.Method, strings.TrimPrefix(r.URL.Path, "/api"), w)
	return w
}

func (s *site) read(path string) *httptest.ResponseRecorder {
	return s.do(httptest.NewRequestWithContext(s.t.Context(), http.MethodGet, path, http.NoBody))
}

func (s *site) get(path string) map[string]any {
	s.t.Helper()
	w := s.read(path)
	require.Equal(s.t, http.StatusOK, w.Code, "%s: %s", path, w.Body)
	return object(s.t, w.Body.Bytes())
}

func object(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var o map[string]any
	require.NoError(t, json.Unmarshal(text, &o), "%s", text)
	return o
}

type m = map[string]any

// has requires these fields of an object; nil stands for none.
func has(t *testing.T, want, object m, about ...any) {
	t.Helper()
	assert.Empty(t, lacks(want, object), about...)
}

// request is a POST as the page sends it.
func (s *site) request(path string, body m) *http.Request {
	s.t.Helper()
	r := httptest.NewRequestWithContext(s.t.Context(), http.MethodPost, path, bytes.NewReader(limitertest.Must(json.Marshal(body))(s.t)))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return r
}

func (s *site) post(path string, body m) (int, m) {
	s.t.Helper()
	w := s.do(s.request(path, body))
	return w.Code, object(s.t, w.Body.Bytes())
}

func rows(t *testing.T, list map[string]any, field string) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	items, ok := list[field].([]any)
	require.True(t, ok, "%v", list)
	for _, item := range items {
		row := item.(map[string]any)
		all[row["name"].(string)] = row
	}
	return all
}

// piped is an answer that is read while it is written.
type piped struct {
	*httptest.ResponseRecorder

	to io.Writer
}

func (p piped) Write(text []byte) (int, error) { return p.to.Write(text) }

// follow reads the events of a stream until it is enough.
func (s *site) follow(path string, enough func(kind string, data m) bool) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	from, to := io.Pipe()
	defer func() { _ = from.Close() }()
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, http.NoBody)
	go func() {
		s.h.ServeHTTP(piped{httptest.NewRecorder(), to}, r)
		_ = to.Close()
	}()
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	kind := ""
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			kind = rest
		}
		if rest, ok := strings.CutPrefix(lines.Text(), "data: "); ok && enough(kind, object(s.t, []byte(rest))) {
			return
		}
	}
	require.NoError(s.t, lines.Err())
	s.t.Error("the stream ended")
}

// document is openapi.json.
type document struct{ root m }

var described = sync.OnceValue(func() (d document) {
	if err := json.Unmarshal(description, &d.root); err != nil {
		panic(err)
	}
	return d
})

// follow returns what a $ref stands for, and v itself if it is none.
func (d document) follow(v any) m {
	o := v.(m)
	ref, ok := o["$ref"].(string)
	if !ok {
		return o
	}
	at := d.root
	for name := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		next, ok := at[name].(m)
		if !ok {
			panic("openapi.json has no " + ref)
		}
		at = next
	}
	return at
}

// check returns what of v is against the schema. It knows the words that openapi.json uses, and panics at others.
func (d document) check(schema, v any) error {
	s := d.follow(schema)
	for word, want := range s {
		if err := d.checkWord(s, word, want, v); err != nil {
			return err
		}
	}
	return nil
}

func isOfType(name string, v any) bool {
	switch v := v.(type) {
	case nil:
		return name == "null"
	case m:
		return name == "object"
	case []any:
		return name == "array"
	case string:
		return name == "string"
	case bool:
		return name == "boolean"
	case float64:
		return name == "number" || name == "integer" && v == math.Trunc(v)
	}
	return false
}

func (d document) checkWord(s m, word string, want, v any) error {
	number, isNumber := v.(float64)
	text, isText := v.(string)
	members, isObject := v.(m)
	items, _ := v.([]any)
	ok := true
	switch word {
	case "description", "default":
	case "type":
		kinds, several := want.([]any)
		if !several {
			kinds = []any{want}
		}
		ok = slices.ContainsFunc(kinds, func(kind any) bool { return isOfType(kind.(string), v) })
	case "enum":
		ok = slices.Contains(want.([]any), v)
	case "minimum":
		ok = !isNumber || number >= want.(float64)
	case "maximum":
		ok = !isNumber || number <= want.(float64)
	case "minLength":
		ok = !isText || float64(len(text)) >= want.(float64)
	case "required":
		for _, name := range want.([]any) {
			_, there := members[name.(string)]
			ok = ok && (there || !isObject)
		}
	case "additionalProperties":
		properties, _ := s["properties"].(m)
		for name := range members {
			_, known := properties[name]
			ok = ok && (known || want != false)
		}
	case "properties":
		for name, property := range want.(m) {
			if member, there := members[name]; there {
				if err := d.check(property, member); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		}
	case "items":
		for _, item := range items {
			if err := d.check(want, item); err != nil {
				return err
			}
		}
	case "oneOf", "anyOf":
		matches := 0
		for _, part := range want.([]any) {
			if d.check(part, v) == nil {
				matches++
			}
		}
		ok = matches == 1 || matches > 0 && word == "anyOf"
	default:
		panic("openapi.json uses " + word)
	}
	if !ok {
		return fmt.Errorf("%v is against %q: %v", v, word, want)
	}
	return nil
}

// item returns what is documented of a path, nil for nothing.
func (d document) item(path string) m {
	paths := d.root["paths"].(m)
	if _, isPreview := strings.CutPrefix(path, "/preview/"); isPreview && endpoints[path].run != nil {
		path = "/preview/{verb}"
	}
	item, _ := paths[path].(m)
	return item
}

// checkAnswer checks an answer of the API against what is documented for its status.
func (d document) checkAnswer(t *testing.T, method, path string, w *httptest.ResponseRecorder) {
	t.Helper()
	item := d.item(path)
	if item == nil {
		return
	}
	operation, ok := item[strings.ToLower(strings.Replace(method, http.MethodHead, http.MethodGet, 1))].(m)
	if !ok {
		assert.GreaterOrEqual(t, w.Code, http.StatusBadRequest, "%s %s is not documented", method, path)
		return
	}
	responses := operation["responses"].(m)
	documented, ok := responses[fmt.Sprint(w.Code)]
	if !ok && w.Code >= http.StatusBadRequest {
		documented, ok = responses["default"]
	}
	require.True(t, ok, "%s %s answers %d", method, path, w.Code)
	kind := w.Header().Get("Content-Type")
	media, ok := d.follow(documented)["content"].(m)[kind].(m)
	require.True(t, ok, "%s %s answers with %s", method, path, kind)
	if kind == "text/event-stream" {
		return
	}
	var answer any
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer), "%s", w.Body)
	require.NoError(t, d.check(media["schema"], answer), "%s %s: %s", method, path, w.Body)
}

// checkBody returns how the body of a change violates the description.
func (d document) checkBody(t *testing.T, verb, body string) error {
	t.Helper()
	var v any
	require.NoError(t, json.Unmarshal([]byte(body), &v))
	return d.check(d.schemaOf(verb), v)
}

func (d document) schemaOf(verb string) any {
	content := d.follow(d.item("/change/" + verb)["post"].(m)["requestBody"])["content"].(m)
	return content["application/json"].(m)["schema"]
}

func TestOpenAPI_NamesAllPathsMethodsAndParameters(t *testing.T) {
	t.Parallel()
	s, d := newSite(t), described()
	assert.Equal(t, "3.1.0", d.root["openapi"])
	assert.Equal(t, d.root, s.get("/api/openapi.json"))
	paths := slices.DeleteFunc(slices.Collect(maps.Keys(endpoints)), func(path string) bool { return strings.HasPrefix(path, "/preview/") })
	assert.ElementsMatch(t, append(paths, "/preview/{verb}"), slices.Collect(maps.Keys(d.root["paths"].(m))))
	verbs := []any{}
	for _, verb := range slices.Sorted(maps.Keys(kinds)) {
		verbs = append(verbs, verb)
		schema := d.follow(d.schemaOf(verb))
		assert.ElementsMatch(t, strings.Fields(kinds[verb].fields+" expect"), slices.Collect(maps.Keys(schema["properties"].(m))), verb)
		assert.Equal(t, false, schema["additionalProperties"], verb)
	}
	assert.Equal(t, verbs, d.root["paths"].(m)["/preview/{verb}"].(m)["parameters"].([]any)[0].(m)["schema"].(m)["enum"])
	for path, e := range endpoints {
		item := d.item(path)
		methods := slices.DeleteFunc(slices.Collect(maps.Keys(item)), func(word string) bool { return word == "parameters" })
		assert.Equal(t, []string{strings.ToLower(e.method)}, methods, path)
		var params []string
		described, _ := item["parameters"].([]any)
		for _, v := range described {
			p := d.follow(v)
			if p["in"] == "query" {
				params = append(params, p["name"].(string)+map[any]string{nil: "?"}[p["required"]])
			}
		}
		if !strings.HasPrefix(path, "/preview/") { // which takes those of the change
			assert.Equal(t, e.params, params, path)
		}
		w := s.do(httptest.NewRequestWithContext(t.Context(), "TEST", "/api"+path, http.NoBody))
		assert.Equal(t, http.StatusUnauthorized, w.Code, path)
		r := s.request("/api"+path, m{})
		r.Method = "TEST"
		w = s.do(r)
		assert.Equal(t, http.StatusMethodNotAllowed, w.Code, path)
		assert.Equal(t, e.allowed(), w.Header().Get("Allow"), path)
	}
}
