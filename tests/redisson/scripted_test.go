package redisson_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// A scripted Redis counts the commands, and lets a test act, or fail, before each.
type scripted struct {
	rratelimiter.Redis

	client *rratelimiter.Client
	l      *rratelimiter.RateLimiter
	n      int
	before func(cmd redis.Cmder) error
}

// newScripted returns another Client of the play's limiter, and its way to Redis.
func newScripted(p *play) *scripted {
	p.Helper()
	z := &scripted{Redis: p.rdb}
	z.client = limitertest.NewClient(p, z, p.options(p.version)...)
	z.l = z.client.RateLimiter(p.l.Name())
	return z
}

func (z *scripted) Process(ctx context.Context, cmd redis.Cmder) error {
	z.n++
	if z.before != nil {
		if err := z.before(cmd); err != nil {
			cmd.SetErr(err)
			return err
		}
	}
	return z.Redis.Process(ctx, cmd)
}

func isScript(cmd redis.Cmder, s *lua.Script) bool {
	return (cmd.Name() == "evalsha" || cmd.Name() == "eval") && (cmd.Args()[1] == s.SHA || cmd.Args()[1] == s.Source)
}

// errLost stands for an answer that got lost.
var errLost = errors.New("EOF of the wire")

// follow has the ids of one Client be those of another.
func follow(client, other *rratelimiter.Client) {
	engine.Of(client).Identities().Follow(engine.Of(other).Identities())
}

// Two clients whose counters meet.
func TestClientsWhoseShortIdsMeet(t *testing.T) {
	t.Parallel()
	scenario{cfg: every(100_000, hour), version: "3.15.5", everywhere: true, steps: []step{func(p *play) {
		z := newScripted(p)
		follow(z.client, p.client)
		times(3000, take(1))(p)
		limitertest.MustAcquire(p, z.l, 1)
		require.NoError(p, z.client.Close(p.Context()))
		assert.Less(p, z.n, 20)
	}}}.perform(t)
}

// Its note of an attempt that was decided means another attempt.
func TestAnIdThatAnotherClientsRepeatHad(t *testing.T) {
	t.Parallel()
	scenario{cfg: every(1000, hour), version: "3.15.5", everywhere: true, steps: []step{func(p *play) {
		z := newScripted(p)
		follow(p.client, z.client)
		z.before = func(cmd redis.Cmder) error {
			if cmd.Name() != "evalsha" {
				return nil
			}
			z.before = nil
			_ = z.Redis.Process(p.Context(), cmd)
			return errLost
		}
		limitertest.MustAcquire(p, z.l, 1)
	}, take(2)}}.perform(t)
}

// Migrate between a lost answer and its repeat, by the same Client.
func TestMigrateWaitsForWhatIsInDoubt(t *testing.T) {
	t.Parallel()
	scenario{cfg: every(10, hour), version: "3.17.7", everywhere: true, steps: []step{func(p *play) {
		z := newScripted(p)
		migrated, lost := make(chan error, 1), false
		z.before = func(cmd redis.Cmder) error {
			switch {
			case !lost && isScript(cmd, lua.Acquire):
				_ = z.Redis.Process(p.Context(), cmd)
				if cmd.Err() != nil { // NOSCRIPT
					return cmd.Err()
				}
				lost = true
				return errLost
			case lost && (cmd.Name() == "evalsha" || cmd.Name() == "eval"):
				z.before = nil
				go func() { migrated <- limitertest.Second(z.client.Migrate(p.Context(), z.l.Name())) }()
			}
			return nil
		}
		limitertest.MustAcquire(p, z.l, 3)
		require.NoError(p, <-migrated)
	}, free(7)}}.perform(t)
}

// Rows that run out between two pages hide one that is to be rewritten.
func TestMigrateLeavesNoneOutThoughRowsRunOut(t *testing.T) {
	t.Parallel()
	scenario{cfg: every(10_000, minute), steps: []step{
		as("3.27.2", times(300, take(1)), wait(30*second)), as("3.16.8", take(5)), as("3.27.2", times(10, take(1))),
		wait(29_700 * ms), func(p *play) {
			z, pages := newScripted(p), 0
			z.before = func(cmd redis.Cmder) error {
				token, _ := cmd.Args()[len(cmd.Args())-1].(string)
				if isScript(cmd, lua.Migrate) && strings.HasPrefix(token, "from:256:") {
					if pages++; pages == 1 {
						time.Sleep(600 * ms)
					}
				}
				return nil
			}
			require.NoError(p, limitertest.Second(z.client.Migrate(p.Context(), z.l.Name())))
			require.Positive(p, pages)
			for _, m := range members(p, p.rdb, p.keys().Permits) {
				assert.NotEqual(p, codec.LayoutC, m.Layout)
			}
		},
	}}.perform(t)
}
