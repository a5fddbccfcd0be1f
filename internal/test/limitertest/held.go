package limitertest

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// A HeldScene is a Scene whose Client reaches the server through a proxy.
type HeldScene struct {
	*Scene

	Proxy *redistest.Proxy
	Mini  *redis.Client // past the proxy
}

// NewHeldScene returns a HeldScene with so few connections that one flight is under way
// at a time: a test can say who goes together. It must be called in a bubble.
func NewHeldScene(t *testing.T, cfg rratelimiter.Config) *HeldScene {
	t.Helper()
	return NewHeldSceneOf(t, cfg, &redis.Options{ReadTimeout: time.Minute, PoolSize: 3})
}

// NewHeldSceneOf is NewHeldScene with a client of those options.
func NewHeldSceneOf(t *testing.T, cfg rratelimiter.Config, opt *redis.Options) *HeldScene {
	t.Helper()
	rdb, m := redistest.Mini(t)
	s := &HeldScene{Proxy: redistest.MiniProxy(t, m), Mini: rdb}
	through := s.Proxy.Client(t, opt)
	name := redistest.Name(t)
	s.Scene = &Scene{Redis: through, Other: NewClient(t, rdb).RateLimiter(name)}
	s.Client = NewClient(t, through)
	s.RateLimiter = s.Client.RateLimiter(name)
	MustTrySetRate(t, s.Other, cfg)
	for _, script := range lua.All() {
		require.NoError(t, rdb.ScriptLoad(t.Context(), script.Source).Err())
	}
	s.Sent = CountCommands(through)
	s.Start = time.Now()
	return s
}

// Hold has the n-th call of the script from now on wait for its answer until
// the returned function is called, or the test ends.
func (s *HeldScene) Hold(t *testing.T, script *lua.Script, n int) (letGo func()) {
	t.Helper()
	held := make(chan struct{})
	letGo = sync.OnceFunc(func() {
		close(held)
		synctest.Wait()
	})
	t.Cleanup(letGo)
	s.Proxy.OnCommand(redistest.Nth(n, script.SHA, redistest.Pass.When(held)))
	return letGo
}

// CheckInUse checks what is in use, and that all else is free.
func (s *HeldScene) CheckInUse(t *testing.T, rate, inUse int64) {
	t.Helper()
	synctest.Wait()
	assert.Equal(t, inUse, InUse(t, s.Mini, KeysOf(s.RateLimiter).Permits), "permits in use")
	value, ok := StoredValue(t, s.Mini, KeysOf(s.RateLimiter).Value)
	assert.True(t, ok)
	assert.Equal(t, rate-inUse, value, "free permits")
}
