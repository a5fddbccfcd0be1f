package rratelimiter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/meet"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// write runs a script that changes the limiter, once; then callers that wait
// for permits ask anew.
func (l *RateLimiter) write(ctx context.Context, s *lua.Script, args ...any) (any, error) {
	return l.writeTo(ctx, nil, s, args...)
}

// writeTo is write for a script that takes more keys.
func (l *RateLimiter) writeTo(ctx context.Context, more []string, s *lua.Script, args ...any) (any, error) {
	to := l.keys
	if more != nil {
		to = script.KeysOf(slices.Concat(l.keys.Names(), more)...)
	}
	return l.call(ctx, func(ctx context.Context) (any, error) {
		reply, err := script.Once(ctx, l.client.sender, s, to, args...)
		l.client.wake(l.keys.Names()[0])
		return reply, err
	}, errUnderWay)
}

// read runs a script that may run any number of times.
func (l *RateLimiter) read(ctx context.Context, s *lua.Script, args ...any) (any, error) {
	return l.call(ctx, func(ctx context.Context) (any, error) {
		return script.Read(ctx, l.client.sender, s, l.keys, args...)
	}, nil)
}

// call runs f and returns early when ctx ends: go-redis does not interrupt a
// read that has begun. The error then joins ctx's with what is to be said of
// an f under way.
func (l *RateLimiter) call(ctx context.Context, f func(context.Context) (any, error), underWay error) (any, error) {
	if l.err != nil {
		return nil, l.err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := l.client.begin(); err != nil {
		return nil, err
	}
	explained := func(ctx context.Context) (any, error) {
		defer l.client.end()
		reply, err := f(ctx)
		if err != nil {
			return nil, l.client.explain(ctx, l.keys.Names(), err)
		}
		return reply, nil
	}
	if ctx.Done() == nil {
		return explained(ctx)
	}
	type result struct {
		reply any
		err   error
	}
	done := make(chan result, 1)
	go func() {
		reply, err := explained(context.WithoutCancel(ctx))
		done <- result{reply, err}
	}()
	select {
	case r := <-done:
		return r.reply, r.err
	case <-ctx.Done():
		if underWay != nil {
			return nil, fmt.Errorf("%w: %w", underWay, ctx.Err())
		}
		return nil, ctx.Err()
	}
}

// fail says which limiter and which call an error speaks of.
func (l *RateLimiter) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	return &limiterError{op: op, name: l.name, err: err}
}

// explain turns what a script or go-redis answered into an error that callers
// can test for and act on.
func (c *Client) explain(ctx context.Context, keys []string, err error) error {
	code, text := "", ""
	if answer, ok := errors.AsType[redis.Error](err); ok {
		code, text = script.Code(answer), answer.Error()
	}
	switch code {
	case "NOTINIT":
		return fmt.Errorf("%w; call TrySetRate first, or give the handle one by WithDefault", ErrNotInitialized)
	case "CORRUPT":
		if key, field, why, ok := meet.Corrupt(text, keys); ok {
			return fmt.Errorf("%w: key %q: %s %s; SetRate or Delete cures it", ErrCorrupt, key, field, why)
		}
	case "WRONGTYPE":
		return c.explainType(ctx, keys, err)
	case "CROSSSLOT":
		return fmt.Errorf("%w: the keys %q fall in different slots of the cluster: "+
			"name the limiter without braces or with one hash tag, as in \"{shop}orders\": %w", ErrUnsupported, keys, err)
	}
	if errors.Is(err, script.ErrLost) {
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
	}
	return err
}

// explainType finds the key of the wrong type.
func (c *Client) explainType(ctx context.Context, keys []string, err error) error {
	want := []string{"hash", "string", "string", "zset", "zset"}
	fields := []string{"config", "value", "value", "permits", "permits"}
	reply, readErr := script.Read(ctx, c.sender, lua.Types, script.KeysOf(keys[:len(want)]...))
	types, _ := reply.([]any)
	if readErr == nil && len(types) == len(want) {
		for i, got := range types {
			if got != want[i] && got != "none" {
				return fmt.Errorf("%w: key %q: %s is of type %v, not %s; remove the key", ErrCorrupt, keys[i], fields[i], got, want[i])
			}
		}
	}
	return fmt.Errorf("%w: keys %q: %w", ErrCorrupt, keys, err)
}

// untilDone calls a script as often as it answers {"again", token}, with the
// token of its last answer, and returns what it answered in the end.
func untilDone(call func(token string) (any, error)) (any, error) {
	token := ""
	for {
		reply, err := call(token)
		if err != nil {
			return nil, err
		}
		next, _, more := again(reply)
		if !more {
			return reply, nil
		}
		token = next
	}
}

// integer checks that a script answered an integer.
func integer(reply any) (int64, error) {
	numbers, err := integers([]any{reply}, 1)
	if err != nil {
		return 0, err
	}
	return numbers[0], nil
}

// integers checks that a script answered n integers.
func integers(reply any, n int) ([]int64, error) {
	numbers, err := meet.Integers(reply, n)
	if err == nil && len(numbers) != n {
		err = fmt.Errorf("unexpected answer of a script: %v", reply)
	}
	return numbers, err
}
