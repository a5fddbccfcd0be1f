// Package script runs scripts on Redis so that none runs twice unnoticed.
//
// go-redis itself repeats a command whose answer was lost, and would run the script again. The commands made here
// forbid that. Instead a [Call] is repeated here, and only if that is harmless: always if the first attempt never
// reached Redis or was refused without running, and after a lost answer only if the call allows it.
package script

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Keys are the keys of a script call, made once for many calls.
type Keys struct {
	names []string
	args  []any // the number of keys, and the keys
}

// KeysOf returns the Keys of these names.
func KeysOf(names ...string) *Keys {
	var k *Keys
	if len(names) <= 3 { // in one piece, as limiters of keys have them
		room := &struct {
			Keys

			names [3]string
			args  [4]any
		}{}
		k = &room.Keys
		k.names, k.args = room.names[:0], room.args[:0]
	} else {
		k = &Keys{make([]string, 0, len(names)), make([]any, 0, 1+len(names))}
	}
	k.names, k.args = append(k.names, names...), append(k.args, len(names))
	for _, name := range names {
		k.args = append(k.args, name)
	}
	return k
}

// Names returns the keys.
func (k *Keys) Names() []string { return k.names }

// Words returns the keys as words of a command.
func (k *Keys) Words() []any { return k.args[1:] }

// Command is a command that go-redis does not repeat.
type Command struct{ *redis.Cmd }

// NoRetry tells go-redis not to repeat the command, nor a pipeline with it.
func (Command) NoRetry() bool { return true }

// SetErr sets the error. At a READONLY in Redis' words go-redis closes the connection, which may lead elsewhere once it
// is made again. So a proxy's words become Redis'; go-redis hears them only if this is the first command of a pipeline.
func (c Command) SetErr(err error) {
	if answer, ok := errors.AsType[redis.Error](err); ok && strings.HasPrefix(answer.Error(), "ERR READONLY ") {
		err = readOnly{answer}
	}
	c.Cmd.SetErr(err)
}

// readOnly is what a proxy said, in Redis' words.
type readOnly struct{ said redis.Error } //nolint:errname // it is the server's

func (r readOnly) Error() string { return strings.TrimPrefix(r.said.Error(), "ERR ") }

func (r readOnly) Unwrap() error { return r.said }

func (r readOnly) RedisError() {}

// NewCommand makes a command whose first key is the word at that place.
func NewCommand(ctx context.Context, words []any, key int8) Command {
	cmd := redis.NewCmd(ctx, words...)
	cmd.SetFirstKeyPos(key)
	return Command{cmd}
}
