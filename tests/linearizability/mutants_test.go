package linearizability_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// mutant is a fault that histories must tell.
type mutant struct {
	name string
	kind linearKind // of the histories that tell it
	limitertest.Mutant
}

var mutants = []mutant{
	{
		name: "a grant costs one permit less", kind: calmKind,
		Mutant: limitertest.Mutant{
			Old: `call('DECRBY', value_key, sum_text)`,
			New: `call('DECRBY', value_key, sum_text - 1)`,
		},
	},
	{
		name: "a batch costs one permit more", kind: calmKind,
		Mutant: limitertest.Mutant{
			Script: lua.Acquire,
			Old:    `redis.call('DECRBY', value_key, digits(taken))`,
			New:    `redis.call('DECRBY', value_key, digits(taken + 1))`,
		},
	},
	{
		name: "one permit more than there is", kind: calmKind,
		Mutant: limitertest.Mutant{
			Script: lua.Acquire,
			Old:    `math.floor(left / permits)`,
			New:    `math.floor((left + 1) / permits)`,
		},
	},
	{
		name: "TakeUpTo takes one permit less than is free", kind: calmKind,
		Mutant: limitertest.Mutant{
			Script: lua.Acquire,
			Old:    `permits = math.max(1, math.min(permits, left))`,
			New:    `permits = math.max(1, math.min(permits, left - 1))`,
		},
	},
	{
		name: "Peek tells of one permit more than there is", kind: calmKind,
		Mutant: limitertest.Mutant{
			Script: lua.Peek,
			Old:    `local taken = permits <= free and permits or 0`,
			New:    `local taken = permits <= free + 1 and permits or 0`,
		},
	},
	{
		name: "Reset leaves what is in use", kind: calmKind,
		Mutant: limitertest.Mutant{
			Script: lua.Reset,
			Old:    `return redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])`,
			New:    `return 2`,
		},
	},
	{
		name: "a lost member", kind: calmKind,
		Mutant: limitertest.Mutant{
			Script: lua.Acquire,
			Old:    `redis.call('ZADD', permits_key, 'NX', unpack(rows_to_add)) > 0`,
			New:    `true`,
		},
	},
	{
		name: "a double grant", kind: calmKind,
		Mutant: limitertest.Mutant{
			Script: lua.Acquire,
			Old:    `left = left - granted * permits`,
			New:    `left = left - granted * (permits - 1)`,
		},
	},
	{
		name: "those behind one that does not fit are refused", kind: calmKind,
		Mutant: limitertest.Mutant{
			Script: lua.Acquire,
			Old:    `blocked = blocked or waits`,
			New:    `left = 0`,
		},
	},
	{
		name: "a member of what was asked for, not of what was granted", kind: virtualKind,
		Mutant: limitertest.Mutant{
			Script: lua.Acquire,
			Old:    `digits(taken) == sum_text and ARGV[1] or with_permits(ARGV[1], taken)`,
			New:    `ARGV[1]`,
		},
	},
	{
		name: "swept a millisecond early", kind: virtualKind,
		Mutant: limitertest.Mutant{
			Old: `if not newest or math.min(newest, now) <= now - interval then`,
			New: `if not newest or math.min(newest, now) <= now - interval + 1 then`,
		},
	},
	{
		name: "swept a millisecond late", kind: virtualKind,
		Mutant: limitertest.Mutant{
			Old: `'-inf', digits(now - interval)), #rows)`,
			New: `'-inf', digits(now - interval - 1)), #rows)`,
		},
	},
	{
		name: "what is swept does not come back", kind: virtualKind,
		Mutant: limitertest.Mutant{
			Old: `store(math.min(rate, value + sum))`,
			New: `store(value)`,
		},
	},
	{
		name: "a repeat finds nothing", kind: lostKind,
		Mutant: limitertest.Mutant{
			Script: lua.Acquire,
			Old:    `found, more = find(permits_key, members, single, now - tonumber(age), token)`,
			New:    ``,
		},
	},
	{
		name: "a late request is served again", kind: lateKind,
		Mutant: limitertest.Mutant{
			Script: lua.Acquire,
			Old:    `return redis.error_reply('LATE the attempt has been answered')`,
			New:    ``,
		},
	},
	{
		name: "given back twice", kind: backKind,
		Mutant: limitertest.Mutant{
			Script: lua.GiveBack,
			Old:    `move(value_key, value, free)`,
			New:    `move(value_key, value, free + permits)`,
		},
	},
	{
		name: "given back again by its repeat", kind: backKind,
		Mutant: limitertest.Mutant{
			Script: lua.GiveBack,
			Old:    `if found and (ARGV[3] == '' or found > leaves) then`,
			New:    `if found then`,
		},
	},
	{
		name: "not given back", kind: backKind,
		Mutant: limitertest.Mutant{
			Script: lua.GiveBack,
			Old:    `local permits = math.min(tonumber(ARGV[2]), permits_of(member))`,
			New:    `local permits = 0`,
		},
	},
	{
		name: "given back of another's part", kind: backKind,
		Mutant: limitertest.Mutant{
			Script: lua.GiveBack,
			Old:    `local permits = math.min(tonumber(ARGV[2]), permits_of(member))`,
			New:    `local permits = permits_of(member)`,
		},
	},
	{
		name: "the oldest are released first", kind: virtualKind,
		Mutant: limitertest.Mutant{
			Script: lua.Release,
			Old:    `for i = #rows, oldest, -1 do`,
			New:    `for i = oldest, #rows do`,
		},
	},
	{
		name: "others' are released first", kind: virtualKind,
		Mutant: limitertest.Mutant{
			Script: lua.Release,
			Old:    "take_from(true)\nif not own then\n  take_from(false)\nend",
			New:    "take_from(false)\ntake_from(true)",
		},
	},
	{
		name: "of several limiters only the first is charged", kind: farKind,
		Mutant: limitertest.Mutant{
			Script: lua.AcquireAll,
			Old:    `redis.call('DECRBY', value_key, ARGV[2])`,
			New:    `redis.call('DECRBY', value_key, i == 1 and ARGV[2] or 0)`,
		},
	},
	{
		name: "of several limiters only the first is asked", kind: farKind,
		Mutant: limitertest.Mutant{
			Script: lua.AcquireAll,
			Old:    "if free < permits then\n      refused",
			New:    "if free < permits and i == 1 then\n      refused",
		},
	},
	{
		name: "what several limiters granted is forgotten by a repeat", kind: farLostKind,
		Mutant: limitertest.Mutant{
			Script: lua.AcquireAll,
			Old:    "      if found then\n",
			New:    "      if found then return {0, 0, 1, 1, 1000} end if found then\n",
		},
	},
	{
		name: "each limiter of a joint call but the first pays one permit less", kind: manyKind,
		Mutant: limitertest.Mutant{
			Script: lua.AcquireMany,
			Old:    `answers[i] = ok and answer or 0`,
			New: `answers[i] = ok and answer or 0
  if i > 1 and answers[i] > 0 then
    call('INCRBY', KEYS[3 * i - 1], 1)
  end`,
		},
	},
	{
		name: "a changed rate forgets what is in use", kind: calmKind,
		Mutant: limitertest.Mutant{
			Script: lua.SetRate,
			Old:    `math.min(value, old.rate) + config.rate - old.rate`,
			New:    `config.rate`,
		},
	},
	{
		name: "a new rate leaves what is in use", kind: calmKind,
		Mutant: limitertest.Mutant{
			Script: lua.SetRate,
			Old:    `redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])`,
			New:    `redis.call('UNLINK', KEYS[2], KEYS[3])`,
		},
	},
}

// TestMutants puts faults into the scripts, one at a time. The histories must
// tell each of them.
func TestMutants(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			happen := m.kind.happen(t, m.Mutation(t))
			for i := range enoughHistories {
				for _, h := range happen(rand.New(rand.NewPCG(seed, uint64(i)))) {
					// One that takes long to tell is left for another that does not.
					if h.Check(time.Second) == porcupine.Illegal {
						if testing.Verbose() {
							t.Logf("told by history %d: %v", i+1, h.Shrunk())
						}
						return
					}
				}
			}
			t.Errorf("seed %d: %d histories did not tell the fault", seed, enoughHistories)
		})
	}
}

// enoughHistories is how many tell each mutant, with room to spare.
const enoughHistories = 1000
