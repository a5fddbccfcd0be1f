// Package script runs scripts on Redis so that none runs twice unnoticed.
//
// go-redis by itself repeats a command whose answer was lost, and runs the
// script again. The commands made here forbid it that; instead a call is
// repeated here, and only where that is harmless: always where the first
// attempt never reached Redis or was refused unrun, and after a lost answer
// where the caller says so (see [Repeat]).
package script

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/lua"
)

// Redis is what this package needs of a go-redis client.
type Redis interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
}

// ErrLost marks the error of a call that may have run, though no answer came.
var ErrLost = errors.New("no answer")

const (
	maxAttempts = 5
	minBackoff  = 8 * time.Millisecond
	maxBackoff  = 512 * time.Millisecond

	patientBackoff = 128 * time.Millisecond
)

// Patience is how long a call is repeated that is refused while servers change
// places: until they have, it is refused however often it is made.
const Patience = 3 * time.Second

// Once runs a script. It is not repeated once it may have run: the error is
// ErrLost then, with its cause.
func Once(ctx context.Context, rdb Redis, s *lua.Script, keys []string, args ...any) (any, error) {
	return run(ctx, rdb, s, keys, false, Patience, func(time.Duration) []any { return args })
}

// Read runs a script that may run any number of times.
func Read(ctx context.Context, rdb Redis, s *lua.Script, keys []string, args ...any) (any, error) {
	return run(ctx, rdb, s, keys, true, Patience, func(time.Duration) []any { return args })
}

// Repeat runs a script that can tell a repeated attempt from a new one. Its
// arguments are asked for before each attempt; age is the time since the first
// attempt that may have run was sent, below 0 while there is none. The error is
// ErrLost, with the cause, where one of the attempts may have run. patience takes
// the place of [Patience].
func Repeat(ctx context.Context, rdb Redis, s *lua.Script, keys []string, patience time.Duration, args func(age time.Duration) []any) (any, error) {
	return run(ctx, rdb, s, keys, true, patience, args)
}

func run(ctx context.Context, rdb Redis, s *lua.Script, keys []string, repeat bool, patience time.Duration, args func(time.Duration) []any) (any, error) {
	var doubt time.Time   // when the first attempt that may have run was sent
	var refused time.Time // when servers were first seen to change places
	counted := 0
	for attempt := 1; ; attempt++ {
		sent, age := time.Now(), time.Duration(-1)
		if !doubt.IsZero() {
			age = sent.Sub(doubt)
		}
		reply, err := send(ctx, rdb, s, keys, args(age))
		switch {
		case err == nil:
			return reply, nil
		case notRun(err):
			if isDial(err) {
				reload(ctx, rdb)
			}
		case isAnswer(err) || errors.Is(err, redis.ErrClosed):
			if !doubt.IsZero() {
				err = fmt.Errorf("%w: %w", ErrLost, err)
			}
			return nil, err
		default:
			if doubt.IsZero() {
				doubt = sent
			}
		}
		var backoff time.Duration
		var over bool
		if inTransition(err) {
			if refused.IsZero() {
				refused = time.Now()
			}
			backoff, over = patientBackoff, time.Since(refused) > patience
		} else {
			counted++
			backoff, over = maxBackoff, counted == maxAttempts
		}
		lost := !doubt.IsZero()
		if over || (lost && !repeat) || sleep(ctx, min(minBackoff<<min(attempt-1, 10), backoff)) != nil {
			if lost {
				return nil, fmt.Errorf("%w: %w", ErrLost, err)
			}
			return nil, err
		}
	}
}

func send(ctx context.Context, rdb Redis, s *lua.Script, keys []string, args []any) (any, error) {
	cmd := newCommand(ctx, "evalsha", s.SHA, keys, args)
	err := rdb.Process(ctx, cmd)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd = newCommand(ctx, "eval", s.Source, keys, args)
		err = rdb.Process(ctx, cmd)
	}
	if err != nil {
		return nil, err
	}
	return cmd.Val(), nil
}

// command is a command that go-redis does not repeat by itself.
type command struct{ *redis.Cmd }

// NoRetry is asked by go-redis before it repeats a command or a pipeline.
func (command) NoRetry() bool { return true }

func newCommand(ctx context.Context, verb, script string, keys []string, args []any) command {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, verb, script, len(keys))
	for _, key := range keys {
		all = append(all, key)
	}
	cmd := redis.NewCmd(ctx, append(all, args...)...)
	cmd.SetFirstKeyPos(3)
	return command{cmd}
}

// isAnswer tells whether Redis answered, with an error.
func isAnswer(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// notRun tells whether an error shows that the script did not run and may do
// so when it is sent again.
func notRun(err error) bool {
	if isAnswer(err) {
		switch Code(err) {
		case "NOREPLICAS", "BUSY", "NOSCRIPT":
			return true
		}
		return inTransition(err) || strings.HasPrefix(err.Error(), "ERR max number of clients reached")
	}
	return isDial(err) || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted)
}

// inTransition tells whether the server refused the script for as long as
// servers change places: a slot moves, a replica takes over or a server starts.
func inTransition(err error) bool {
	if !isAnswer(err) {
		return false
	}
	switch Code(err) {
	case "LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN":
		return true
	}
	return false
}

func isDial(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// reload has a cluster client find out who serves what: of a master that is gone
// it would learn within a minute only.
func reload(ctx context.Context, rdb Redis) {
	if cluster, ok := rdb.(interface{ ReloadState(ctx context.Context) }); ok {
		cluster.ReloadState(ctx)
	}
}

// Code returns the code of an error that Redis answered: its first word. Where a
// command inside a script met it, some servers tell it in the middle of the text.
func Code(err error) string {
	text := err.Error()
	if inside := codeInside.FindStringSubmatch(text); inside != nil {
		return inside[1]
	}
	code, _, _ := strings.Cut(text, " ")
	return code
}

// codeInside finds the code that Redis 6 (": -CODE text" or ": CODE text" after
// the line's number) and miniredis tell with their own words before it.
var codeInside = regexp.MustCompile(`^ERR Error (?:running|compiling) script.*?: ?-?([A-Z]{3,}) `)

func sleep(ctx context.Context, backoff time.Duration) error {
	timer := time.NewTimer(backoff/2 + rand.N(backoff/2))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
