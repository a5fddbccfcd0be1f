package linearizability_test

import (
	"cmp"
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/linear"
	"github.com/rratelimiter/rratelimiter/internal/test/op"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

var (
	linearSeed = flag.Uint64("seed", 0, "seed of the concurrent histories; 0 draws one")
	histories  = flag.Int("histories", 0, "concurrent histories of each kind; 0 for a few")
)

// TestConcurrentHistories checks what many callers are answered against a model of the limiter: there must be an order in which
// the calls, taken one after another, give these answers. Nothing runs out meanwhile, except in virtual time: callers wait for
// it by a clock that is known at each moment.
func TestConcurrentHistories(t *testing.T) {
	t.Parallel()
	for _, kind := range linearKinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			count, seed := kind.histories, *linearSeed
			if *histories > 0 {
				count = *histories
			}
			if seed == 0 {
				seed = rand.Uint64()
			}
			calls, together, undecided, start := 0, 0, 0, time.Now()
			happen, merges := kind.happen(t, limitertest.Mutation{})
			// How many are too hard to decide depends on the machine, so that ends the draw alone.
			for i, left := 0, count; left > 0 && undecided <= 3+count/10; i, left = i+1, left-1 {
				for _, h := range happen(rand.New(rand.NewPCG(seed, uint64(i)))) {
					calls += len(h.Records)
					together = max(together, h.Together)
					switch result := h.Check(linear.CheckTime); result {
					case porcupine.Illegal:
						t.Fatalf("-seed %d, history %d: %v", seed, i, h)
					case porcupine.Unknown: // another is drawn in its place
						undecided, left = undecided+1, left+1
						t.Logf("-seed %d, history %d: no order found in %v, nor that there is none:\n%s", seed, i, linear.CheckTime, h.List())
					}
				}
			}
			if kind.far && together < 3 {
				t.Errorf("-seed %d: %d requests of one Client for one limiter were under way at most", seed, together)
			}
			if count >= 15 && !kind.virtual && kind.redisson == "" && merges() == 0 {
				t.Errorf("-seed %d: nothing was merged", seed)
			}
			t.Logf("-seed %d: %d histories, %d undecided, %d calls, %d that merge, %d requests together, %v",
				seed, count, undecided, calls, merges(), together, time.Since(start).Round(time.Millisecond))
		})
	}
}

type linearKind struct {
	name      string
	histories int
	virtual   bool
	calls     map[op.Name]int // how often each is drawn
	endings   int             // calls whose context ends, at most
	lost      int             // answers that get lost, at most, on their way to a client
	losing    *lua.Script     // the only script whose answers do, if any
	late      bool            // in place of that, requests are held back until their client has given up
	perClient bool            // each Client has permits of its own
	redisson  string          // the oldest that shares the limiters
	many      bool            // limiters, so that calls for several meet in one script call
	far       bool            // the server is, so that several calls of a Client's for one limiter are under way
}

// happen returns what lets a history be drawn and happen, with the scripts changed by m, and how many calls have merged
// members: none in virtual time, whose slices are shorter than a millisecond.
func (k linearKind) happen(t *testing.T, m limitertest.Mutation) (history func(*rand.Rand) []*linear.History, merges func() int64) {
	t.Helper()
	if !k.virtual {
		rig := newLinearRig(t, k, m)
		return func(draw *rand.Rand) []*linear.History { return rig.run(t, draw) }, rig.merges.Load
	}
	return func(draw *rand.Rand) (parts []*linear.History) {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) { parts = newVirtualRig(k, m, rdb).run(t, draw) })
		return parts
	}, func() int64 { return 0 }
}

var (
	calmCalls = map[op.Name]int{
		op.Try: 34, op.Take: 18, op.UpTo: 8, op.Peek: 6, op.Release: 12, op.Available: 8, op.Set: 8, op.Update: 6,
		op.TrySet: 3, op.Reset: 4, op.Delete: 1, op.Reserve: 8, op.Settle: 12,
	}
	// With these, what an attempt was granted is there until a repeat finds it.
	keepingCalls = map[op.Name]int{
		op.Try: 38, op.Take: 20, op.UpTo: 10, op.Peek: 6, op.Available: 10, op.Update: 8, op.TrySet: 2,
		op.Reserve: 8, op.Settle: 12,
	}
	// Requests that are alone in their batch, mostly, so that calls for several limiters can meet.
	plainCalls = map[op.Name]int{op.Try: 60, op.Take: 6, op.UpTo: 2, op.Peek: 3, op.Available: 8, op.Update: 5}
	// With some for two limiters at once.
	allCalls = map[op.Name]int{
		op.Try: 30, op.Take: 12, op.UpTo: 7, op.Peek: 5, op.All: 16, op.Release: 12, op.Available: 8, op.Set: 5,
		op.Update: 4, op.TrySet: 3, op.Reset: 3, op.Delete: 1, op.Reserve: 6, op.Settle: 8,
	}
	keepingAllCalls = map[op.Name]int{
		op.Try: 32, op.Take: 14, op.UpTo: 8, op.Peek: 5, op.All: 18, op.Available: 8, op.Update: 6, op.TrySet: 2,
		op.Reserve: 6, op.Settle: 8,
	}
	// No caller waits forever if nothing runs out.
	virtualCalls = map[op.Name]int{
		op.Try: 31, op.Acquire: 8, op.Take: 18, op.UpTo: 8, op.Peek: 6, op.Release: 12, op.Available: 6, op.Set: 5,
		op.Update: 6, op.TrySet: 2, op.Reset: 3, op.Delete: 1, op.Reserve: 8, op.Settle: 12,
	}
	// What happens to reservations, and to limiters that were made by default.
	reservingCalls = map[op.Name]int{op.Reserve: 20, op.Settle: 40, op.Release: 12, op.Available: 14, op.Try: 10, op.Update: 3, op.Delete: 6}
	settlingCalls  = map[op.Name]int{op.Reserve: 20, op.Settle: 40, op.Try: 10, op.Take: 10, op.Available: 20, op.Update: 3}

	calmKind      = linearKind{name: "calm", histories: 40, calls: calmCalls, endings: 4}
	ownKind       = linearKind{name: "a limiter for each client", histories: 20, calls: calmCalls, endings: 4, perClient: true}
	lostKind      = linearKind{name: "lost answers", histories: 40, calls: keepingCalls, endings: 3, lost: 3}
	stormKind     = linearKind{name: "lost answers and releases", histories: 40, calls: calmCalls, endings: 1, lost: 2}
	manyKind      = linearKind{name: "many limiters", histories: 20, calls: plainCalls, endings: 3, lost: 1, many: true}
	oldKind       = linearKind{name: "beside an older Redisson", histories: 20, calls: keepingCalls, endings: 3, lost: 3, redisson: "3.27.2"}
	backKind      = linearKind{name: "lost give-backs", histories: 20, calls: keepingCalls, endings: 6, lost: 3, losing: lua.GiveBack}
	lateKind      = linearKind{name: "late requests", histories: 8, calls: keepingCalls, endings: 3, lost: 2, late: true}
	virtualKind   = linearKind{name: "virtual time", histories: 25, calls: virtualCalls, endings: 4, virtual: true}
	reservingKind = linearKind{name: "reservations", histories: 20, calls: reservingCalls, endings: 2, virtual: true}
	chargedKind   = linearKind{name: "lost settlements", histories: 15, calls: settlingCalls, endings: 3, lost: 3, losing: lua.SettleReservation}

	farKind      = linearKind{name: "several flights", histories: 30, calls: allCalls, endings: 4, far: true}
	farLostKind  = linearKind{name: "several flights, lost answers", histories: 30, calls: keepingAllCalls, endings: 3, lost: 3, far: true}
	farStormKind = linearKind{name: "several flights, lost answers and releases", histories: 30, calls: allCalls, endings: 1, lost: 2, far: true}
	farBackKind  = linearKind{
		name: "several flights, lost give-backs", histories: 15, calls: keepingAllCalls, endings: 4, lost: 2, losing: lua.GiveBack, far: true,
	}

	linearKinds = []linearKind{
		farKind, farLostKind, farStormKind, farBackKind, calmKind, ownKind, lostKind, stormKind, manyKind, oldKind, backKind, lateKind, virtualKind,
		reservingKind, chargedKind,
	}
)

// callNames are the calls, in the order in which they are drawn.
var callNames = []op.Name{
	op.Try, op.Acquire, op.Take, op.UpTo, op.Peek, op.All, op.Release, op.Available, op.Set, op.Update,
	op.TrySet, op.Reset, op.Delete, op.Reserve, op.Settle,
}

// frees reports whether permits in use may come back by other calls than the one that took them.
func (k linearKind) frees() bool {
	return k.calls[op.Release]+k.calls[op.Set]+k.calls[op.Reset]+k.calls[op.Delete] > 0
}

const (
	linearClients = 2
	linearCalls   = 4 // of each caller
)

// sizes returns how many callers each Client has, and how many limiters there are.
func (k linearKind) sizes() (callers, limiters int) {
	switch {
	case k.many:
		return 12, 8
	case k.far && k.lost == 0:
		return 6, 2
	case k.far:
		return 4, 2 // what a lost answer leaves open makes the search long
	}
	return 5, 2
}

// linearPermits are the numbers of permits asked for: equal numbers next to each other travel as one.
var linearPermits = []int64{1, 1, 2, 2, 2, 3, 3, 4, 5}

type plan struct {
	limiters []rratelimiter.Config // a rate of 0: none at the start
	defaults []rratelimiter.Config // of some callers' handles
	calls    [][]linearCall        // of each caller; those of one Client stand side by side
}

func drawPlan(kind linearKind, draw *rand.Rand) plan {
	d := &drawing{kind: kind, draw: draw, interval: 3 + draw.Int64N(5)}
	callers, limiters := kind.sizes()
	for range limiters {
		cfg := d.config(false)
		// If there is no limiter, a repeat can't note that it was answered, and a late request takes permits once there is one.
		if draw.IntN(4) == 0 && !kind.perClient && !kind.late {
			cfg.Rate = 0
		}
		d.limiters = append(d.limiters, cfg)
		d.defaults = append(d.defaults, d.config(false))
	}
	d.endings = draw.IntN(1 + kind.endings)
	for range linearClients * callers {
		var calls []linearCall
		d.open = nil
		for range linearCalls {
			calls = append(calls, d.call())
		}
		d.calls = append(d.calls, calls)
	}
	return d.plan
}

type drawing struct {
	plan

	kind     linearKind
	draw     *rand.Rand
	interval int64        // ms, in virtual time
	reserved int          // reservations
	open     []linearCall // reservations of a caller that are not settled
	endings  int          // calls whose context may still end: each unknown outcome makes the search longer
}

// config draws a rate. KeepState never makes an interval longer: what has run out but is still there would count again.
func (d *drawing) config(keep bool) rratelimiter.Config {
	cfg := rratelimiter.PerHour(2 + d.draw.Int64N(28))
	if d.kind.virtual {
		cfg.Interval = time.Duration(d.interval) * time.Millisecond
		if !keep && d.draw.IntN(3) == 0 {
			cfg.Interval += 3 * time.Millisecond
		}
	}
	if d.kind.perClient {
		cfg.Type = rratelimiter.PerClient
	}
	return cfg
}

func (d *drawing) call() linearCall {
	limiters := len(d.limiters)
	c := linearCall{
		Call:    linear.Call{Op: op.Op{Name: drawName(d.kind, d.draw)}},
		second:  d.draw.IntN(limiters - 1),
		limiter: d.draw.IntN(limiters+1) * limiters / (limiters + 1), // the first one is in greater demand
	}
	c.Permits = linearPermits[d.draw.IntN(len(linearPermits))]
	if c.second >= c.limiter {
		c.second++
	}
	if d.draw.IntN(12) == 0 {
		c.Permits += 6
	}
	if c.Name == op.Settle && len(d.open) == 0 {
		c.Name = op.Reserve
	}
	switch c.Name {
	case op.Try, op.Reserve:
		if d.draw.IntN(3) == 0 {
			c.Timeout = time.Duration(1+d.draw.IntN(8)) * time.Millisecond
			if !d.kind.virtual {
				c.Timeout /= 4
			}
		}
		c.ByDefault = d.limiters[c.limiter].Rate == 0 && d.draw.IntN(2) == 0
		if c.ByDefault {
			c.Config = d.defaults[c.limiter]
		}
		if c.Name == op.Reserve {
			d.reserved++
			c.Reservation = d.reserved
			c.Hold = d.hold()
			d.open = append(d.open, c)
		}
	case op.Settle:
		c, d.open = d.open[0], d.open[1:]
		c.Name, c.Timeout, c.Used = op.Settle, 0, d.draw.Int64N(c.Permits+6)
	case op.UpTo:
		c.Permits += d.draw.Int64N(12)
	case op.Set, op.Update:
		c.Keep = d.draw.IntN(2) == 0 || !d.kind.frees()
		c.Config = d.config(c.Keep)
	case op.TrySet:
		c.Config = d.config(false)
	}
	if d.kind.virtual && d.draw.IntN(2) == 0 {
		c.pause = time.Duration(1+d.draw.IntN(4)) * time.Millisecond
	}
	d.drawEnd(&c)
	return c
}

// hold draws that of a reservation, shorter than every interval.
func (d *drawing) hold() time.Duration {
	switch {
	case d.draw.IntN(2) == 0:
		return 0
	case d.kind.virtual:
		return time.Duration(1+d.draw.Int64N(d.interval-1)) * time.Millisecond
	}
	return 30 * time.Minute
}

func (d *drawing) drawEnd(c *linearCall) {
	switch n := d.draw.IntN(40); {
	case n == 0:
		c.dead = true
	case n < 10 && d.endings > 0:
		d.endings--
		c.rash = d.draw.IntN(2) == 0
		c.patience = time.Duration(1+d.draw.IntN(1000)) * time.Microsecond
		if d.kind.virtual {
			c.patience = time.Duration(1+d.draw.IntN(4)) * time.Millisecond
		}
	}
}

// drawName draws a call. If each Client has permits of its own, the rate, which all share, stays.
func drawName(kind linearKind, draw *rand.Rand) op.Name {
	total := 0
	for _, n := range kind.calls {
		total += n
	}
	for {
		n := draw.IntN(total)
		for _, name := range callNames {
			if n -= kind.calls[name]; n < 0 {
				sets := name == op.Set || name == op.Update || name == op.TrySet || name == op.Delete
				if sets && kind.perClient {
					break
				}
				return name
			}
		}
	}
}

// mutant is a fault that histories must tell.
type mutant struct {
	name          string
	kind          linearKind  // of the histories that tell it
	script        *lua.Script // the only one that it is in, if any
	before, after string
}

func shared(name string, kind linearKind, m limitertest.Mutant) mutant {
	return mutant{name, kind, m.Script, m.Old, m.New}
}

var mutants = []mutant{
	shared("a grant costs one permit less", calmKind, limitertest.CostsLess),
	{"one permit more than there is", calmKind, lua.Acquire, `math.floor(left / permits)`, `math.floor((left + 1) / permits)`},
	{
		"TakeUpTo takes one permit less than is free", calmKind, lua.Acquire,
		`math.min(count, math.floor(left / permits))`, `math.min(count, math.floor(left / permits) - (left < count and 1 or 0))`,
	},
	{
		"Peek tells of one permit more than there is", calmKind, lua.Peek,
		`local taken = permits <= free and permits or 0`, `local taken = permits <= free + 1 and permits or 0`,
	},
	shared("Reset leaves what is in use", calmKind, limitertest.ResetsNone),
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
	shared("not given back", backKind, limitertest.GivesNoneBack),
	{"the oldest are released first", virtualKind, lua.Release, `for i = #rows, oldest, -1 do`, `for i = oldest, #rows do`},
	{
		"others' are released first", virtualKind, lua.Release,
		"take_from(true)\nif not own then\n  take_from(false)\nend", "take_from(false)\ntake_from(true)",
	},
	shared("a settlement gives nothing back", reservingKind, limitertest.SettlesNone),
	{
		"a settlement gives back one permit less", reservingKind, lua.SettleReservation,
		"local kept = math.min(has, used)", "local kept = math.min(has, used + 1)",
	},
	{
		"a settlement charges one permit more", reservingKind, lua.SettleReservation,
		"{digits(now), charge}, digits(extra))", "{digits(now), charge}, digits(extra + 1))",
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
	{
		"settled in time, a reservation counts no longer than its hold", reservingKind, lua.SettleReservation,
		"math.min(now, score + (early or 0))", "score + 0",
	},
	{"settled late, a reservation is not charged", reservingKind, lua.SettleReservation, "extra = used", "extra = more"},
	{
		"settled in time, a reservation is charged again", reservingKind, lua.SettleReservation,
		"if early and not reserved and used > 0", "if early and used > 0",
	},
	{"of several limiters only the first is charged", farKind, lua.AcquireAll, `l.member}, l.text)`, `l.member}, i == 1 and l.text or 0)`},
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
	shared("what stands for merged members has run out", calmKind, limitertest.MergesToOld),
	{"a changed rate forgets what is in use", calmKind, lua.SetRate, `config.rate - (old.rate - math.min(value, old.rate))`, `config.rate`},
	{
		"a new rate leaves what is in use", calmKind, lua.SetRate,
		`redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])`, `redis.call('UNLINK', KEYS[2], KEYS[3])`,
	},
}

// TestMutants puts faults into the scripts, one at a time. The histories must tell each of them.
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
					if result := h.Check(time.Second); result == porcupine.Illegal {
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
