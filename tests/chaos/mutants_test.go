package chaos_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A mutant is a fault of ours that rounds must tell.
type mutant struct {
	name string
	limitertest.Mutant

	closing bool                  // it is there only while a Client is closed
	in      mood                  // of rounds in which it shows; all without
	amid    string                // all that becomes of commands in them, of many; anything without
	shows   func(l *limiter) bool // on which limiters it can show
}

var mutants = []mutant{
	{
		name: "what callers who have gone were granted is lost", in: gentle, shows: exactly,
		Mutant: limitertest.Mutant{
			Script: lua.GiveBack,
			Old:    `local permits = math.min(tonumber(ARGV[2]), permits_of(member))`,
			New:    `local permits = 0`,
		},
	},
	{
		name: "a grant costs one permit less", shows: (*limiter).isRate,
		Mutant: limitertest.Mutant{Old: `call('DECRBY', value_key, sum_text)`, New: `call('DECRBY', value_key, sum_text - 1)`},
	},
	{
		name: "a repeat has another identity", in: dropping, amid: "answer dropped", shows: exactly,
		Mutant: limitertest.Mutant{
			Script: lua.Acquire,
			Old:    `(ARGV[5] ~= '' or ARGV[6] ~= '') and ARGV[5] or nil` + "\n",
			New: `nil
if (ARGV[5] or '') ~= '' then
  member = string.sub(member, 1, 1) .. string.reverse(string.sub(member, 2, 17)) .. string.sub(member, 18)
  ARGV[1] = member
end
`,
		},
	},
	{
		name: "a set's time to live is not renewed", shows: func(l *limiter) bool { return l.config.KeepAlive > 0 },
		Mutant: limitertest.Mutant{Old: `redis.call('PEXPIRE', config.permits_key, lifetime(ttl))`, New: ``},
	},
	{
		name: "more is reported free than is", in: gentle, shows: ordered,
		Mutant: limitertest.Mutant{
			Script: lua.Available,
			Old:    "return {state.free, state.repaired and 1 or 0}",
			New:    "return {state.free + 1, 0}",
		},
	},
	{
		name: "Reset leaves what is in use", shows: func(l *limiter) bool { return ordered(l) && l.resets && l.kind == overall },
		in: gentle,
		Mutant: limitertest.Mutant{
			Script: lua.Reset, Old: `return redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])`, New: `return 2`,
		},
	},
	{
		name: "a settlement gives nothing back", in: gentle, shows: func(l *limiter) bool { return exactly(l) && l.reserves },
		Mutant: limitertest.Mutant{
			Script: lua.SettleReservation,
			Old:    "return_permits(config, row, back, not state.unset and state.free, state.window)",
			New:    "back = 0",
		},
	},
	{
		name: "merged members stay beside what stands for them", in: gentle, shows: func(l *limiter) bool { return exactly(l) && !l.exact },
		Mutant: limitertest.Mutant{
			Script: lua.Merge,
			Old:    "call('ZREMRANGEBYRANK', permits_key, first - #rows - 1, last - #rows - 1)",
			New:    "",
		},
	},
	{
		name: "what stands for merged members has an old date", in: gentle, shows: func(l *limiter) bool { return exactly(l) && !l.exact },
		Mutant: limitertest.Mutant{
			Script: lua.Merge,
			Old:    "call('ZADD', permits_key, scores[2], merged)",
			New:    "call('ZADD', permits_key, scores[2] - interval, merged)",
		},
	},
	{
		name: "the end of an override forgets what is in use", in: gentle, shows: func(l *limiter) bool { return exactly(l) && overridable(l) },
		Mutant: limitertest.Mutant{Old: `after - (before - math.min(value, before))`, New: `after`},
	},
	{
		name: "a lease is kept after Close", closing: true, in: gentle, shows: func(l *limiter) bool { return l.lease > 0 && l.counted() },
		Mutant: limitertest.Mutant{
			Script: lua.GiveBack,
			Old:    `local permits = math.min(tonumber(ARGV[2]), permits_of(member))`,
			New:    `local permits = 0`,
		},
	},
}

// showsIn reports whether the fault can show in a round.
func (m mutant) showsIn(p *plan) bool {
	const often = 0.1 // of all commands something becomes
	amid := m.amid == "" || p.stormy >= often && slices.ContainsFunc(p.weather, func(w *weather) bool { return w.name == m.amid })
	return amid && (m.in == "" || m.in == p.mood) && slices.ContainsFunc(p.limiters, m.shows)
}

// exactly reports whether a RateLimiter's permits in use are known exactly.
func exactly(l *limiter) bool { return l.isRate() && l.counted() && !l.wild && l.lease == 0 }

// ordered reports whether the model of a limiter is asked for an order of its calls.
func ordered(l *limiter) bool { return exactly(l) && l.kind == overall && !l.refusals && !l.byDefault }

// TestMutants puts faults into the scripts of all Clients, one at a time. Rounds that
// have a limiter on which the fault can show must tell it, within two minutes of them.
func TestMutants(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "real redis-servers, and rounds of some seconds")
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			seed, servers := askedSeed(), startArena(t, single)
			mutation := m.Mutation(t)
			spent, rounds := time.Duration(0), 0
			for number := 1; spent < 2*time.Minute; number++ {
				p := newPlan(seed, number, []string{single})
				if !m.showsIn(p) {
					continue
				}
				if m.amid != "" { // the rest would only make calls with unknown results
					p.weather = slices.DeleteFunc(p.weather, func(w *weather) bool { return w.name != m.amid })
					p.faults = nil
				}
				p.hook = func(w *goCrew) redis.Hook { return m.hook(mutation, w) }
				rounds++
				if r := p.run(t, servers); len(r.violations) > 0 {
					first := r.violations[0]
					took := (spent + first.at).Round(time.Millisecond)
					redistest.Record(t, "chaos-mutants", m.name, seed, rounds, took.Milliseconds(), first.check)
					t.Logf("shown by round %d of %v: %s: %s", rounds, took, first.check, first.text)
					return
				}
				spent += p.length
			}
			t.Errorf("-seed %d: %d rounds did not tell the fault", seed, rounds)
		})
	}
}

// hook puts the fault into the scripts of a worker's Clients.
func (m mutant) hook(mutation limitertest.Mutation, w *goCrew) redis.Hook {
	if !m.closing {
		return mutation
	}
	return redistest.Hook(func(ctx context.Context, cmds []redis.Cmder, next func() error) error {
		if !w.closing.Load() { // it is there only while a Client is closed
			return next()
		}
		return mutation.Hook(ctx, cmds, next)
	})
}
