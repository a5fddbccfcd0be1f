package redistest

import (
	"net"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/memory"
)

// Mini returns a client of a new miniredis, and the miniredis. They talk
// through memory, so inside a testing/synctest bubble time.Sleep moves the
// server's TIME and its TTLs; elsewhere both follow the wall clock, or
// SetTime. Both are closed when t ends, and leave no goroutine. The
// test is skipped where RRL_ENGINE leaves miniredis out.
func Mini(t testing.TB) (*redis.Client, *miniredis.Miniredis) {
	t.Helper()
	if engine() != everyEngine {
		t.Skip(onMiniredis)
	}
	return newMini(t)
}

func newMini(t testing.TB) (*redis.Client, *miniredis.Miniredis) {
	t.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	t.Cleanup(m.Close)
	return MiniClient(t, m, nil), m
}

// MiniClient returns one more client of m. What of opt has to do with dialling
// is replaced; nil stands for the defaults.
func MiniClient(t testing.TB, m *miniredis.Miniredis, opt *redis.Options) *redis.Client {
	t.Helper()
	return memoryClient(t, opt, func() (net.Conn, error) {
		conn, err := m.Dial()
		if err != nil {
			return nil, err
		}
		return memory.Buffer(conn), nil
	})
}

// memoryClient returns a client fit for a synctest bubble.
func memoryClient(t testing.TB, opt *redis.Options, dial func() (net.Conn, error)) *redis.Client {
	t.Helper()
	rdb, end := memory.NewClient(valueOf(opt), dial)
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Errorf("closing the client: %v", err)
		}
	})
	return rdb
}
