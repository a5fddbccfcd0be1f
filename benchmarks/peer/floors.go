package peer

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/benchmarks/load"
)

// EVALSHA is the name of the floor of every peer that runs scripts.
const EVALSHA = "EVALSHA"

var floors = []Kind{
	{
		Name:     EVALSHA,
		Setup:    "no limiter: the script `return 1`, with the keys and arguments that rratelimiter sends",
		Floor:    true,
		Aim:      true,
		Commands: map[string]float64{"evalsha": 0},
		Open: open(func(ctx context.Context, rdb *redis.Client, names []string, _ Rule) (load.Take, error) {
			return Bare(ctx, rdb, names)
		}),
	},
	{
		Name:     "PING",
		Setup:    "no limiter and no script",
		Floor:    true,
		Commands: map[string]float64{"ping": 0},
		Open: open(func(_ context.Context, rdb *redis.Client, _ []string, _ Rule) (load.Take, error) {
			return func(ctx context.Context, _ int) (bool, error) { return true, rdb.Ping(ctx).Err() }, nil
		}),
	},
}

// Bare returns calls of a script that does nothing, with the keys and arguments
// of a caller of ours who is alone.
func Bare(ctx context.Context, rdb *redis.Client, names []string) (load.Take, error) {
	sha, err := rdb.ScriptLoad(ctx, "return 1").Result()
	if err != nil {
		return nil, err
	}
	args, err := acquireArgs(ctx, rdb, names[0])
	if err != nil {
		return nil, err
	}
	calls := make([][]string, len(names))
	for i, name := range names {
		for _, key := range args.keys {
			calls[i] = append(calls[i], strings.Replace(key, names[0], name, 1))
		}
	}
	return func(ctx context.Context, i int) (bool, error) {
		return true, rdb.EvalSha(ctx, sha, calls[i], args.args...).Err()
	}, nil
}

// scriptArgs are a script's keys and arguments.
type scriptArgs struct {
	keys []string
	args []any
}

// acquireArgs returns what ours sends for one permit, as seen on its way; the
// limiter is then gone again.
func acquireArgs(ctx context.Context, rdb *redis.Client, name string) (scriptArgs, error) {
	seen := &spy{}
	own := redis.NewClient(rdb.Options())
	defer func() { _ = own.Close() }()
	l := rratelimiter.New(own).RateLimiter(name)
	if err := l.SetRate(ctx, rratelimiter.PerMinute(1000)); err != nil {
		return scriptArgs{}, err
	}
	own.AddHook(seen)
	for range 2 { // the second one is not the first of its limiter
		if _, err := l.TryAcquire(ctx, 1, 0); err != nil {
			return scriptArgs{}, err
		}
	}
	if seen.last == nil {
		return scriptArgs{}, errors.New("no script was seen that takes a permit")
	}
	if _, err := l.Delete(ctx); err != nil {
		return scriptArgs{}, err
	}
	n, ok := seen.last[2].(int)
	if !ok {
		return scriptArgs{}, errors.New("the number of keys is no int")
	}
	var a scriptArgs
	for _, key := range seen.last[3 : 3+n] {
		s, _ := key.(string)
		a.keys = append(a.keys, s)
	}
	a.args = slices.Clone(seen.last[3+n:])
	return a, nil
}

// spy keeps the arguments of the last script call.
type spy struct{ last []any }

func (s *spy) see(cmd redis.Cmder) {
	if cmd.Name() == "evalsha" && cmd.Err() == nil {
		s.last = slices.Clone(cmd.Args())
	}
}

func (s *spy) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *spy) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		s.see(cmd)
		return err
	}
}

func (s *spy) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			s.see(cmd)
		}
		return err
	}
}
