package rratelimiter

import (
	"context"

	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// read runs a script that may run any number of times.
func (l *RateLimiter) read(ctx context.Context, s *lua.Script, args script.Arguments) (any, error) {
	if l.err != nil {
		return nil, l.err
	}
	return l.client.engine.Read(ctx, &l.facts, script.Call{Script: s, Args: args})
}

// change runs a script that changes the limiter, once.
func (l *RateLimiter) change(ctx context.Context, s *lua.Script, args script.Arguments) (any, error) {
	if l.err != nil {
		return nil, l.err
	}
	return l.client.engine.Change(ctx, &l.facts, script.Call{Script: s, Args: args})
}

// fail says which limiter and which call an error speaks of.
func (l *RateLimiter) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	return &engine.Error{Op: op, Name: l.facts.Name, Err: err}
}
