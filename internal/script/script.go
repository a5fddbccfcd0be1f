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
	"net"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Redis is what this package needs of a go-redis client.
type Redis interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
}

// CheckClient tells whether a client was given: limit.ErrInvalidConfig where none
// was.
func CheckClient(rdb Redis) error {
	if rdb == nil || reflect.ValueOf(rdb).Kind() == reflect.Pointer && reflect.ValueOf(rdb).IsNil() {
		return fmt.Errorf("%w: New: the Redis client is nil", limit.ErrInvalidConfig)
	}
	return nil
}

// Keys are the keys of a script call, made once for many calls.
type Keys struct {
	names []string
	args  []any // the number of keys, and the keys
}

// KeysOf returns the Keys of these names.
func KeysOf(names ...string) *Keys {
	k := &Keys{names: names, args: make([]any, 0, 1+len(names))}
	k.args = append(k.args, len(names))
	for _, name := range names {
		k.args = append(k.args, name)
	}
	return k
}

// Pick returns the Keys at these places, in that order.
func (k *Keys) Pick(places ...int) *Keys {
	few := &Keys{names: make([]string, len(places)), args: make([]any, 1+len(places))}
	few.args[0] = len(places)
	for i, place := range places {
		few.names[i], few.args[1+i] = k.names[place], k.args[1+place]
	}
	return few
}

// Names returns the keys.
func (k *Keys) Names() []string { return k.names }

// Call is a script call but for its arguments, which stay apart so that a closure
// that makes them needs no room on the heap.
type Call struct {
	Script *lua.Script
	Keys   *Keys

	// Repeat says that the script can tell a repeated attempt from a new one, or
	// may run any number of times.
	Repeat bool

	// Patience takes the place of the constant, where it is not 0.
	Patience time.Duration

	// Joint says how the first attempt may be made together with other calls.
	Joint *Joint

	// Ahead is a command that only reads, {"hget", key, ...}, and goes ahead of
	// the script in the same pipeline, wherever its key is.
	Ahead []any
}

// Run makes the call. Where the answer was lost and the call is not repeated, or
// in vain, the error is ErrLost, with its cause.
func (c Call) Run(ctx context.Context, to *Sender, args Arguments) (any, error) {
	reply, _, err := c.run(ctx, to, args)
	return reply, err
}

// RunBehind is Run with the answer of Ahead, which has an error of its own.
func (c Call) RunBehind(ctx context.Context, to *Sender, args Arguments) (reply any, ahead *redis.Cmd, err error) {
	reply, cmd, err := c.run(ctx, to, args)
	return reply, cmd.Cmd, err
}

// Once runs a script. It is not repeated once it may have run: the error is
// ErrLost then, with its cause.
func Once(ctx context.Context, to *Sender, s *lua.Script, keys *Keys, args ...any) (any, error) {
	return Call{Script: s, Keys: keys}.Run(ctx, to, constant(args))
}

// Read runs a script that may run any number of times.
func Read(ctx context.Context, to *Sender, s *lua.Script, keys *Keys, args ...any) (any, error) {
	return Call{Script: s, Keys: keys, Repeat: true}.Run(ctx, to, constant(args))
}

// Arguments appends the arguments of a call to all. It is asked before each
// attempt; age is the time since the first attempt that may have run was sent,
// below 0 while there is none.
type Arguments func(all []any, age time.Duration) []any

func constant(args []any) Arguments {
	return func(all []any, _ time.Duration) []any { return append(all, args...) }
}

func (c Call) run(ctx context.Context, to *Sender, args Arguments) (any, command, error) {
	r := repeater{to: to, harmless: c.Repeat, patience: c.Patience}
	joint := c.Joint
	for {
		reply, ahead, err := c.send(ctx, to, args, joint, r.begin())
		joint = nil
		if err == nil {
			return reply, ahead, nil
		}
		if again, err := r.failed(ctx, err); !again {
			return nil, ahead, err
		}
	}
}

func (c Call) send(
	ctx context.Context, to *Sender, args Arguments, joint *Joint, age time.Duration,
) (reply any, ahead command, err error) {
	// Whoever hooks into the client may keep a command and its words.
	words := make([]any, 0, 2+len(c.Keys.args)+8)
	words = append(words, "evalsha", shaOf(c.Script))
	words = args(append(words, c.Keys.args...), age)
	if c.Ahead != nil {
		ahead = newCommand(ctx, slices.Clone(c.Ahead), 1)
	}
	cmd := newCommand(ctx, words, 3)
	err = to.process(ctx, c.Keys, ahead, cmd, joint)
	if errors.Is(err, errUndecided) {
		cmd = newCommand(ctx, words, 3)
		err = to.process(ctx, c.Keys, command{}, cmd, nil)
	}
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		words = slices.Clone(words)
		words[0], words[1] = "eval", c.Script.Source
		cmd = newCommand(ctx, words, 3)
		err = to.process(ctx, c.Keys, command{}, cmd, nil)
	}
	if err != nil {
		return nil, ahead, err
	}
	return cmd.Val(), ahead, nil
}

// shaOf returns a script's SHA as the word of a command.
func shaOf(s *lua.Script) any {
	if sha, ok := shas[s]; ok {
		return sha
	}
	return s.SHA
}

// shas holds the words that would be made for each call.
var shas = func() map[*lua.Script]any {
	all := make(map[*lua.Script]any)
	for _, s := range lua.All() {
		all[s] = s.SHA
	}
	return all
}()

// command is a command that go-redis does not repeat by itself.
type command struct{ *redis.Cmd }

// NoRetry is asked by go-redis before it repeats a command or a pipeline.
func (command) NoRetry() bool { return true }

// newCommand makes a command whose first key is the word at that place.
func newCommand(ctx context.Context, words []any, key int8) command {
	cmd := redis.NewCmd(ctx, words...)
	cmd.SetFirstKeyPos(key)
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
func (s *Sender) reload(ctx context.Context) {
	if cluster, ok := s.rdb.(interface{ ReloadState(ctx context.Context) }); ok {
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
