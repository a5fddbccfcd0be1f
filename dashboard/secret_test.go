package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
)

// What is planted in keys that are no limiter's, as a text and as a number.
const (
	secret       = "SECRET"
	secretNumber = 8675309421
)

// plant writes keys of all types with secrets, and returns the names that whoever asks
// knows. Of each there is one within api:* and one outside.
func plant(t *testing.T, s *site) (names []string) {
	t.Helper()
	ctx := t.Context()
	pipe := s.rdb.Pipeline()
	for _, prefix := range []string{"api:", "session:"} {
		add := func(name string) string {
			names = append(names, prefix+name)
			return prefix + name
		}
		pipe.HSet(ctx, add("hash"), "token", secret, secret, "x")
		pipe.HSet(ctx, add("numbers"), "token", int64(secretNumber), secret, 1)
		pipe.HSet(ctx, add("type"), "type", secret, "rate", "10", "interval", "1000")
		pipe.HSet(ctx, add("rate"), "type", "0", "rate", secret, "interval", "1000")
		pipe.HSet(ctx, add("alive"), "type", "0", "rate", "7", "interval", "1000", "keepAliveTime", secret)
		pipe.Set(ctx, add("text"), secret, 0)
		pipe.Set(ctx, add("number"), int64(secretNumber), time.Hour)
		pipe.ZAdd(ctx, add("set"), redis.Z{Score: secretNumber, Member: secret})
		pipe.ZAdd(ctx, add("log"), redis.Z{Score: secretNumber * 200, Member: secret}) // as a time
		pipe.Expire(ctx, prefix+"log", time.Hour)
		pipe.RPush(ctx, add("list"), secret)
		pipe.SAdd(ctx, add("members"), secret)
		pipe.XAdd(ctx, &redis.XAddArgs{Stream: add("stream"), Values: []any{secret, secret}})
		// Pairs of value and set without a limiter, with a damaged one, and with a good one.
		for _, name := range []string{"none", "type", "good"} {
			pipe.Set(ctx, "{"+prefix+name+"}:value", secret, 0)
			pipe.ZAdd(ctx, "{"+prefix+name+"}:permits", redis.Z{Score: secretNumber, Member: secret})
		}
		names = append(names, prefix+"none", prefix+"good", prefix+"count")
		names = append(names, "{"+prefix+"good}:value", "{"+prefix+"good}:permits", "{"+prefix+"none}:value", "{"+prefix+"count}:value")
		pipe.HSet(ctx, prefix+"good", "type", "0", "rate", "7", "interval", "1000")
		pipe.Set(ctx, "{"+prefix+"count}:value", int64(secretNumber), 0)
	}
	pipe.HSet(ctx, "session:limiter", "type", "0", "rate", int64(secretNumber), "interval", "1000") // outside of the pattern
	pipe.HSet(ctx, "limits", "log:ann", 40, "log:bob", secret, secret, secret)
	pipe.Set(ctx, "win:text", secret, 0)
	pipe.HSet(ctx, "win:hash", secret, secret)
	pipe.RPush(ctx, "log:list", secret)
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)
	return append(names, "session:limiter", "limits", "win:text", "win:hash", "log:list", "log:ann", "log:bob")
}

// questions are requests to all endpoints about a name.
func questions(t *testing.T, name string) (all []*http.Request) {
	t.Helper()
	id := idOf(name)
	for path, e := range endpoints {
		if e.method != http.MethodGet {
			continue
		}
		for _, query := range []string{"id=" + id + "&key=" + id + "&hash=" + id, "search=" + name + "&sort=name"} {
			all = append(all, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path+"?"+query, http.NoBody))
		}
	}
	all = append(all, httptest.NewRequestWithContext(t.Context(), http.MethodHead, "/api/key?key="+id, http.NoBody))
	bodies := []m{
		{"action": "threshold", "id": idOf("token"), "hash": id}, {"action": "unthreshold", "id": idOf("token"), "hash": id},
		{"action": "unthreshold", "id": idOf("log:bob"), "hash": idOf("limits")},
		{"action": "release", "id": id, "permits": 1, "client": id},
		{"action": "rate", "id": id, "rate": 1, "interval_ms": 1, "type": "PER_CLIENT"},
	}
	for action := range planners {
		if !strings.Contains(action, "threshold") {
			body := m{"action": action, "id": id, "ttl_ms": 1, "permits": 1, "entry": 1}
			maps.Copy(body, m{"rate": 1, "interval_ms": 1, "type": "OVERALL", "keep_state": true})
			bodies = append(bodies, body)
		}
	}
	for _, body := range bodies {
		text, err := json.Marshal(body)
		require.NoError(t, err)
		for _, path := range []string{"/api/preview", "/api/change"} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, bytes.NewReader(text))
			r.Header.Set("Content-Type", "application/json")
			all = append(all, r)
		}
	}
	return all
}

// Whoever knows the name of a key learns nothing of what it holds, unless it is a
// limiter's.
func TestNoAnswerHasWhatForeignKeysHold(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"", "api:*"} {
		for _, given := range []string{"", "a token for looking", token} {
			t.Run(fmt.Sprintf("pattern %q, token %q", pattern, given), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { askForSecrets(t, pattern, given) })
			})
		}
	}
}

func askForSecrets(t *testing.T, pattern, given string) {
	t.Helper()
	s := newSite(t, withLogs("limits"), func(c *Config) {
		c.Pattern = pattern
		windows := fixedwindow.New(c.Redis, fixedwindow.Config{Limit: 9, Window: time.Hour})
		c.Others = append(c.Others, Other{Name: "windows", Prefix: "win:", Limiter: windows})
	})
	asked := map[string]bool{}
	names := plant(t, s)
	if pattern == "" { // within no pattern it is a limiter like others, and its rate is told
		require.NoError(t, s.rdb.Del(t.Context(), "session:limiter").Err())
	}
	for _, name := range names {
		for _, r := range questions(t, name) {
			if r.Method == http.MethodPost && given != token {
				r.Body = http.NoBody // it is refused before that is read
			}
			if given != "" {
				r.Header.Set("Authorization", "Bearer "+given)
			}
			ctx, cancel := context.WithTimeout(r.Context(), 1500*time.Millisecond) // ends streams
			w := s.do(r.WithContext(ctx))
			cancel()
			asked[r.URL.Path] = true
			told := fmt.Sprint(w.Header(), w.Body)
			about := fmt.Sprintf("%s of %s", r.URL, name)
			require.NotContains(t, told, secret, about)
			require.NotContains(t, told, fmt.Sprint(int64(secretNumber)), about)
			if pattern != "" {
				require.NotContains(t, told, `"name":"session:`, about)
			}
		}
	}
	assert.Len(t, asked, len(endpoints))
	assert.Equal(t, secret, s.rdb.HGet(t.Context(), "session:hash", "token").Val())
	assert.NotContains(t, s.log.String(), secret)
	assert.NotContains(t, s.log.String(), fmt.Sprint(" ", int64(secretNumber)))
}

// Of a damaged limiter and of what is none the page says no times and no permits.
func TestWhatIsNoLimiterHasNoFigures(t *testing.T) {
	t.Parallel()
	s := newSite(t, withLogs("limits"))
	plant(t, s)
	for _, name := range []string{"api:none", "api:type", "api:count", "api:hash"} {
		found := s.show(name)
		has(t, m{"rate": nil, "ttl_ms": nil, "keep_alive_ms": nil, "free": nil}, found, name)
		for _, one := range found["states"].([]any) {
			pair := one.(m)
			assert.Empty(t, pair["permits"], name)
			assert.Empty(t, pair["returns"], name)
			assert.Nil(t, pair["value"], name)
		}
	}
	// The field is no key of such a log, and holds no threshold.
	s.refuses(http.StatusConflict, m{"action": "unthreshold", "id": idOf(secret), "hash": idOf("limits")})
	key := s.get("/api/key?key=" + idOf("api:number"))
	has(t, m{"type": "string", "ttl_ms": nil, "looks": looksOther}, key)
	assert.Equal(t, map[string]string{"Bytes": "10"}, facts(key["facts"]))
}

// Outside of the pattern an answer does not even say whether there is such a key.
func TestOutsideOfThePattern(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Pattern = "api:*" })
	plant(t, s)
	answers := func(name string) (all []string) {
		for _, r := range questions(t, name) {
			path := r.URL.Path
			isList := slices.ContainsFunc([]string{"/api/about", "/api/audit", "/api/limiters", "/api/others"}, func(list string) bool {
				return strings.HasPrefix(path, list)
			})
			if isList || r.Method == http.MethodGet && strings.HasSuffix(path, "stream") {
				continue
			}
			r.Header.Set("Authorization", "Bearer "+token)
			w := s.do(r)
			all = append(all, fmt.Sprint(r.Method, path, w.Code, w.Body))
			assert.NotEqual(t, http.StatusOK, w.Code, "%s: %s", name, r.URL)
		}
		return all
	}
	assert.ElementsMatch(t, answers("session:nothing"), answers("session:limiter"))
	assert.ElementsMatch(t, answers("session:nothing"), answers("session:text"))
	assert.Empty(t, s.get("/api/audit")["entries"], "what is refused so is not in a list that others read")
	assert.Equal(t, int64(secretNumber), s.config("session:limiter").Rate)

	s.limiter("api:orders", rratelimiter.PerHour(10), 1)
	s.change(rateBody("api:orders", 20, 1000, true))
	assert.Equal(t, int64(20), s.config("api:orders").Rate)
}
