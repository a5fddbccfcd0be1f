package rratelimiter

import (
	"context"
	"errors"
	"fmt"
	"slices"

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
	to := l.facts.Keys
	if more != nil {
		to = script.KeysOf(slices.Concat(to.Names(), more)...)
	}
	return l.call(ctx, true, func() (any, error) {
		defer l.client.engine.Changed(l.config())
		return script.Once(ctx, l.client.conn, s, to, args...)
	})
}

// read runs a script that may run any number of times.
func (l *RateLimiter) read(ctx context.Context, s *lua.Script, args ...any) (any, error) {
	return l.call(ctx, false, func() (any, error) {
		return script.Read(ctx, l.client.conn, s, l.facts.Keys, args...)
	})
}

// call runs f, which ends when ctx's deadline does. The error of one that writes
// then says that it was under way.
func (l *RateLimiter) call(ctx context.Context, writes bool, f func() (any, error)) (any, error) {
	if l.err != nil {
		return nil, l.err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := l.client.engine.Begin(); err != nil {
		return nil, err
	}
	defer l.client.engine.End()
	reply, err := f()
	if err == nil {
		return reply, nil
	}
	ended := ctx.Err()
	switch {
	case ended == nil:
		return nil, l.client.engine.Explain(l.facts.Keys.Names(), err)
	case writes && errors.Is(err, script.ErrLost):
		return nil, fmt.Errorf("%w: the call was under way: %w", ErrUnknownOutcome, ended)
	}
	return nil, ended
}

// fail says which limiter and which call an error speaks of.
func (l *RateLimiter) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	return &limiterError{op: op, name: l.facts.Name, err: err}
}
