package dashboard

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
)

// A mistyped name must not cost an application its key.
func TestWhatIsNoLimiterIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	require.NoError(t, s.rdb.HSet(t.Context(), "user", "name", "ann").Err())
	require.NoError(t, s.rdb.RPush(t.Context(), "list", "a").Err())
	require.NoError(t, s.rdb.Set(t.Context(), "text", "a", 0).Err())
	require.NoError(t, s.rdb.HSet(t.Context(), "car", "type", "car", "rate", 120).Err())
	require.NoError(t, s.rdb.HSet(t.Context(), "job", "type", 1, "interval", 60).Err())
	for _, name := range []string{"user", "list", "text", "car", "job"} {
		id := idOf(name)
		before := s.rdb.Dump(t.Context(), name).Val()
		for _, body := range []m{
			{"action": "delete", "id": id}, {"action": "expire", "id": id, "ttl_ms": 1000}, {"action": "migrate", "id": id},
			{"action": "release", "id": id, "permits": 1}, rateBody(name, 10, 1000, false),
		} {
			code, answer := s.post("/api/preview", body)
			assert.Equal(t, http.StatusConflict, code, "%s: %v: %v", name, body["action"], answer)
			body["expect"] = answer["expect"]
			code, _ = s.post("/api/change", body)
			assert.Equal(t, http.StatusConflict, code, "%s: %v", name, body["action"])
		}
		assert.Equal(t, before, s.rdb.Dump(t.Context(), name).Val())
		// It is looked at all the same, and said to be none.
		found := s.get("/api/limiter?id=" + id)
		assert.NotEmpty(t, found["anomalies"], name)
		assert.Equal(t, looksOther, s.get("/api/key?key=" + id)["looks"], name)
	}
}

// A limiter's hash looks like one of thresholds, by its numbers.
func TestALimiterIsNoHashOfThresholds(t *testing.T) {
	t.Parallel()
	s := newSite(t, withLogs("orders"))
	s.limiter("orders", rratelimiter.PerHour(10), 0)
	for _, body := range []m{
		{"action": "threshold", "hash": idOf("orders"), "id": idOf("rate"), "threshold": 40}, {"action": "unthreshold", "hash": idOf("orders"), "id": idOf("rate")},
	} {
		code, _ := s.post("/api/preview", body)
		assert.Equal(t, http.StatusConflict, code, "%v", body["action"])
	}
}

func TestAnUndoTellsWhatDoesNotComeBack(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.limiter("orders", rratelimiter.PerHour(10), 0)
	s.change(m{"action": "expire", "id": idOf("orders"), "ttl_ms": 60_000})
	_, answer := s.change(rateBody("orders", 20, 1000, true))
	_, preview := s.post("/api/preview", m{"action": "undo", "entry": answer["entry"].(map[string]any)["entry"]})
	assert.Len(t, preview["warnings"], 1)
}
