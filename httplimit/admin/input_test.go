package admin_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBadInputIsRefusedBeforeRedisIsAsked(t *testing.T) {
	t.Parallel()
	const (
		rate      = "/rate?name=orders"
		threshold = "/threshold?limiter=web&key=k"
	)
	for _, c := range []struct {
		method, target, body string
		status               int
		says                 string
	}{
		{http.MethodGet, "/", "", 404, "openapi.json"},
		{http.MethodGet, "/rate/", "", 404, ""},
		{http.MethodGet, "//rate?name=orders", "", 404, ""},
		{http.MethodGet, "/RATE?name=orders", "", 404, ""},
		{http.MethodPost, rate, rateBody(1, "1s"), 405, "GET, HEAD, PATCH, PUT"},
		{http.MethodDelete, rate, "", 405, ""},
		{http.MethodPut, "/limiters", "{}", 405, "GET, HEAD"},
		{http.MethodOptions, threshold, "", 405, "DELETE, GET, HEAD, PUT"},
		{"get", rate, "", 405, ""},

		{http.MethodGet, "/rate", "", 400, "one name"},
		{http.MethodGet, "/rate?name=", "", 400, "one name"},
		{http.MethodGet, "/rate?name=orders&name=orders", "", 400, "one name"},
		{http.MethodGet, "/rate?name=orders&x=1", "", 400, "means nothing"},
		{http.MethodGet, "/rate?name=orders;x=1", "", 400, "query"},
		{http.MethodGet, "/rate?name=%zz", "", 400, "query"},
		{http.MethodGet, "/rate?name=%ff", "", 400, "UTF-8"},
		{http.MethodPut, "/rate?name=keyed:%7Bann%7D:value", rateBody(1, "1s"), 400, "keyed:{ann}"},
		{http.MethodGet, "/rate?name=keyed:%7Bann%7D:permits:x", "", 400, "keyed:{ann}"},
		{http.MethodGet, "/thresholds", "", 400, "one limiter"},
		{http.MethodGet, "/threshold?limiter=web", "", 400, "one key"},
		{http.MethodGet, "/threshold?limiter=web&key=", "", 400, "one key"},
		{http.MethodGet, "/threshold?limiter=web&key=%ff", "", 400, "UTF-8"},
		{http.MethodGet, "/limiters?limiter=web", "", 400, "means nothing"},

		{http.MethodPut, rate, "", 415, "application/json"},
		{http.MethodPut, rate, `{}`, 400, "changes nothing"},
		{http.MethodPut, rate, `{"keepState":true}`, 400, "changes nothing"},
		{http.MethodPut, rate, `[]`, 400, "begin with {"},
		{http.MethodPut, rate, `null`, 400, "begin with {"},
		{http.MethodPut, rate, `{"rate":1,"interval":"1s"`, 400, "JSON"},
		{http.MethodPut, rate, `{"rate":1,"interval":"1s"}}`, 400, "JSON"},
		{http.MethodPut, rate, `{"rate":1,"interval":"1s"} {}`, 400, "follows"},
		{http.MethodPut, rate, `{"rate":1,"rate":2,"interval":"1s"}`, 400, "twice"},
		{http.MethodPut, rate, `{"rate":1,"r\u0061te":2,"interval":"1s"}`, 400, "twice"},
		{http.MethodPut, rate, `{"Rate":1,"interval":"1s"}`, 400, "means nothing"},
		{http.MethodPut, rate, `{"rate":1,"interval":"1s","burst":3}`, 400, "burst"},
		{http.MethodPut, rate, `{"rate":1}`, 400, "rate and interval"},
		{http.MethodPut, rate, `{"interval":"1s"}`, 400, "rate and interval"},
		{http.MethodPut, rate, `{"rate":0,"interval":"1s"}`, 400, "from 1 to 9007199254740991"},
		{http.MethodPut, rate, `{"rate":-1,"interval":"1s"}`, 400, "rate"},
		{http.MethodPut, rate, `{"rate":9007199254740992,"interval":"1s"}`, 400, "rate"},
		{http.MethodPut, rate, `{"rate":1e3,"interval":"1s"}`, 400, "rate"},
		{http.MethodPut, rate, `{"rate":1.0,"interval":"1s"}`, 400, "rate"},
		{http.MethodPut, rate, `{"rate":"1","interval":"1s"}`, 400, "rate"},
		{http.MethodPut, rate, `{"rate":null,"interval":"1s"}`, 400, "rate"},
		{http.MethodPut, rate, `{"rate":1,"interval":null}`, 400, "interval"},
		{http.MethodPut, rate, `{"rate":1,"interval":0}`, 400, "interval"},
		{http.MethodPut, rate, `{"rate":1,"interval":-1}`, 400, "interval"},
		{http.MethodPut, rate, `{"rate":1,"interval":"-1s"}`, 400, "interval"},
		{http.MethodPut, rate, `{"rate":1,"interval":"1"}`, 400, "interval"},
		{http.MethodPut, rate, `{"rate":1,"interval":"1500us"}`, 400, "interval"},
		{http.MethodPut, rate, `{"rate":1,"interval":9223372036855}`, 400, "interval"},
		{http.MethodPut, rate, `{"rate":1,"interval":[1]}`, 400, "interval"},
		{http.MethodPut, rate, `{"rate":1,"interval":"1m","keepAlive":"30s"}`, 400, "shorter"},
		{http.MethodPut, rate, `{"rate":1,"interval":"1m","keepAlive":-1}`, 400, "keepAlive"},
		{http.MethodPut, rate, `{"rate":1,"interval":"1m","type":"overall"}`, 400, "PER_CLIENT"},
		{http.MethodPut, rate, `{"rate":1,"interval":"1m","type":0}`, 400, "type"},
		{http.MethodPut, rate, `{"rate":1,"interval":"1m","keepState":1}`, 400, "keepState"},
		{http.MethodPut, rate, `{"rate":1,"interval":"1m","x":"` + strings.Repeat("x", 4096) + `"}`, 413, "4096"},
		{http.MethodPatch, rate, `{}`, 400, "changes nothing"},
		{http.MethodPatch, rate, `{"rate":0}`, 400, "rate"},

		{http.MethodPut, threshold, "", 415, "application/json"},
		{http.MethodPut, threshold, `{}`, 400, "no threshold"},
		{http.MethodPut, threshold, `{"threshold":-1}`, 400, "from 0 to"},
		{http.MethodPut, threshold, `{"threshold":true}`, 400, "from 0 to"},
		{http.MethodPut, threshold, `{"threshold":9007199254740992}`, 400, "from 0 to"},
		{http.MethodPut, threshold, `{"threshold":5,"ttl":1}`, 400, "ttl"},
	} {
		r := newRig(t, untouchable(t), nil)
		w := r.do(c.method, c.target, c.body)
		assert.Equal(t, c.status, w.Code, "%s %s %s: %s", c.method, c.target, c.body, w.Body)
		assert.Contains(t, w.Body.String(), c.says, c.body)
		if c.status == http.StatusMethodNotAllowed {
			assert.Contains(t, w.Header().Get("Allow"), "GET, HEAD")
		}
		assert.Empty(t, r.log.take())
	}
}

func TestContentTypes(t *testing.T) {
	t.Parallel()
	for contentType, status := range map[string]int{
		"application/json":                  200,
		"application/json; charset=utf-8":   200,
		"Application/JSON":                  200,
		"text/plain":                        415,
		"application/x-www-form-urlencoded": 415,
		"multipart/form-data; boundary=x":   415,
		"application/jsonx":                 415,
		"application/json, text/plain":      415,
		"":                                  415,
	} {
		r := miniRig(t)
		req := httptest.NewRequest(http.MethodPut, "/rate?name=orders", strings.NewReader(rateBody(1, "1s")))
		req.Header.Set("Content-Type", contentType)
		assert.Equal(t, status, serve(t, r, req).Code, contentType)
	}
}

func TestTimesAsPeopleWriteThem(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	for written, want := range map[string]string{"1d": "24h0m0s", "d": "24h0m0s", "m": "1m0s", "1d12h": "36h0m0s", "90s": "1m30s"} {
		w := r.do(http.MethodPut, "/rate?name=orders", rateBody(10, written))
		require.Equal(t, http.StatusOK, w.Code, w.Body)
		assert.Contains(t, w.Body.String(), `"interval":"`+want+`"`)
	}
	for _, nonsense := range []string{"0d", "1dd", "1h1d", "200000d"} {
		assert.Equal(t, http.StatusBadRequest, r.do(http.MethodPut, "/rate?name=orders", rateBody(10, nonsense)).Code, nonsense)
	}
}

func TestBodyThatBreaksOff(t *testing.T) {
	t.Parallel()
	r := newRig(t, untouchable(t), nil)
	req := httptest.NewRequest(http.MethodPut, "/rate?name=orders", brokenBody{})
	req.Header.Set("Content-Type", "application/json")
	assert.Equal(t, http.StatusBadRequest, serve(t, r, req).Code)
}

func TestPagesOfOtherOriginsChangeNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, untouchable(t), nil)
	req := request(http.MethodPut, "/rate?name=orders", rateBody(1, "1s"))
	req.Header.Set("Sec-Fetch-Site", "cross-site")
	assert.Equal(t, http.StatusForbidden, serve(t, r, req).Code)
	assert.Equal(t, "admin request refused", r.log.take()[0]["msg"])
}

func TestHead(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	assert.Equal(t, http.StatusNotFound, r.do(http.MethodHead, "/rate?name=orders", "").Code)
	assert.Equal(t, http.StatusOK, r.do(http.MethodHead, "/limiters", "").Code)
}

func FuzzHandler(f *testing.F) {
	f.Add("PUT", "/rate", "name=orders", "application/json", rateBody(1, "1s"))
	f.Add("PATCH", "/rate", "name=keyed:x", "application/json", `{"keepState":true,"keepAlive":"1h"}`)
	f.Add("PUT", "/threshold", "limiter=web&key=%7B%0A", "application/json", `{"threshold":5}`)
	f.Add("DELETE", "/threshold", "limiter=web&key=x", "", "")
	f.Add("GET", "/limiters", "", "", "")
	f.Fuzz(func(t *testing.T, method, path, query, contentType, body string) {
		r := miniRig(t)
		req := request(http.MethodGet, "/", body)
		req.Method, req.URL.Path, req.URL.RawQuery = method, path, query
		req.Header.Set("Content-Type", contentType)
		w := serve(t, r, req)
		assert.Less(t, w.Code, 500, w.Body)
		changed := false
		for _, line := range r.log.take() {
			changed = changed || line["msg"] == "limit changed"
		}
		keys, err := r.rdb.Keys(t.Context(), "*").Result()
		require.NoError(t, err)
		for _, key := range keys {
			assert.True(t, changed, "%q is there and nothing was logged", key)
			ours := key == "orders" || key == configKey || strings.HasPrefix(key, "keyed:") ||
				strings.HasPrefix(key, "{orders}:") || strings.HasPrefix(key, "{keyed:")
			assert.True(t, ours, "%q", key)
		}
	})
}
