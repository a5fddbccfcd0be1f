package linearizability_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/merge"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/linear"
	"github.com/rratelimiter/rratelimiter/internal/test/op"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

type linearCall struct {
	linear.Call

	limiter  int
	second   int           // limiter, of a call for two
	pause    time.Duration // before the call
	patience time.Duration // until its context ends; 0: for ever
	rash     bool          // in place of that, it ends while a request is on its way
	dead     bool          // its context has ended before
}

// run makes the call and notes the result. rash ends a context while a request may be on its way.
func (c linearCall) run(ctx context.Context, h op.Handle, moments *moments, rash func(context.CancelFunc)) linear.Record {
	r := linear.Record{Call: c.Call}
	if c.patience > 0 || c.dead {
		ending, cancel := context.WithCancel(ctx)
		defer cancel()
		ctx = ending
		switch {
		case c.dead:
			cancel()
		case c.rash:
			rash(cancel)
		default:
			defer time.AfterFunc(c.patience, cancel).Stop()
		}
	}
	r.Began, r.BeganAt = moments.next()
	r.Answer = c.Do(ctx, h)
	r.Ended, r.EndedAt = moments.next()
	if c.Timeout > 0 && errors.Is(r.Err, rratelimiter.ErrUnavailable) {
		r.Outcome = op.Gone // it went before its answer came: what it was granted goes back
	}
	return r
}

type moments struct {
	last atomic.Int64
	now  func() int64 // ms of a clock that stands still while something happens, or always
}

func (m *moments) next() (moment, ms int64) { return m.last.Add(1), m.now() }

type linearRig struct {
	kind    linearKind
	moments moments
	redis   [linearClients]redistest.Client
	rest    redistest.Client // with no faults on the way
	proxies []*redistest.Proxy

	mutation limitertest.Mutation // of the scripts

	underWay sync.WaitGroup // requests, whose callers may have gone
	merges   atomic.Int64   // calls that merge members

	mu       sync.Mutex
	requests []linear.Request
	rash     []rashCall
}

// rashCall is a call whose context ends when a request of its client's for the limiter goes.
type rashCall struct {
	client  int
	limiter string
	cancel  context.CancelFunc
}

// All members of Clients are merged that may be, but for half of the histories.
func init() { merge.Everything() }

// newLinearRig returns a rig on the shared server, with a proxy before each Client.
func newLinearRig(t *testing.T, kind linearKind, m limitertest.Mutation) *linearRig {
	t.Helper()
	server := redistest.Shared(t)
	rig := &linearRig{kind: kind, rest: server.Client(t, nil), mutation: m}
	rig.moments.now = func() int64 { return 0 }
	patience := 20 * time.Second
	if kind.late {
		patience = lateAfter / 2
	}
	for i := range rig.redis {
		proxy := redistest.StartProxy(t, server.Addr())
		rig.proxies = append(rig.proxies, proxy)
		rig.redis[i] = proxy.Client(t, &redistest.Options{ReadTimeout: patience})
		rig.redis[i].AddHook(rig.requestsOf(i))
		rig.redis[i].AddHook(m)
	}
	rig.rest.AddHook(m)
	return rig
}

func newVirtualRig(kind linearKind, m limitertest.Mutation, rdb redistest.Client) *linearRig {
	rig := &linearRig{kind: kind, rest: rdb, mutation: m}
	base := time.Now().Add(-time.Millisecond)
	rig.moments.now = func() int64 { return time.Since(base).Milliseconds() }
	for i := range rig.redis {
		rig.redis[i] = rdb
	}
	rdb.AddHook(m)
	return rig
}

// lateAfter is how long a request is held back so that it comes after its repeat.
const lateAfter = 80 * time.Millisecond

// arm lets the proxies hold back, and lose, what the kind says.
func (rig *linearRig) arm(draw *rand.Rand) {
	kind := rig.kind
	var left atomic.Int64
	left.Store(int64(kind.lost))
	for client, proxy := range rig.proxies {
		dice := rand.New(rand.NewPCG(draw.Uint64(), draw.Uint64()))
		proxy.OnCommand(func(c redistest.Command) redistest.Action {
			script, limiters := rig.meant(c.Args)
			if script == nil {
				return redistest.Pass
			}
			held := time.Duration(0)
			if dice.IntN(3) == 0 || (script == lua.Acquire || script == lua.AcquireAll) && rig.cancel(client, limiters) {
				held = time.Duration(100+dice.IntN(1000)) * time.Microsecond
			}
			if kind.far {
				held += 800 * time.Microsecond
			}
			chance := 8
			if kind.losing != nil {
				chance = 2
			}
			if kind.losing != nil && script != kind.losing || dice.IntN(chance) > 0 || left.Add(-1) < 0 {
				return redistest.Pass.After(held)
			}
			switch {
			case kind.late:
				return redistest.Late.After(lateAfter)
			case dice.IntN(3) == 0:
				return redistest.Cut.After(held)
			}
			return redistest.DropAnswer.After(held)
		})
	}
}

// cancelOnRequest cancels a context when its client's next request for permits of the limiter
// goes, and before it is answered. Without a proxy that sees it go, the context ends soon.
func (rig *linearRig) cancelOnRequest(client int, limiter string, cancel context.CancelFunc) {
	if rig.proxies == nil {
		go cancel()
		return
	}
	rig.mu.Lock()
	defer rig.mu.Unlock()
	rig.rash = append(rig.rash, rashCall{client, limiter, cancel})
}

// cancel ends the contexts that wait for a request, and reports whether there are any.
func (rig *linearRig) cancel(client int, limiters []string) (some bool) {
	rig.mu.Lock()
	defer rig.mu.Unlock()
	rig.rash = slices.DeleteFunc(rig.rash, func(c rashCall) bool {
		mine := c.client == client && slices.Contains(limiters, c.limiter)
		if mine {
			c.cancel()
			some = true
		}
		return mine
	})
	return some
}

// meant returns the script that the arguments of a command name, nil if they name none, and the limiters it is for.
func (rig *linearRig) meant(args []string) (script *lua.Script, limiters []string) {
	if len(args) < 4 || !strings.HasPrefix(strings.ToLower(args[0]), "eval") {
		return nil, nil
	}
	for _, s := range lua.All() {
		if text := args[1]; text == s.SHA || text == s.Source || text == rig.mutation.For[s.SHA] || text == rig.mutation.For[s.Source] {
			script = s
		}
	}
	var each int // keys of a limiter
	switch script {
	case lua.AcquireMany:
		script, each = lua.Acquire, 3
	case lua.AcquireAll:
		each = 5
	default:
		return script, args[3:4]
	}
	keys, _ := strconv.Atoi(args[2])
	for i := 0; i < keys; i += each {
		limiters = append(limiters, args[3+i])
	}
	return script, limiters
}

func (rig *linearRig) requestsOf(client int) redistest.Hook {
	return func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		rig.underWay.Add(1)
		defer rig.underWay.Done()
		began, _ := rig.moments.next()
		err := next()
		ended, _ := rig.moments.next()
		for _, cmd := range cmds {
			r := rig.request(cmd)
			if r.Script == lua.Merge {
				rig.merges.Add(1)
			}
			r.Client, r.Began, r.Ended = client, began, ended
			failed := cmd.Err()
			if len(cmds) == 1 {
				failed = err // which the command learns later
			}
			_, answered := errors.AsType[redis.Error](failed)
			r.Lost = failed != nil && !answered
			rig.mu.Lock()
			rig.requests = append(rig.requests, r)
			rig.mu.Unlock()
		}
		return err
	}
}

func (rig *linearRig) request(cmd redis.Cmder) (r linear.Request) {
	words := make([]string, len(cmd.Args()))
	for i, word := range cmd.Args() {
		words[i] = fmt.Sprint(word)
	}
	r.Script, r.Limiters = rig.meant(words)
	if r.Script != nil {
		if n, _ := strconv.Atoi(words[2]); len(words) > 3+n {
			r.Argument = words[3+n]
			if r.Script == lua.AcquireAll || r.Script == lua.SettleReservation {
				r.Argument = words[4+n]
			}
		}
	}
	return r
}

// run draws a history, lets it happen and returns it, for each limiter.
func (rig *linearRig) run(t *testing.T, draw *rand.Rand) []*linear.History {
	t.Helper()
	var opts []rratelimiter.LimiterOption
	if draw.IntN(2) == 0 {
		opts = append(opts, rratelimiter.WithExact())
	}
	p := drawPlan(rig.kind, draw)
	rig.requests, rig.rash = nil, nil
	names := make([]string, len(p.limiters))
	base := redistest.Name(t)
	for i, cfg := range p.limiters {
		names[i] = fmt.Sprintf("{%s}:%d", base, i)
		if cfg.Rate > 0 {
			limitertest.MustTrySetRate(t, rratelimiter.New(rig.rest, limitertest.Patient()).RateLimiter(names[i]), cfg)
		}
	}
	var clients [linearClients]*rratelimiter.Client
	var handles [linearClients]map[bool][]*rratelimiter.RateLimiter // by whether they have a default
	for i := range clients {
		clients[i] = rratelimiter.New(rig.redis[i], rig.kind.options(i)...)
		handles[i] = map[bool][]*rratelimiter.RateLimiter{}
		for limiter, name := range names {
			handles[i][false] = append(handles[i][false], clients[i].RateLimiter(name, opts...))
			byDefault := append(slices.Clip(opts), rratelimiter.WithDefault(p.defaults[limiter]))
			handles[i][true] = append(handles[i][true], clients[i].RateLimiter(name, byDefault...))
		}
	}
	rig.arm(draw)
	records := make([][]madeCall, len(p.calls))
	start := make(chan struct{})
	var wg sync.WaitGroup
	for caller, calls := range p.calls {
		client := caller * linearClients / len(p.calls)
		wg.Go(func() {
			<-start
			reserved := map[int]*rratelimiter.Reservation{}
			for _, c := range calls {
				if c.Name == op.Settle && (reserved[c.Reservation] == nil || !reserved[c.Reservation].Granted) {
					continue
				}
				time.Sleep(c.pause)
				h := op.On(handles[client][c.ByDefault][c.limiter])
				h.Reserved, h.Client = reserved[c.Reservation], clients[client]
				if c.Name == op.All {
					h.Claims = []rratelimiter.Claim{h.Claim(c.Permits), handles[client][false][c.second].Claim(c.Permits + 1)}
				}
				r := c.run(t.Context(), h, &rig.moments, func(cancel context.CancelFunc) {
					rig.cancelOnRequest(client, names[c.limiter], cancel)
				})
				r.Client, r.Caller = client, caller
				if c.Name == op.Reserve {
					reserved[c.Reservation] = r.Reserved
				}
				assert.NotContains(t, []op.Outcome{op.Failed, op.Closed}, r.Outcome, "%v: %v", &r, r.Err)
				records[caller] = append(records[caller], madeCall{r, c})
			}
		})
	}
	close(start)
	wg.Wait()
	for _, c := range clients {
		require.NoError(t, c.Close(t.Context()))
	}
	for _, proxy := range rig.proxies {
		proxy.Settle(t)
	}
	rig.underWay.Wait()
	return rig.gather(t, p, names, slices.Concat(records...))
}

func (k linearKind) options(client int) []rratelimiter.Option {
	opts := []rratelimiter.Option{rratelimiter.WithClientID("client-" + strconv.Itoa(client)), rratelimiter.WithCallTimeout(time.Minute)}
	if k.redisson != "" {
		opts = append(opts, rratelimiter.WithRedissonVersion(k.redisson))
	}
	return opts
}

type madeCall struct {
	linear.Record

	call linearCall
}

// gather makes the last calls and parts the records by what they count.
func (rig *linearRig) gather(t *testing.T, p plan, names []string, records []madeCall) []*linear.History {
	t.Helper()
	losses := 0
	for _, r := range rig.requests {
		if r.Lost {
			losses++
		}
	}
	var all []*linear.History
	for limiter, name := range names {
		for client := range linearClients {
			h := &linear.History{
				About:   fmt.Sprintf("%s, %s", rig.kind.name, name),
				Virtual: rig.kind.virtual,
				// After five attempts no one asks any more. A repeat that gives back leaves alone what others have been at.
				Strict:  losses < 5 && (losses == 0 || !rig.kind.frees()),
				Phantom: losses > 0 && rig.kind.frees(),
			}
			h.Start = linear.Full(p.limiters[limiter].Rate, p.limiters[limiter].Interval.Milliseconds())
			for _, r := range records {
				mine := r.call.limiter == limiter || r.Name == op.All && r.call.second == limiter
				if mine && (!rig.kind.perClient || r.Client == client) {
					if r.Name == op.All {
						r.Claims = fmt.Sprint(r.Permits, r.Permits+1)
						r.Permits += int64(slices.Index([]int{r.call.limiter, r.call.second}, limiter))
					}
					h.Records = append(h.Records, r.Record)
				}
			}
			look := linearCall{Call: linear.Call{Op: op.Op{Name: op.Available}}}
			r := look.run(t.Context(), op.On(rratelimiter.New(rig.rest, rig.kind.options(client)...).RateLimiter(name)), &rig.moments, nil)
			r.Client, r.Final = client, true
			h.Records = append(h.Records, r)
			slices.SortFunc(h.Records, func(a, b linear.Record) int { return cmp.Compare(a.Began, b.Began) })
			for i := range h.Records {
				h.Records[i].Number = i + 1
			}
			h.Prepare(slices.DeleteFunc(slices.Clone(rig.requests), func(r linear.Request) bool { return !slices.Contains(r.Limiters, name) }))
			all = append(all, h)
			if !rig.kind.perClient {
				break
			}
		}
	}
	return all
}
