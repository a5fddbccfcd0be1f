package limitertest

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// BeforeScript returns a hook that calls f before each call of a script that is sent by
// itself.
func BeforeScript(script *lua.Script, f func()) redistest.Hook {
	return redistest.BeforeCommands(func(cmds ...redis.Cmder) {
		if len(cmds) == 1 && cmds[0].Name() == "evalsha" && cmds[0].Args()[1] == script.SHA {
			f()
		}
	})
}

// Slow returns a hook that makes each command that is sent by itself take a while.
func Slow(by time.Duration) redistest.Hook {
	return func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		if len(cmds) == 1 {
			time.Sleep(by)
		}
		return next()
	}
}

// Counter counts the commands that a go-redis client sends.
type Counter struct {
	mu    sync.Mutex
	names map[string]int
}

// CountCommands counts what rdb sends from now on, those of pipelines one by one.
func CountCommands(rdb redis.UniversalClient) *Counter {
	c := &Counter{names: map[string]int{}}
	rdb.AddHook(redistest.BeforeCommands(func(cmds ...redis.Cmder) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, cmd := range cmds {
			c.names[cmd.Name()]++
		}
	}))
	return c
}

// Total returns the number of commands sent.
func (c *Counter) Total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := 0
	for _, n := range c.names {
		sum += n
	}
	return sum
}

// Scripts returns the number of script calls sent.
func (c *Counter) Scripts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.names["evalsha"] + c.names["eval"]
}

// A Mutant is a fault put into scripts, for tests of tests: in Script, or in all that
// have it where that is nil, the text Old becomes New.
type Mutant struct {
	Script   *lua.Script
	Old, New string
}

// A Mutation is a hook that sends other scripts than it is given: those in For, by
// source and by SHA.
type Mutation struct {
	redistest.Hook

	For map[string]string
}

// Mutation returns a hook by which a client runs the mutant in place of the script.
func (m Mutant) Mutation(t testing.TB) Mutation {
	t.Helper()
	changed := map[string]string{}
	for _, s := range lua.All() {
		if m.Script != nil && m.Script != s || m.Script == nil && !strings.Contains(s.Source, m.Old) {
			continue
		}
		require.Equal(t, 1, strings.Count(s.Source, m.Old), "how often script %s has the text: %s", s.Name, m.Old)
		source := strings.Replace(s.Source, m.Old, m.New, 1)
		sum := sha1.Sum([]byte(source))
		changed[s.Source], changed[s.SHA] = source, hex.EncodeToString(sum[:])
	}
	require.NotEmpty(t, changed, "no script has the text: %s", m.Old)
	return Mutation{For: changed, Hook: redistest.BeforeCommands(func(cmds ...redis.Cmder) {
		for _, cmd := range cmds {
			if args := cmd.Args(); len(args) > 1 && (cmd.Name() == "evalsha" || cmd.Name() == "eval") {
				if other, ok := changed[args[1].(string)]; ok {
					args[1] = other
				}
			}
		}
	})}
}

// A Recorder is an observer that keeps all that it receives.
type Recorder struct {
	decided list[limit.Decided]
	flights list[limit.Flight]
	leases  list[limit.Lease]
	settled list[limit.Settled]
	events  list[limit.Event]
	waiting list[waiting]
}

// waiting is how many callers were said to wait for a limiter.
type waiting struct {
	limiter string
	callers int
}

// A list is what was told so far.
type list[T any] struct {
	mu   sync.Mutex
	told []T
}

func (l *list[T]) add(v T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, v)
}

func (l *list[T]) all() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clip(l.told)
}

// Decided keeps d.
func (r *Recorder) Decided(_ context.Context, d limit.Decided) { r.decided.add(d) }

// Landed keeps f.
func (r *Recorder) Landed(f limit.Flight) { r.flights.add(f) }

// Waiting keeps the number.
func (r *Recorder) Waiting(limiter string, callers int) { r.waiting.add(waiting{limiter, callers}) }

// Leased keeps l.
func (r *Recorder) Leased(l limit.Lease) { r.leases.add(l) }

// Settled keeps s.
func (r *Recorder) Settled(s limit.Settled) { r.settled.add(s) }

// Happened keeps e.
func (r *Recorder) Happened(e limit.Event) { r.events.add(e) }

// Decisions returns those told of since the last time.
func (r *Recorder) Decisions() []limit.Decided {
	r.decided.mu.Lock()
	defer r.decided.mu.Unlock()
	told := r.decided.told
	r.decided.told = nil
	return told
}

// Flights returns those told of so far.
func (r *Recorder) Flights() []limit.Flight { return r.flights.all() }

// Settlements returns those told of so far.
func (r *Recorder) Settlements() []limit.Settled { return r.settled.all() }

// Leases returns those told of so far.
func (r *Recorder) Leases() []limit.Lease { return r.leases.all() }

// Events returns those told of so far.
func (r *Recorder) Events() []limit.Event { return r.events.all() }

// Callers returns how many were said to wait, one number after another.
func (r *Recorder) Callers(limiter string) (all []int) {
	for _, w := range r.waiting.all() {
		if w.limiter == limiter {
			all = append(all, w.callers)
		}
	}
	return all
}
