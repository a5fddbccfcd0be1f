package engine

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Error names the limiter and the call in which an error occurred.
type Error struct {
	Op   string
	Name string
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("rratelimiter: %s %q: %v", e.Op, e.Name, e.Err) }

func (e *Error) Unwrap() error { return e.Err }

// explain turns an error of a script or of go-redis into one that callers can test for and act on.
func (e *Engine) explain(keys []string, err error) error {
	_, err = e.explainPart(context.Background(), keys, err)
	return err
}

// explainPart is explain for a call for several limiters, whose keys follow each other. It also
// returns the number of the limiter that caused the error, from 1, or 0. It asks Redis about keys no longer than ctx lasts.
func (e *Engine) explainPart(ctx context.Context, keys []string, err error) (number int64, _ error) {
	if err == nil || errors.Is(err, limit.ErrUnavailable) {
		return 0, err
	}
	if answer, ok := errors.AsType[redis.Error](err); ok {
		code := script.Code(answer)
		_, word, _ := strings.Cut(answer.Error(), code+" ")
		word, _, _ = strings.Cut(word, " ")
		n, _ := strconv.ParseInt(word, 10, 64)
		number = (n + keysEach - 1) / keysEach // n is the number of the key
		switch code {
		case "NOTINIT":
			return number, fmt.Errorf("%w; call TrySetRate first, or give the handle one by WithDefault", limit.ErrNotInitialized)
		case "CORRUPT":
			if key, field, why, ok := script.Corrupt(err, keys); ok {
				return number, fmt.Errorf("%w: key %q: %s %s; SetRate or Delete cures it", limit.ErrCorrupt, key, field, why)
			}
		case "WRONGTYPE":
			return e.explainType(ctx, keys, err)
		}
	}
	return 0, script.Explain(err, keys, "", script.NameAdvice)
}

// keysEach is how many keys a limiter has.
const keysEach = 5

// isWrongType reports whether explain would ask Redis about an error. Such an error must not be
// explained on a goroutine that sends.
func isWrongType(err error) bool { return script.Code(err) == "WRONGTYPE" }

// explainType finds the key of the wrong type.
func (e *Engine) explainType(ctx context.Context, keys []string, err error) (number int64, _ error) {
	want := [keysEach]string{"hash", "string", "string", "zset", "zset"}
	fields := [keysEach]string{"config", "value", "value", "permits", "permits"}
	if len(keys) < keysEach { // not the keys of a limiter
		return 0, fmt.Errorf("%w: keys %q: %w", limit.ErrCorrupt, keys, err)
	}
	ctx, cancel := context.WithTimeout(ctx, e.conn.AttemptTimeout)
	defer cancel()
	for i, key := range keys {
		part := i % keysEach
		got, readErr := e.lanes.Read(ctx, lua.Command, script.KeysOf(key), "TYPE")
		if readErr == nil && got != want[part] && got != "none" {
			return int64(i/keysEach + 1), fmt.Errorf("%w: key %q: %s is of type %v, not %s; remove the key", limit.ErrCorrupt, key, fields[part], got, want[part])
		}
	}
	return 0, fmt.Errorf("%w: keys %q: %w", limit.ErrCorrupt, keys, err)
}

func errExceeds(permits, rate int64) error {
	return fmt.Errorf("%w: %d permits of %d an interval; ask for fewer or raise the rate", limit.ErrPermitsExceedRate, permits, rate)
}
