package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/op"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

type kind string

const (
	overall   kind = "overall"
	perClient kind = "per-client"
	keyed     kind = "keyed"
	window    kind = "fixed-window"
	log       kind = "sliding-log"
	bucket    kind = "token-bucket"
)

type limiter struct {
	name      string // in Redis; of another kind than RateLimiter the key
	prefix    string // of a keyed one
	kind      kind
	config    rratelimiter.Config // Rate and Interval are the limit and window of all kinds
	refill    int64               // of a token bucket, each interval
	borrow    int64
	byDefault bool // handles bring the rate along
	lease     time.Duration
	refusals  bool
	exact     bool     // its members are not merged
	resets    bool     // callers also Reset it
	reserves  bool     // they reserve and settle, and do not release
	overrides bool     // they set rates for a while
	threshold string   // the hash of a sliding log's thresholds
	redisson  string   // the release of the Redisson programs that use it too
	family    []string // limiters that TryAcquireAll takes together, this one first
}

func (l *limiter) isRate() bool { return l.kind == overall || l.kind == perClient || l.kind == keyed }

// counted reports whether nothing comes back by itself while a round lasts.
func (l *limiter) counted() bool { return l.config.Interval >= time.Hour }

// late is how much later than an interval permits come back at most.
func (l *limiter) late() time.Duration {
	if l.exact || !l.isRate() {
		return 0
	}
	return l.config.Interval / 64
}

func (l *limiter) leased() int64 { return 1 + l.config.Rate/4 }

func (l *limiter) String() string { return fmt.Sprintf("%+v", *l) }

// keys returns the config, value and set of a RateLimiter, as the client of that id has them; of another limiter its one or two keys.
func (l *limiter) keys(id string) (config, value, permits string) {
	switch {
	case l.kind == bucket:
		return "", l.name, l.name + "_time"
	case !l.isRate():
		return "", l.name, l.name
	}
	k := redisson.KeysOf(l.name, id)
	if l.kind == perClient {
		return k.Config, k.ClientValue, k.ClientPermits
	}
	return k.Config, k.Value, k.Permits
}

// A handle is a limiter in the hands of one Client.
type handle struct {
	*limiter
	op.Handle
}

func (l *limiter) handle(client *rratelimiter.Client) *handle {
	h := &handle{limiter: l, Handle: op.Handle{Client: client, Key: l.name}}
	var opts []rratelimiter.LimiterOption
	if l.lease > 0 {
		opts = append(opts, rratelimiter.WithLease(rratelimiter.Lease{Permits: l.leased(), Life: l.lease}))
	}
	if l.refusals {
		opts = append(opts, rratelimiter.WithRefusalCache())
	}
	if l.exact {
		opts = append(opts, rratelimiter.WithExact())
	}
	switch l.kind {
	case overall, perClient:
		if l.byDefault {
			opts = append(opts, rratelimiter.WithDefault(l.config))
		}
		h.RateLimiter = client.RateLimiter(l.name, opts...)
	case keyed:
		all := client.Keyed(l.prefix, l.config, opts...)
		h.Keys, h.Key = all, l.name[len(l.prefix):]
		h.RateLimiter = all.Limiter(h.Key)
	case window:
		h.Keys = fixedwindow.New(client, fixedwindow.Config{Limit: l.config.Rate, Window: l.config.Interval})
	case log:
		h.Keys = slidinglog.New(client, slidinglog.Config{Limit: l.config.Rate, Window: l.config.Interval, Thresholds: l.threshold})
	case bucket:
		h.Keys = tokenbucket.New(client, tokenbucket.Config{Capacity: l.config.Rate, Refill: l.refill, Interval: l.config.Interval, Borrow: l.borrow})
	}
	return h
}

// An operation is a call that callers make. A timeout, or a time that a rate lasts, stands for those that are drawn.
type operation struct {
	op.Op

	weight int                   // how often it is drawn beside the others
	on     func(l *limiter) bool // what it is made on
}

func anyLimiter(*limiter) bool      { return true }
func waitable(l *limiter) bool      { return l.kind == overall || l.kind == perClient }
func releasable(l *limiter) bool    { return waitable(l) && !l.reserves }
func reservable(l *limiter) bool    { return l.reserves }
func renewable(l *limiter) bool     { return l.reserves && l.counted() } // where permits run out, checks don't know how long renewed ones stay
func overridable(l *limiter) bool   { return waitable(l) && l.overrides }
func resettable(l *limiter) bool    { return l.resets }
func inFamily(l *limiter) bool      { return len(l.family) > 0 }
func withThreshold(l *limiter) bool { return l.threshold != "" }

// some is a time in place of one that is drawn.
const some = time.Second

var (
	try       = op.Op{Name: op.Try}
	wait      = op.Op{Name: op.Try, Timeout: some}
	available = op.Op{Name: op.Available}
)

// operations are drawn from in this order.
var operations = []operation{
	{try, 40, waitable}, {wait, 12, waitable}, {op.Op{Name: op.Acquire}, 6, waitable},
	{op.Op{Name: op.Take}, 20, anyLimiter}, {op.Op{Name: op.UpTo}, 10, anyLimiter}, {op.Op{Name: op.Peek}, 8, anyLimiter},
	{op.Op{Name: op.Reset}, 3, resettable}, {op.Op{Name: op.All}, 20, inFamily},
	{op.Op{Name: op.Reserve}, 20, reservable}, {op.Op{Name: op.Settle}, 30, reservable}, {op.Op{Name: op.Renew}, 10, renewable},
	{op.Op{Name: op.Release}, 25, releasable},
	{op.Op{Name: op.Update, Keep: true}, 3, waitable}, {op.Op{Name: op.Set, Keep: true}, 1, waitable},
	{op.Op{Name: op.Set, Lasts: some}, 5, overridable}, {op.Op{Name: op.TrySet}, 1, waitable},
	{available, 6, waitable}, {op.Op{Name: op.Threshold}, 3, withThreshold},
	{op.Op{Name: op.Config}, 2, waitable}, {op.Op{Name: op.TTL}, 2, waitable},
}

func drawOperation(draw *rand.Rand, l *limiter) op.Op {
	var all []op.Op
	for _, o := range operations {
		if o.on(l) {
			all = append(all, slices.Repeat([]op.Op{o.Op}, o.weight)...)
		}
	}
	return all[draw.IntN(len(all))]
}

func drawCall(draw *rand.Rand, o op.Op, l *limiter) call {
	c := call{Op: o, Limiters: []string{l.name}}
	switch o.Name {
	case op.Try, op.Take, op.UpTo, op.Peek, op.Acquire, op.All, op.Reserve:
		c.Permits = 1 + draw.Int64N(3)
		if draw.IntN(8) == 0 {
			c.Permits += draw.Int64N(max(1, l.config.Rate/2))
		}
	case op.Update, op.TrySet, op.Set, op.Threshold:
		c.Config = l.config
		c.Config.Rate = l.config.Rate/2 + 1 + draw.Int64N(l.config.Rate)
	}
	switch {
	case o.Name == op.All:
		c.Limiters = l.family
		if draw.IntN(3) == 0 {
			c.Timeout = drawTimeout(draw)
		}
	case o.Timeout > 0:
		c.Timeout = drawTimeout(draw)
	case o.Lasts > 0:
		c.Lasts = drawTimeout(draw)
	}
	if o.Name == op.Acquire || draw.IntN(6) == 0 {
		c.Ends = drawTimeout(draw)
		c.Cancels = draw.IntN(2) == 0
	}
	return c
}

func drawTimeout(draw *rand.Rand) time.Duration {
	if draw.IntN(3) == 0 {
		return time.Duration(1+draw.IntN(10)) * time.Millisecond
	}
	return time.Duration(1+draw.IntN(400)) * time.Millisecond
}

// A mutant is a fault of ours that rounds must tell.
type mutant struct {
	name string
	limitertest.Mutant

	in    mood                  // of rounds in which it shows; all without
	amid  string                // all that becomes of commands in them, of many; anything without
	shows func(l *limiter) bool // on which limiters it can show
}

var mutants = []mutant{
	{name: "what callers who have gone were granted is lost", in: gentle, shows: exactly, Mutant: limitertest.GivesNoneBack},
	{name: "a grant costs one permit less", shows: (*limiter).isRate, Mutant: limitertest.CostsLess},
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
		name: "the end of an override forgets what is in use", in: gentle, shows: func(l *limiter) bool { return exactly(l) && overridable(l) },
		Mutant: limitertest.Mutant{Old: `after - (before - math.min(value, before))`, New: `after`},
	},
}

// showsIn reports whether the fault can show in a round.
func (m mutant) showsIn(p *plan) bool {
	const often = 0.1 // of all commands something becomes
	amid := m.amid == "" || p.stormy >= often && slices.ContainsFunc(p.weather, func(w *weather) bool { return w.name == m.amid })
	return amid && (m.in == "" || m.in == p.mood) && slices.ContainsFunc(p.limiters, m.shows)
}

// exactly reports whether a RateLimiter's permits in use are known exactly.
func exactly(l *limiter) bool { return l.isRate() && l.counted() && l.lease == 0 }

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
				p.hook = mutation
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
