package httplimit_test

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter/httplimit"
)

// is a key function that always says part.
func is(part string) httplimit.KeyFunc {
	return func(*http.Request) (string, error) { return part, nil }
}

// keyOf returns the key that parts make.
func keyOf(t testing.TB, prefix string, parts ...string) string {
	t.Helper()
	var keys []httplimit.KeyFunc
	for _, part := range parts {
		keys = append(keys, is(part))
	}
	limiter := grants()
	serve(httplimit.New(limiter, httplimit.WithPrefix(prefix), httplimit.WithKey(keys...))(hello), newRequest(t))
	return limiter.key(t)
}

func TestKeyFunctions(t *testing.T) {
	t.Parallel()
	type user struct{}
	userOf := func(r *http.Request) string { name, _ := r.Context().Value(user{}).(string); return name }
	for _, test := range []struct {
		part httplimit.KeyFunc
		want string
	}{
		{httplimit.Header("X-Api-Key"), ""},
		{httplimit.Header("accept"), "text/html"},
		{httplimit.Header("host"), "tenant.example"},
		{httplimit.User(userOf), ""},
		{httplimit.Path(), "/items/1"},
		{httplimit.Route(), ""},
		{httplimit.ClientIP(httplimit.ClientIPConfig{}), "192.0.2.1"},
	} {
		r := newRequest(t)
		r.Host = "tenant.example"
		r.Header.Set("Accept", "text/html")
		got, err := test.part(r)
		require.NoError(t, err)
		assert.Equal(t, test.want, got)
	}
}

func TestRouteIsThePattern(t *testing.T) {
	t.Parallel()
	limiter := grants()
	mux := http.NewServeMux()
	mux.Handle("GET /items/{id}", httplimit.New(limiter, httplimit.WithKey(httplimit.Route()))(hello))
	assert.Equal(t, http.StatusOK, serve(mux, newRequest(t)).Code)
	assert.Equal(t, "http:GET%20/items/%7Bid%7D", limiter.key(t))
}

func TestKeyIsWrittenAsJavaServicesWriteIt(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "limit:ann:/hello/world", keyOf(t, "limit:", "ann", "/hello/world"))
}

func TestEscape(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 128)
	for part, want := range map[string]string{
		"":                      "",
		"ann@example.org":       "ann@example.org",
		"a:b":                   "a%3Ab",
		"{slot}":                "%7Bslot%7D",
		"100%":                  "100%25",
		"%3A":                   "%253A",
		"a b\t\r\n\x00\x7f":     "a%20b%09%0D%0A%00%7F",
		"\xff\xc3":              "%FF%C3",
		"Zoë 世界":                "Zoë%20世界",
		"\u00a0\u202e\u2028":    "%C2%A0%E2%80%AE%E2%80%A8",
		"\ufffd":                "\ufffd",
		long:                    long,
		long + "x":              strings.Repeat("x", 32) + "%sha256-",
		strings.Repeat(":", 43): strings.Repeat("%3A", 10) + "%sha256-",
	} {
		key := keyOf(t, "p", part)
		if strings.Contains(want, "%sha256-") {
			head, _, _ := strings.Cut(want, "%sha256-")
			assert.Regexp(t, "^p"+regexp.QuoteMeta(head)+"%sha256-[0-9a-f]{64}$", key)
			continue
		}
		assert.Equal(t, "p"+want, key)
	}
	assert.Equal(t, "p:a:", keyOf(t, "p:", "a", ""), "an empty part stays")
}

func TestHashTag(t *testing.T) {
	t.Parallel()
	for part, want := range map[string]string{"ann": "http:hour:{ann}", "": "http:hour:{%}", "%": "http:hour:{%25}", "}{": "http:hour:{%7D%7B}"} {
		limiter := grants()
		serve(httplimit.New(grants(), httplimit.WithKey(is(part)), httplimit.WithHashTag(),
			httplimit.WithPolicy(httplimit.Policy{Name: "hour", Limiter: limiter}))(hello), newRequest(t))
		assert.Equal(t, want, limiter.key(t))
	}
}

// wellFormed is what any key looks like: parts in which nothing is left that
// could end a part, choose a slot or upset a log.
var wellFormed = regexp.MustCompile(`^http:(?:(?:[^:{}%\x00- \x7f]|%[0-9A-F]{2}|%sha256-[0-9a-f]{64})*(?::|$))+$`)

func TestDifferentPartsMakeDifferentKeys(t *testing.T) {
	t.Parallel()
	letters := rapid.SampledFrom([]string{
		"a", ":", "%", "%3A", "%sha256-", "{", "}", " ", "/", "", "\xff", "\x00", "é", "\u2028", "0", strings.Repeat("long", 40),
	})
	part := rapid.OneOf(rapid.String(), rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(letters, 0, 5).Draw(t, "letters"), "")
	}), rapid.Custom(func(t *rapid.T) string {
		return string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
	}))
	parts := rapid.SliceOfN(part, 1, 4)
	rapid.Check(t, func(rt *rapid.T) {
		one, other := parts.Draw(rt, "one"), parts.Draw(rt, "other")
		if rapid.Bool().Draw(rt, "moved") {
			// The same text, divided elsewhere.
			other = strings.Split(strings.Join(one, ":"), ":")
		}
		a, b := keyOf(t, "http:", one...), keyOf(t, "http:", other...)
		assert.Equal(rt, assert.ObjectsAreEqual(one, other), a == b, "%q and %q", a, b)
		for _, key := range []string{a, b} {
			assert.Regexp(rt, wellFormed, key)
			assert.True(rt, utf8.ValidString(key))
			assert.LessOrEqual(rt, len(key), len("http:")+4*129)
		}
	})
}

// What a short part can be made to look like, a hashed one does not.
func TestHashedPartCannotBeImitated(t *testing.T) {
	t.Parallel()
	hashed := strings.TrimPrefix(keyOf(t, "p:", strings.Repeat("x", 500)), "p:")
	assert.NotEqual(t, "p:"+hashed, keyOf(t, "p:", hashed))
	assert.NotEqual(t, keyOf(t, "p:", strings.Repeat("x", 501)), "p:"+hashed)
}
