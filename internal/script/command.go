package script

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// Do sends a command that is no script and whose key is its second word. One
// that only reads is repeated as go-redis does; another one never is, and the
// error is ErrLost where it may have run. When ctx ends, Do returns ctx.Err() at
// once, joined with ErrLost for one that writes.
func Do(ctx context.Context, to *Sender, reads bool, words ...any) (*redis.Cmd, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	cmd := redis.NewCmd(context.WithoutCancel(ctx), words...)
	done := make(chan error, 1)
	go func() {
		if reads {
			done <- to.rdb.Process(context.WithoutCancel(ctx), cmd)
		} else {
			done <- to.rdb.Process(context.WithoutCancel(ctx), command{cmd})
		}
	}()
	select {
	case err := <-done:
		if err != nil && !reads && !isAnswer(err) && !notRun(err) {
			err = fmt.Errorf("%w: %w", ErrLost, err)
		}
		return cmd, err
	case <-ctx.Done():
		if reads {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%w: %w", ErrLost, ctx.Err())
	}
}
