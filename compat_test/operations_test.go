package compat_test

import (
	"context"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// kinds are the operations of the random turns, each as often as its weight
// says.
var kinds = []struct {
	kind   string
	weight int
}{
	{"tryAcquire", 40},
	{"tryAcquireTimeout", 5}, // in Go Take or, as often, an acquire that brings a rate
	{"release", 10},
	{"availablePermits", 12},
	{"trySetRate", 4},
	{"setRate", 3},
	{"setRateArgs", 5}, // in Go with KeepState or, as often, without
	{"updateRate", 5},
	{"getConfig", 3},
	{"expire", 2},
	{"expireAt", 2},
	{"clearExpire", 2},
	{"ttl", 3},
	{"exists", 2},
	{"delete", 1},
	{"rename", 1}, // in Java unlink
}

// kind draws what an actor does next to a limiter; not what its release lacks.
func (w *world) kind(who *actor, l *limiter) string {
	if l.state.config == nil {
		switch w.rnd.IntN(4) {
		case 0, 1:
			return "trySetRate"
		case 2:
			return "tryAcquireTimeout"
		}
	}
	for {
		kind := w.anyKind()
		if who.java == nil {
			return kind
		}
		if kind == "rename" {
			kind = "unlink"
		}
		if !who.redisson.lacks(kind) {
			return kind
		}
	}
}

func (w *world) anyKind() string {
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	n := w.rnd.IntN(total)
	for _, k := range kinds {
		if n < k.weight {
			return k.kind
		}
		n -= k.weight
	}
	panic("unreachable")
}

// arguments are what an operation may need to be called with.
type arguments struct {
	permits int64
	rate    rateConfig
	keep    bool // the state, with a new rate
	ttl     time.Duration
	at      time.Time // when it is over, once in a while in the past
	held    bool      // by a handle of long standing, in Go
	other   bool      // the other of two calls that are one kind, in Go
	to      *limiter  // of the new name
}

func (w *world) arguments(l *limiter) arguments {
	args := arguments{
		permits: w.permits(l),
		rate:    w.rateConfig(),
		keep:    w.rnd.IntN(4) > 0,
		ttl:     []time.Duration{25 * time.Second, 50 * time.Second, 200 * time.Second}[w.rnd.IntN(3)],
		held:    w.rnd.IntN(2) == 0,
		other:   w.rnd.IntN(2) == 0,
		to:      w.limiters[w.rnd.IntN(len(w.limiters))],
	}
	args.at = time.Now().Add(args.ttl).Truncate(time.Millisecond)
	if w.rnd.IntN(6) == 0 {
		args.at = args.at.Add(-args.ttl - 10*time.Second)
	}
	return args
}

// operation returns that kind of operation of an actor on a limiter.
func (w *world) operation(ctx context.Context, kind string, who *actor, l *limiter, args arguments) *operation {
	op := &operation{kind: kind, text: kind}
	if who.java != nil {
		javaOperation(ctx, op, who, l, args)
	} else {
		goOperation(ctx, op, who, l, args)
	}
	return op
}

func (w *world) rateConfig() rateConfig {
	cfg := rateConfig{kind: "0", rate: 1 + w.rnd.Int64N(12), interval: []int64{20_000, 30_000, 60_000}[w.rnd.IntN(3)]}
	switch w.rnd.IntN(20) {
	case 0:
		cfg.rate = 5000
	case 1, 2, 3:
		cfg.rate += 20
	}
	if w.rnd.IntN(3) == 0 {
		cfg.kind = "1"
	}
	if w.rnd.IntN(3) == 0 {
		cfg.keepAlive = []int64{cfg.interval, 2 * cfg.interval, 300_000}[w.rnd.IntN(3)]
	}
	return cfg
}

func (cfg rateConfig) public() rratelimiter.Config {
	public := rratelimiter.Config{
		Rate:      cfg.rate,
		Interval:  time.Duration(cfg.interval) * time.Millisecond,
		KeepAlive: time.Duration(cfg.keepAlive) * time.Millisecond,
	}
	if cfg.kind == "1" {
		public.Type = rratelimiter.PerClient
	}
	return public
}

func (cfg rateConfig) String() string {
	return fmt.Sprintf("%s, %d, %d ms, keep-alive %d ms", typeName(cfg.kind), cfg.rate, cfg.interval, cfg.keepAlive)
}

func (w *world) permits(l *limiter) int64 {
	rate := max(1, l.state.rate())
	switch w.rnd.IntN(40) {
	case 0:
		return 0
	case 1:
		return -1 - w.rnd.Int64N(3)
	case 2, 3:
		return rate + 1
	case 4, 5, 6, 7:
		return rate
	}
	return 1 + w.rnd.Int64N(min(rate, 5))
}

func exactly(at time.Time) span { return span{at.UnixMilli(), at.UnixMilli()} }

func only(f func(*call) answer) []func(*call) (answer, bool) {
	return []func(*call) (answer, bool){func(c *call) (answer, bool) { return f(c), true }}
}

func keepState(keep bool) []rratelimiter.RateOption {
	if keep {
		return []rratelimiter.RateOption{rratelimiter.KeepState()}
	}
	return nil
}

func milliseconds(d time.Duration) span { return span{d.Milliseconds(), d.Milliseconds()} }

func javaSays(value any, err error) answer { return saysOr(value, err, javaProblem) }

func goSays(value any, err error) answer { return saysOr(value, err, goProblem) }

func saysOr(value any, err error, problem func(error) string) answer {
	if err != nil {
		return say(problem(err))
	}
	return say(value)
}

// says is saysOr for a time to live.
func says(ttl time.Duration, err error) func(problem func(error) string) answer {
	return func(problem func(error) string) answer {
		switch {
		case err != nil:
			return say(problem(err))
		case ttl < 0:
			return say(int64(ttl))
		}
		return say("ms").with(milliseconds(ttl))
	}
}
