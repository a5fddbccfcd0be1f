package linearizability_test

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// mutant is a fault put into scripts: in the one named, or in all that have it,
// one text becomes another.
type mutant struct {
	name     string
	kind     linearKind // of the histories that tell it
	script   *lua.Script
	old, new string
}

var mutants = []mutant{
	{
		name: "a grant costs one permit less", kind: calmKind,
		old: `call('DECRBY', value_key, sum_text)`,
		new: `call('DECRBY', value_key, sum_text - 1)`,
	},
	{
		name: "a batch costs one permit more", kind: calmKind, script: lua.Acquire,
		old: `redis.call('DECRBY', value_key, digits(taken))`,
		new: `redis.call('DECRBY', value_key, digits(taken + 1))`,
	},
	{
		name: "one permit more than there is", kind: calmKind, script: lua.Acquire,
		old: `math.floor(left / permits)`,
		new: `math.floor((left + 1) / permits)`,
	},
	{
		name: "a lost member", kind: calmKind, script: lua.Acquire,
		old: `redis.call('ZADD', permits_key, 'NX', unpack(rows_to_add)) > 0`,
		new: `true`,
	},
	{
		name: "a double grant", kind: calmKind, script: lua.Acquire,
		old: `left = left - granted * permits`,
		new: `left = left - granted * (permits - 1)`,
	},
	{
		name: "those behind one that does not fit are refused", kind: calmKind, script: lua.Acquire,
		old: `blocked = blocked or waits`,
		new: `left = 0`,
	},
	{
		name: "a member of what was asked for, not of what was granted", kind: virtualKind, script: lua.Acquire,
		old: `digits(taken) == sum_text and ARGV[1] or with_permits(ARGV[1], taken)`,
		new: `ARGV[1]`,
	},
	{
		name: "swept a millisecond early", kind: virtualKind,
		old: `if not newest or newest <= now - interval then`,
		new: `if not newest or newest <= now - interval + 1 then`,
	},
	{
		name: "swept a millisecond late", kind: virtualKind,
		old: `'-inf', digits(now - interval)), #rows)`,
		new: `'-inf', digits(now - interval - 1)), #rows)`,
	},
	{
		name: "what is swept does not come back", kind: virtualKind,
		old: `store(math.min(rate, value + sum))`,
		new: `store(value)`,
	},
	{
		name: "a repeat finds nothing", kind: lostKind, script: lua.Acquire,
		old: `found, more = find(permits_key, members, single, now - tonumber(age), token)`,
		new: ``,
	},
	{
		name: "a late request is served again", kind: lateKind, script: lua.Acquire,
		old: `return redis.error_reply('LATE the attempt has been answered')`,
		new: ``,
	},
	{
		name: "given back twice", kind: backKind, script: lua.GiveBack,
		old: `redis.call('INCRBY', value_key, digits(free - value))`,
		new: `redis.call('INCRBY', value_key, digits(free - value + permits))`,
	},
	{
		name: "given back again by its repeat", kind: backKind, script: lua.GiveBack,
		old: `if not score and ARGV[3] == '' then`,
		new: `if not score then`,
	},
	{
		name: "not given back", kind: backKind, script: lua.GiveBack,
		old: `local permits = math.min(tonumber(ARGV[2]), permits_of(member))`,
		new: `local permits = 0`,
	},
	{
		name: "given back of another's part", kind: backKind, script: lua.GiveBack,
		old: `local permits = math.min(tonumber(ARGV[2]), permits_of(member))`,
		new: `local permits = permits_of(member)`,
	},
	{
		name: "the oldest are released first", kind: virtualKind, script: lua.Release,
		old: `for i = #rows, oldest, -1 do`,
		new: `for i = oldest, #rows do`,
	},
	{
		name: "others' are released first", kind: virtualKind, script: lua.Release,
		old: "take_from(true)\nif not own then\n  take_from(false)\nend",
		new: "take_from(false)\ntake_from(true)",
	},
	{
		name: "of several limiters only the first is charged", kind: farKind, script: lua.AcquireAll,
		old: `redis.call('DECRBY', value_key, ARGV[2])`,
		new: `redis.call('DECRBY', value_key, i == 1 and ARGV[2] or 0)`,
	},
	{
		name: "of several limiters only the first is asked", kind: farKind, script: lua.AcquireAll,
		old: "if free < permits then\n      refused",
		new: "if free < permits and i == 1 then\n      refused",
	},
	{
		name: "what several limiters granted is forgotten by a repeat", kind: farLostKind, script: lua.AcquireAll,
		old: "      if found then\n",
		new: "      if found then return {0, 0, 1, 1, 1000} end if found then\n",
	},
	{
		name: "each limiter of a joint call pays what the first one does", kind: manyKind, script: lua.AcquireMany,
		old: `ARGV[2 * i], ARGV[2 * i + 1]`,
		new: `ARGV[2 * i], ARGV[3]`,
	},
	{
		name: "a changed rate forgets what is in use", kind: calmKind, script: lua.SetRate,
		old: `math.min(value, old.rate) + config.rate - old.rate`,
		new: `config.rate`,
	},
	{
		name: "a new rate leaves what is in use", kind: calmKind, script: lua.SetRate,
		old: `redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])`,
		new: `redis.call('UNLINK', KEYS[2], KEYS[3])`,
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
			happen := m.kind.happen(t, m.mutation(t))
			for i := range enoughHistories {
				for _, h := range happen(rand.New(rand.NewPCG(seed, uint64(i)))) {
					// One that takes long to tell is left for another that does not.
					if h.check(time.Second/2) == porcupine.Illegal {
						if testing.Verbose() {
							t.Logf("told by history %d: %v", i+1, h.shrunk())
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

// mutation returns what has a client run the mutant wherever it means the script.
func (m mutant) mutation(t *testing.T) mutation {
	t.Helper()
	changed := mutation{}
	for _, s := range lua.All() {
		if m.script != nil && m.script != s || m.script == nil && !strings.Contains(s.Source, m.old) {
			continue
		}
		require.Equal(t, 1, strings.Count(s.Source, m.old), "how often script %s has the text: %s", s.Name, m.old)
		source := strings.Replace(s.Source, m.old, m.new, 1)
		sum := sha1.Sum([]byte(source))
		changed[s.Source], changed[s.SHA] = source, hex.EncodeToString(sum[:])
	}
	require.NotEmpty(t, changed, "no script has the text: %s", m.old)
	return changed
}

// mutation is a hook that sends other scripts than it is given, by source and by
// SHA.
type mutation map[string]string

func (m mutation) change(cmd redis.Cmder) {
	if args := cmd.Args(); len(args) > 1 && (cmd.Name() == "evalsha" || cmd.Name() == "eval") {
		if other, ok := m[args[1].(string)]; ok {
			args[1] = other
		}
	}
}

func (m mutation) DialHook(next redis.DialHook) redis.DialHook { return next }

func (m mutation) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		m.change(cmd)
		return next(ctx, cmd)
	}
}

func (m mutation) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			m.change(cmd)
		}
		return next(ctx, cmds)
	}
}
