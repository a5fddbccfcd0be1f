package linearizability_test

import (
	"cmp"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// mutant is a fault that histories must tell.
type mutant struct {
	name          string
	kind          linearKind  // of the histories that tell it
	script        *lua.Script // the only one that it is in, if any
	before, after string
}

var mutants = []mutant{
	{"a grant costs one permit less", calmKind, nil, `call('DECRBY', value_key, sum_text)`, `call('DECRBY', value_key, sum_text - 1)`},
	{
		"a batch costs one permit more", calmKind, lua.Acquire,
		`write_grant(config, state, added, digits(taken))`, `write_grant(config, state, added, digits(taken + 1))`,
	},
	{"one permit more than there is", calmKind, lua.Acquire, `math.floor(left / permits)`, `math.floor((left + 1) / permits)`},
	{
		"TakeUpTo takes one permit less than is free", calmKind, lua.Acquire,
		`math.min(count, math.floor(left / permits))`, `math.min(count, math.floor(left / permits) - (left < count and 1 or 0))`,
	},
	{
		"Peek tells of one permit more than there is", calmKind, lua.Peek,
		`local taken = permits <= free and permits or 0`, `local taken = permits <= free + 1 and permits or 0`,
	},
	{"Reset leaves what is in use", calmKind, lua.Reset, `return redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])`, `return 2`},
	{"a lost member", calmKind, lua.Acquire, `redis.call('ZADD', config.permits_key, 'NX', unpack(added)) > 0`, `true`},
	{"a double grant", calmKind, lua.Acquire, `left = left - granted * permits`, `left = left - granted * (permits - 1)`},
	{"those behind one that does not fit are refused", calmKind, lua.Acquire, `blocked = blocked or waits`, `left = 0`},
	{
		"a member of what was asked for, not of what was granted", virtualKind, lua.Acquire,
		`whole and ARGV[1] or with_permits(ARGV[1], taken)`, `ARGV[1]`,
	},
	{
		"swept a millisecond early", virtualKind, nil,
		`if not newest or math.min(newest, now) <= now - interval then`,
		`if not newest or math.min(newest, now) <= now - interval + 1 then`,
	},
	{"swept a millisecond late", virtualKind, nil, `'-inf', digits(now - interval)), #rows)`, `'-inf', digits(now - interval - 1)), #rows)`},
	{"what is swept does not come back", virtualKind, nil, `store(math.min(rate, value + sum))`, `store(value)`},
	{
		"a repeat finds nothing", lostKind, lua.Acquire,
		`found, more, prefix, token = search(permits_key, requests.members, single and not up_to, token, now, age, requests.early)`, ``,
	},
	{"a late request is served again", lateKind, lua.Acquire, `return redis.error_reply('LATE the attempt has been answered')`, ``},
	{"given back twice", backKind, lua.GiveBack, `set_number(config.value_key, value, free)`, `set_number(config.value_key, value, free + permits)`},
	{
		"given back again by its repeat", backKind, lua.GiveBack,
		`if found and (ARGV[3] == '' and found ~= leaves or found > leaves) then`, `if found then`,
	},
	{"not given back", backKind, lua.GiveBack, `local permits = math.min(tonumber(ARGV[2]), permits_of(member))`, `local permits = 0`},
	{
		"given back of another's part", backKind, lua.GiveBack,
		`local permits = math.min(tonumber(ARGV[2]), permits_of(member))`, `local permits = permits_of(member)`,
	},
	{"the oldest are released first", virtualKind, lua.Release, `for i = #rows, oldest, -1 do`, `for i = oldest, #rows do`},
	{
		"others' are released first", virtualKind, lua.Release,
		"take_from(true)\nif not own then\n  take_from(false)\nend", "take_from(false)\ntake_from(true)",
	},
	{
		"a settlement gives nothing back", reservingKind, lua.SettleReservation,
		"return_permits(config, row, back, not state.unset and state.free, state.window)", "back = 0",
	},
	{
		"a settlement gives back one permit less", reservingKind, lua.SettleReservation,
		"local kept = math.min(has, used)", "local kept = math.min(has, used + 1)",
	},
	{
		"a settlement gives back what others have given back", reservingKind, lua.SettleReservation,
		"local has = permits_of(row)", "local has = permits_of(member)",
	},
	{"what a settlement gives back is not free", reservingKind, lua.SettleReservation, "set_number(config.value_key, value, free)", ""},
	{
		"a settlement charges what is free only", reservingKind, lua.SettleReservation,
		"{digits(now), charge}, digits(extra))", "{digits(now), charge}, digits(math.min(extra, math.max(0, state.free))))",
	},
	{
		"a settlement charges one permit more", reservingKind, lua.SettleReservation,
		"{digits(now), charge}, digits(extra))", "{digits(now), charge}, digits(extra + 1))",
	},
	{
		"a settlement charges without a member", reservingKind, lua.SettleReservation,
		"write_grant(config, state, {digits(now), charge}, digits(extra))", "redis.call('DECRBY', value_key, digits(extra))",
	},
	{
		"the repeat of a settlement knows neither the charge nor the reservation", chargedKind, lua.SettleReservation,
		"local more, identity, prefix =", `if age ~= '' then
  charge = charge:sub(1, 1) .. charge:sub(2, 17):reverse() .. charge:sub(18)
  member = member:sub(1, 1) .. member:sub(2, 17):reverse() .. member:sub(18)
end
local more, identity, prefix =`,
	},
	{"a settlement makes no limiter by default", reservingKind, lua.SettleReservation, "(more < 0 and not early or ARGV[8] == '')", "true"},
	{"a hold ends with the interval", reservingKind, lua.Acquire, "digits(now_text - span)", "now_text"},
	{"a hold ends a millisecond early", reservingKind, lua.Acquire, "digits(now_text - span)", "digits(now_text - span - 1)"},
	{
		"settled in time, a reservation counts no longer than its hold", reservingKind, lua.SettleReservation,
		"math.min(now, score + (early or 0))", "score + 0",
	},
	{
		"settled in time, a reservation counts from then on", reservingKind, lua.SettleReservation,
		"math.min(now, score + (early or 0))", "now",
	},
	{"settled late, a reservation is not charged", reservingKind, lua.SettleReservation, "extra = used", "extra = more"},
	{
		"settled in time, a reservation is charged again", reservingKind, lua.SettleReservation,
		"if early and not reserved and used > 0", "if early and used > 0",
	},
	{
		"of several limiters only the first is charged", farKind, lua.AcquireAll,
		`l.member}, l.text)`, `l.member}, i == 1 and l.text or 0)`,
	},
	{
		"each of several limiters is charged as the first", farKind, lua.AcquireAll,
		`l.member}, l.text)`, `l.member}, numbers[1])`,
	},
	{
		"each of several limiters keeps the first's permits", farKind, lua.AcquireAll,
		`l.text == numbers[1] and ARGV[1] or with_permits(ARGV[1], permits)`, `ARGV[1]`,
	},
	{"of several limiters only the first is asked", farKind, lua.AcquireAll, "if free < permits then", "if free < permits and i == 1 then"},
	{
		"what several limiters granted is forgotten by a repeat", farLostKind, lua.AcquireAll,
		"      if found then\n", "      if found then return figures and {now, 0, 0, 9, 0, 0, 1000, 0, 0, 9, 0, 0, 1000, 1, 1, 1000} or " +
			"{0, 0, 0, 0, 1, 1, 1000} end if found then\n",
	},
	{
		"each limiter of a joint call but the first pays one permit less", manyKind, lua.AcquireMany,
		`answers[i] = ok and answer or 0`,
		`answers[i] = ok and answer or 0
  if i > 1 and answers[i] > 0 then
    call('INCRBY', KEYS[3 * i - 1], 1)
  end`,
	},
	{
		"what stands for merged members has run out", calmKind, lua.Merge,
		"call('ZADD', permits_key, scores[2], merged)", "call('ZADD', permits_key, scores[2] - interval, merged)",
	},
	{"a changed rate forgets what is in use", calmKind, lua.SetRate, `config.rate - (old.rate - math.min(value, old.rate))`, `config.rate`},
	{
		"a new rate leaves what is in use", calmKind, lua.SetRate,
		`redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])`, `redis.call('UNLINK', KEYS[2], KEYS[3])`,
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
			seed := cmp.Or(*linearSeed, rand.Uint64())
			happen, _ := m.kind.happen(t, limitertest.Mutant{Script: m.script, Old: m.before, New: m.after}.Mutation(t))
			for i := range enoughHistories {
				for _, h := range happen(rand.New(rand.NewPCG(seed, uint64(i)))) {
					// One that takes long to tell is left for another that does not.
					if result, _ := h.Check(time.Second); result == porcupine.Illegal {
						if testing.Verbose() {
							t.Logf("told by history %d: %v", i+1, h)
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
