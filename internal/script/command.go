package script

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// Do sends a command that is no script and whose key is its second word, to that
// key's master. It is repeated as a call is: one that only reads as often as
// needed, another one where it has not run. When ctx ends, Do returns ctx.Err()
// at once, joined with ErrLost for one that writes.
func Do(ctx context.Context, to *Sender, reads bool, words ...any) (*redis.Cmd, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	type result struct {
		cmd *redis.Cmd
		err error
	}
	done := make(chan result, 1)
	go func() {
		cmd, err := do(context.WithoutCancel(ctx), to, reads, words)
		done <- result{cmd, err}
	}()
	select {
	case r := <-done:
		return r.cmd, r.err
	case <-ctx.Done():
		if reads {
			return nil, ctx.Err()
		}
		return nil, errors.Join(ErrLost, ctx.Err())
	}
}

func do(ctx context.Context, to *Sender, reads bool, words []any) (*redis.Cmd, error) {
	r := repeater{to: to, harmless: reads}
	for {
		r.begin()
		cmd := newCommand(ctx, words, 1)
		err := to.toMaster(ctx, cmd)
		if err == nil || errors.Is(err, redis.Nil) {
			return cmd.Cmd, err
		}
		if again, err := r.failed(ctx, err); !again {
			return nil, err
		}
	}
}

// toMaster sends a command to its key's master: a cluster client may send one
// that only reads to any node.
func (s *Sender) toMaster(ctx context.Context, cmd command) error {
	key, _ := cmd.Args()[1].(string)
	if s.master != nil && !s.Sharded() {
		if master, err := s.master(ctx, key); err == nil {
			if err := master.Process(ctx, cmd); !redis.HasErrorPrefix(err, "MOVED") && !redis.HasErrorPrefix(err, "ASK") {
				return err
			}
		}
	}
	return s.rdb.Process(ctx, cmd)
}
