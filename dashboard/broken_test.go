package dashboard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
)

// A limiter whose calls fail must not look like one that is unused.
func TestLimitersThatAreBroken(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ctx := t.Context()
	damage := map[string]func(name string) error{
		"set is text":     func(name string) error { return s.rdb.Set(ctx, "{"+name+"}:permits", "x", 0).Err() },
		"value is a list": func(name string) error { return s.rdb.RPush(ctx, "{"+name+"}:value", "x").Err() },
		"value is a word": func(name string) error { return s.rdb.Set(ctx, "{"+name+"}:value", "many", 0).Err() },
	}
	for name, spoil := range damage {
		s.limiter(name, rratelimiter.PerHour(10), 0)
		require.NoError(t, spoil(name))
		client := rratelimiter.New(s.rdb)
		_, err := client.RateLimiter(name).TryAcquire(ctx, 1, 0)
		require.ErrorIs(t, err, rratelimiter.ErrCorrupt, name)
		require.NoError(t, client.Close(ctx))
	}
	s.limiter("healthy", rratelimiter.PerHour(10), 9)
	list := s.limiters()
	require.Len(t, list, 4)
	for name := range damage {
		row := list[name]
		assert.Nil(t, row["use"], name)
		assert.Nil(t, row["free"], name)
		assert.Nil(t, row["in_use"], name)
		assert.NotEmpty(t, row["broken"], name)
		found := s.get("/api/limiter?id=" + idOf(name))
		assert.NotEmpty(t, found["broken"], name)
		assert.Nil(t, found["free"], name)
		assert.Nil(t, found["in_use"], name)
		_, preview := s.post("/api/preview", m{"action": "delete", "id": idOf(name)})
		inUse := facts(preview["before"])[factInUse]
		assert.Equal(t, name != "value is a word", inUse == "not known", "%s: %s", name, inUse)
	}
	assert.Nil(t, list["healthy"]["broken"])
	assert.InDelta(t, 0.9, list["healthy"]["use"], 0.01)
	first := s.get("/api/limiters?limit=3")["limiters"].([]any)
	for _, row := range first {
		assert.NotEmpty(t, row.(map[string]any)["broken"], "they come before what is in use")
	}

	// A limiter that nearly is one is no healthy one either.
	require.NoError(t, s.rdb.HSet(ctx, "nearly", "rate", "ten", "interval", "1000", "type", "0").Err())
	require.Eventually(t, func() bool { return s.limiters()["nearly"] != nil }, 5*time.Second, 10*time.Millisecond)
	assert.Contains(t, s.limiters()["nearly"]["broken"], "rate, interval or type")
	assert.InDelta(t, 4, s.get("/api/limiters")["broken"], 0)
	found := s.get("/api/limiter?id=" + idOf("nearly"))
	assert.Contains(t, found["broken"], "rate, interval or type")
	assert.Equal(t, looksBroken, s.get("/api/key?key=" + idOf("nearly"))["looks"])

	// What is mended is shown so.
	require.NoError(t, s.rdb.Del(ctx, "{set is text}:permits").Err())
	require.Eventually(t, func() bool { return s.limiters()["set is text"]["broken"] == nil }, 5*time.Second, 10*time.Millisecond)
	assert.Nil(t, s.get("/api/limiter?id=" + idOf("set is text"))["broken"])
}
