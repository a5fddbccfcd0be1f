package rates

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// UseDefault takes an override of a limiter's rate back: programs' defaults may replace it from then on,
// and until one does, it stays. One that has an end ends at once, and that is so of the rate that comes back.
// It returns false if the rate is a default already. The call is not repeated once it may have run; each has this
// long for an answer.
func UseDefault(ctx context.Context, rdb nodes.Client, name string, timeout time.Duration) (bool, error) {
	lanes := lane.New(script.NewConn(rdb, timeout), nil)
	defer lanes.Close(ctx, nil) //nolint:errcheck // nothing is under way then
	keys := script.KeysOf(redisson.KeysOf(name, "").List()...)
	reply, err := lanes.Once(ctx, lua.UseDefault, keys)
	if answer, ok := errors.AsType[redis.Error](err); ok && script.Code(answer) == "NOTINIT" {
		return false, rratelimiter.ErrNotInitialized
	}
	if err != nil {
		return false, script.Explain(err, keys.Names(), "what a limiter has there", script.NameAdvice)
	}
	return reply == int64(1), nil
}
