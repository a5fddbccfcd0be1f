package httplimit

import (
	"context"
	"fmt"
	"time"

	inprocess "github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Local returns a limiter that keeps its state in this process, for [WithFallback]: a sliding
// window that grants permits for each key. Each process has its own: n processes together grant
// up to n times as much as one limiter in Redis.
//
// No span of a window's length ever gets more than permits. Up to 32 grants in a window
// come back after exactly a window. If there are more, some come back up to a 32nd of a
// window later. 32,768 keys that hold permits are limited each by itself. A key that comes
// beyond that shares one limit with others, so no key gets more than permits.
//
// It is also a [limit.Returner] and a [limit.Windowed].
func Local(permits int64, window time.Duration) limit.Limiter {
	return &local{keys: inprocess.New(), rule: inprocess.Rule{Permits: permits, Window: window}}
}

type local struct {
	keys *inprocess.Limiter
	rule inprocess.Rule
}

func (l *local) Err() error {
	if l.rule.Permits < 1 || l.rule.Window <= 0 {
		return fmt.Errorf("httplimit: Local: %w: %d permits in %v: both must be above 0", limit.ErrInvalidConfig, l.rule.Permits, l.rule.Window)
	}
	return nil
}

func (l *local) Window() time.Duration { return l.rule.Window }

func (l *local) Take(ctx context.Context, key string, n int64) (limit.Decision, error) {
	d, _, err := l.take(ctx, key, n)
	return d, err
}

func (l *local) TakeReturnable(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context) error, error) {
	d, giveBack, err := l.take(ctx, key, n)
	if giveBack == nil {
		return d, nil, err
	}
	return d, func(context.Context) error {
		giveBack()
		return nil
	}, nil
}

func (l *local) take(ctx context.Context, key string, n int64) (d limit.Decision, giveBack func(), err error) {
	switch {
	case l.Err() != nil:
		return d, nil, l.Err()
	case n < 1:
		err = fmt.Errorf("%w: %d is below 1", limit.ErrInvalidPermits, n)
	case n > l.rule.Permits:
		d.Limit = l.rule.Permits // so that an estimate can be lowered
		err = fmt.Errorf("%w: %d permits of %d", limit.ErrPermitsExceedRate, n, l.rule.Permits)
	case ctx.Err() != nil:
		return d, nil, ctx.Err()
	default:
		d, _, giveBack = l.keys.Take(key, n, n, l.rule)
		return d, giveBack, nil
	}
	return d, nil, fmt.Errorf("httplimit: Local: %w", err)
}
