package limitertest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/merge"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// With RRL_MERGE=all the members of all limiters are merged as soon as there are two.
var mergesAll = os.Getenv("RRL_MERGE") == "all"

func init() {
	if mergesAll {
		merge.Everything()
	}
}

// Main runs a package's tests for its TestMain. With RRL_MERGE=all it fails if nothing was merged.
func Main(m *testing.M) {
	code := m.Run()
	if mergesAll {
		merges := merge.Merges.Load()
		fmt.Fprintf(os.Stderr, "RRL_MERGE=all: %d members stand for others\n", merges)
		if merges == 0 {
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// ByDefault returns a Client's handle whose default is cfg.
func ByDefault(c *rratelimiter.Client, name string, cfg rratelimiter.Config) *rratelimiter.RateLimiter {
	return c.RateLimiter(name, rratelimiter.WithDefault(cfg))
}

// Alive returns a Config of a limiter that expires if its waiting callers stop asking.
func Alive(kind rratelimiter.RateType, rate int64, interval time.Duration) rratelimiter.Config {
	return rratelimiter.Config{Type: kind, Rate: rate, Interval: interval, KeepAlive: interval}
}

// LogTo is the option of a Client that writes its log to w.
func LogTo(w io.Writer) rratelimiter.Option {
	return rratelimiter.WithLogger(slog.New(slog.NewTextHandler(w, nil)))
}

// FarAway returns a client of a miniredis to which each pipeline takes that long.
func FarAway(t testing.TB, trip time.Duration) redistest.Client {
	t.Helper()
	_, m := redistest.Mini(t)
	far := redistest.MiniClient(t, m, &redistest.Options{PoolSize: 20})
	far.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		if cmds[0].Name() != "hello" { // as if all connections were there
			time.Sleep(trip)
		}
		return next()
	}))
	return far
}

// Patient is the option of a Client that waits for its calls with redistest.Patience.
func Patient() rratelimiter.Option {
	return rratelimiter.WithCallTimeout(redistest.Patience(script.DefaultTimeout))
}
