package chaos_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A fault is something that happens to servers or Clients in the middle of a round.
type fault struct {
	name   string
	mood   mood               // from which on it may happen
	arenas []string           // where it can; empty: everywhere
	only   func(p *plan) bool // nil: any plan
	server bool               // it is a server's, and waits for the one before
	// do does it, and returns what took place, with a start if that was later; nil for nothing.
	do func(r *round, draw *rand.Rand) *event
}

// faults are all there are, except what the weather does to single commands.
var faults = slices.Concat(clientFaults, networkFaults, serverFaults, topologyFaults)

func (f *fault) allowed(p *plan) bool {
	if len(f.arenas) > 0 && !slices.Contains(f.arenas, p.servers) {
		return false
	}
	return p.mood.allows(f.mood) && (f.only == nil || f.only(p))
}

// weight is how often a fault is drawn beside others: the fewer rounds allow it, and the longer it takes, the more.
func (f *fault) weight(m mood) int {
	switch {
	case slices.Contains(topologyFaults, f) && slices.Contains(f.arenas, sentinel):
		return 12
	case slices.Contains(topologyFaults, f):
		return 6
	case len(f.arenas) > 0 || f.mood == m:
		return 3
	}
	return 1
}

type event struct {
	start, end time.Duration // since the round's beginning
	kind       string
	text       string
	// What it did to limiters, for the checks.
	lost    map[string]int64 // permits in use that Redis forgot, by limiter
	forgot  int              // how often all that is in use may have been forgotten, of each limiter
	forward time.Duration    // how far the server's clock was set forward
}

func (e *event) String() string {
	return fmt.Sprintf("%s-%s ms  ==== %s %s", millis(e.start), millis(e.end), e.kind, e.text)
}

// short is a time below the one that a call of any Client may be late without being repeated: a third of the shortest call timeout.
func (r *round) short(draw *rand.Rand) time.Duration {
	least := time.Second
	for _, c := range r.clients {
		least = min(least, c.callTimeout)
	}
	return time.Duration(1 + draw.Int64N(int64(least/10)))
}

// spell is how long a fault lasts: short in a gentle round, else anything that keeps some calls from being answered.
func (r *round) spell(draw *rand.Rand) time.Duration {
	if r.mood == gentle || r.mood == dropping {
		return r.short(draw)
	}
	longest := []int{50, 200, 900}[draw.IntN(3)]
	return time.Duration(5+draw.IntN(longest)) * time.Millisecond
}

// happen has faults happen, one after another, until the round is over.
func (r *round) happen(server bool) {
	var all []*fault
	for _, f := range r.faults {
		if f.server == server {
			all = append(all, slices.Repeat([]*fault{f}, f.weight(r.mood))...)
		}
	}
	if len(all) == 0 {
		return
	}
	draw := r.draw("faults", server)
	for {
		select {
		case <-r.over.Done():
			return
		case <-time.After(time.Duration(draw.Int64N(int64(r.pause)))):
		}
		if r.over.Err() != nil || !r.onServers(func() { all[draw.IntN(len(all))].take(r, draw) }) {
			return
		}
	}
}

func (f *fault) take(r *round, draw *rand.Rand) {
	start := r.now()
	if e := f.do(r, draw); e != nil {
		e.start, e.kind = cmp.Or(e.start, start), f.name
		r.happened(*e)
	}
}

// sleep returns early when the round is over.
func (r *round) sleep(d time.Duration) {
	select {
	case <-r.over.Done():
	case <-time.After(d):
	}
}

// happened notes a fault that took place from start on, until now.
func (r *round) happened(e event) {
	e.end = r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *round) now() time.Duration { return time.Since(r.began) }

// weather is what may become of a single command on its way.
type weather struct {
	name   string
	mood   mood                         // from which on it may happen
	only   func(redistest.Command) bool // nil: any command
	action func(r *round, draw *rand.Rand) redistest.Action
}

const doubledRequest = "request doubled"

var weathers = []*weather{
	{"request dropped", dropping, nil, func(*round, *rand.Rand) redistest.Action { return redistest.Cut }},
	{"answer dropped", dropping, nil, func(*round, *rand.Rand) redistest.Action { return redistest.DropAnswer }},
	{"answer swallowed", lossy, nil, func(*round, *rand.Rand) redistest.Action { return redistest.Swallow }},
	{"answer late", gentle, nil, func(r *round, draw *rand.Rand) redistest.Action { return redistest.Pass.After(r.spell(draw)) }},
	{"request late", gentle, nil, func(r *round, draw *rand.Rand) redistest.Action { return redistest.Late.After(r.spell(draw)) }},
	{doubledRequest, gentle, harmlessTwice, func(*round, *rand.Rand) redistest.Action { return redistest.Duplicate }},
}

// harmlessTwice reports whether a second copy of the command that no attempt of the package's own knows of must change nothing.
// Of a batch, and of a call that takes as many permits as are free, it may take what the first one left, for no caller.
func harmlessTwice(c redistest.Command) bool {
	if c.Name() != "evalsha" {
		return false
	}
	switch limitertest.ScriptOf(c.Args[1]) {
	case lua.Acquire:
		const keysFrom, flagsAt, beforeRequests = 3, 3, 7 // arguments that are none of a batch
		keys, err := strconv.Atoi(c.Args[2])
		if err != nil {
			return false
		}
		args := c.Args[keysFrom+keys:]
		return len(args) <= beforeRequests && (len(args) <= flagsAt || !strings.Contains(args[flagsAt], "u"))
	case lua.AcquireAll, lua.AcquireMany, lua.Available, lua.Command, lua.Config, lua.Probe, lua.Release, lua.RenewReservation, lua.SettleReservation:
		return true
	}
	return false
}

func (w *worker) blow() {
	r := w.r
	if len(r.weather) == 0 {
		return
	}
	var mu sync.Mutex
	draw := r.draw("weather", w.name)
	for _, proxy := range w.proxies {
		proxy.OnCommand(func(c redistest.Command) redistest.Action {
			mu.Lock()
			defer mu.Unlock()
			if draw.Float64() >= r.stormy || r.over.Err() != nil {
				return redistest.Pass
			}
			it := r.weather[draw.IntN(len(r.weather))]
			if it.only != nil && !it.only(c) {
				return redistest.Pass
			}
			r.happened(event{start: r.now(), kind: it.name, text: w.name})
			return it.action(r, draw)
		})
	}
}

func (w *worker) clear() {
	for _, proxy := range w.proxies {
		proxy.OnCommand(nil)
	}
}

var networkFaults = []*fault{
	{name: "connections cut", mood: dropping, do: func(r *round, draw *rand.Rand) *event {
		w := r.drawWorker(draw)
		for _, proxy := range w.proxies {
			proxy.HangUp()
		}
		return &event{text: w.name}
	}},
	{name: "partitioned", mood: lossy, do: func(r *round, draw *rand.Rand) *event {
		w, addrs, healed := r.drawWorker(draw), r.arena.addrs(), make(chan struct{})
		proxy := w.proxies[addrs[draw.IntN(len(addrs))]]
		proxy.OnCommand(func(redistest.Command) redistest.Action { return redistest.Late.When(healed) })
		r.sleep(r.spell(draw))
		if draw.IntN(2) == 0 {
			proxy.HangUp() // the held commands are lost
		}
		close(healed)
		w.blow()
		return &event{text: w.name}
	}},
}

func (r *round) drawWorker(draw *rand.Rand) *worker { return r.workers[draw.IntN(len(r.workers))] }

var clientFaults = []*fault{
	{name: "Client closed", mood: gentle, do: func(r *round, draw *rand.Rand) *event { return r.replace(r.drawWorker(draw)) }},
	{name: "process killed", mood: gentle, only: (*plan).hasMortals, do: func(r *round, draw *rand.Rand) *event {
		if left := r.drawWorker(draw).crew.kill(); left != "" {
			return &event{text: left}
		}
		return nil
	}},
}

func (p *plan) hasMortals() bool {
	return slices.ContainsFunc(p.clients, func(c clientPlan) bool { return c.mortal })
}

// replace closes a Client in full use, once callers have another one.
func (r *round) replace(w *worker) *event {
	old, err := w.crew.replace()
	if err != nil {
		r.violate("closed", "", "Close of %s: %v", old, err)
	}
	if old == "" {
		return nil
	}
	return &event{text: old}
}

// Contexts that end are counted as faults too: callers draw them.
const contextEnded = "context ended"

// pulse tells how long this machine keeps goroutines from running, at worst.
type pulse struct{ worst atomic.Int64 }

func (p *pulse) beat(done <-chan struct{}) {
	const every = 5 * time.Millisecond
	for {
		start := time.Now()
		select {
		case <-done:
			return
		case <-time.After(every):
		}
		p.worst.Store(max(p.worst.Load(), int64(time.Since(start)-every)))
	}
}

// slack is how much later than it must an answer may come on this machine, now.
func (r *round) slack() time.Duration {
	return 300*time.Millisecond + 3*time.Duration(r.pulse.worst.Load())
}

// serverFaults are those of a single process, whatever others it serves with.
var serverFaults = []*fault{
	{name: "server killed", mood: lossy, server: true, arenas: []string{single, sentinel}, do: func(r *round, draw *rand.Rand) *event {
		return r.during(draw, (*redistest.Server).Crash, func(s *redistest.Server) { s.Restart(r.tb) })
	}},
	{name: "server stopped", mood: gentle, server: true, do: func(r *round, draw *rand.Rand) *event {
		return r.during(draw, func(s *redistest.Server) { s.Freeze(r.tb) }, func(s *redistest.Server) { s.Thaw(r.tb) })
	}},
	{name: "scripts flushed", mood: gentle, server: true, do: func(r *round, draw *rand.Rand) *event {
		return r.order(draw, "SCRIPT", "FLUSH")
	}},
	{name: "connections killed", mood: dropping, server: true, do: func(r *round, draw *rand.Rand) *event {
		return r.order(draw, "CLIENT", "KILL", "TYPE", "normal")
	}},
	{name: "clients paused", mood: gentle, server: true, do: func(r *round, draw *rand.Rand) *event {
		what := []string{"ALL", "WRITE"}[draw.IntN(2)]
		spell := r.spell(draw)
		e := r.order(draw, "CLIENT", "PAUSE", spell.Milliseconds(), what)
		r.sleep(spell)
		return e
	}},
	{name: "memory full", mood: lossy, server: true, do: func(r *round, draw *rand.Rand) *event {
		limit := func(most string) func(s *redistest.Server) {
			return func(s *redistest.Server) {
				require.NoError(r.tb, s.Client(r.tb, nil).ConfigSet(r.t.Context(), "maxmemory", most).Err())
			}
		}
		return r.during(draw, limit("1"), limit("0"))
	}},
	{name: "clock set", mood: stepping, server: true, arenas: []string{single}, do: func(r *round, draw *rand.Rand) *event {
		a, by := r.arena, time.Duration(draw.IntN(1500)-600)*time.Millisecond
		a.set(r.tb, a.ahead+by)
		return &event{text: by.String(), forward: max(0, by)}
	}},
	{name: "all keys lost", mood: losing, server: true, do: func(r *round, draw *rand.Rand) *event {
		e := r.order(draw, "FLUSHALL")
		e.forgot = 1
		return e
	}},
	{name: "keys lost", mood: losing, server: true, do: (*round).loseKeys},
}

func (r *round) drawMaster(draw *rand.Rand) *redistest.Server {
	all := r.arena.masters(r.tb)
	return all[draw.IntN(len(all))]
}

func (r *round) during(draw *rand.Rand, begin, end func(*redistest.Server)) *event {
	s := r.drawMaster(draw)
	begin(s)
	r.sleep(r.spell(draw))
	end(s)
	return &event{text: s.Addr()}
}

func (r *round) order(draw *rand.Rand, args ...any) *event {
	s := r.drawMaster(draw)
	require.NoError(r.tb, s.Client(r.tb, &redistest.Options{MaxRetries: -1}).Do(r.t.Context(), args...).Err())
	return &event{text: fmt.Sprint(args...) + " " + s.Addr()}
}

// loseKeys removes some of a limiter's keys, at one moment, and notes the permits in use.
func (r *round) loseKeys(draw *rand.Rand) *event {
	l := r.limiters[draw.IntN(len(r.limiters))]
	id := ""
	if l.kind == perClient {
		id = r.drawWorker(draw).crew.current()
	}
	config, value, permits := l.keys(id)
	var remove []any
	for _, key := range []string{config, value, permits} {
		if key != "" && draw.IntN(2) == 0 {
			remove = append(remove, key)
		}
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Second)
	defer cancel()
	s, err := l.read(ctx, r.admin, id, remove...)
	e := &event{text: fmt.Sprint(remove...), lost: map[string]int64{l.name: 0}}
	if err != nil {
		e.forgot = 1
	} else {
		e.lost[l.name] = s.inUse
	}
	return e
}

var topologyFaults = []*fault{
	{name: "slot moved", mood: lossy, server: true, arenas: []string{cluster}, do: (*round).moveSlot},
	{name: "failover asked for", mood: lossy, server: true, arenas: []string{cluster}, do: func(r *round, draw *rand.Rand) *event {
		return r.promote(draw, false)
	}},
	{name: "failover forced", mood: losing, server: true, arenas: []string{cluster}, do: func(r *round, draw *rand.Rand) *event {
		return r.promote(draw, true)
	}},
	{name: "master replaced", mood: losing, server: true, arenas: []string{sentinel}, do: func(r *round, _ *rand.Rand) *event {
		r.inOrder()
		start, master := r.now(), r.arena.sentinel.Failover(r.tb)
		r.arena.known = []*redistest.Server{master}
		return &event{start: start, text: master.Addr(), forgot: 1}
	}},
	{name: "master lost", mood: losing, server: true, arenas: []string{sentinel}, do: func(r *round, _ *rand.Rand) *event {
		return r.outlast((*redistest.Server).Crash, func(s *redistest.Server) { s.Restart(r.tb) })
	}},
	{name: masterHung, mood: losing, server: true, arenas: []string{sentinel}, do: func(r *round, _ *rand.Rand) *event {
		return r.outlast(func(s *redistest.Server) { s.Freeze(r.tb) }, func(s *redistest.Server) { s.Thaw(r.tb) })
	}},
}

// A master that does not answer for too long is replaced. On a busy machine one may hang that long too.
const masterHung = "hung master replaced"

// inOrder waits until all servers are in order, and notes what no one asked them for.
func (r *round) inOrder() {
	if surprises := r.arena.calm(r.tb); surprises > 0 {
		r.happened(event{start: 0, kind: masterHung, text: "unasked", forgot: surprises})
	}
}

// outlast keeps the master away until Sentinels have another one, which it then follows.
func (r *round) outlast(leave, comeBack func(*redistest.Server)) *event {
	r.inOrder()
	start, old := r.now(), r.arena.known[0]
	leave(old)
	master := r.arena.sentinel.AwaitMaster(r.tb, old)
	r.arena.known = []*redistest.Server{master}
	comeBack(old)
	old.Follow(r.tb, master)
	return &event{start: start, text: old.Addr(), forgot: 1}
}

func (r *round) moveSlot(draw *rand.Rand) *event {
	a := r.arena.cluster
	l := r.limiters[draw.IntN(len(r.limiters))]
	slot := a.Slot(r.tb, l.name)
	from, _ := a.Owner(r.tb, slot)
	others := slices.DeleteFunc(r.arena.masters(r.tb), func(s *redistest.Server) bool { return s == from })
	move := a.StartMove(r.tb, slot, others[draw.IntN(len(others))])
	if draw.IntN(2) == 0 {
		config, value, permits := l.keys("")
		for _, key := range []string{value, config, permits} { // for a time some are here and some there
			r.sleep(r.spell(draw) / 2)
			move.MoveKeys(r.tb, cmp.Or(key, l.name))
		}
	}
	move.MoveKeys(r.tb)
	move.Finish(r.tb)
	return &event{text: from.Addr()}
}

// promote makes a replica of a cluster a master: in agreement with its master, so that nothing is lost, or after that has been killed.
func (r *round) promote(draw *rand.Rand, forced bool) *event {
	a := r.arena.cluster
	slot := a.Slot(r.tb, r.limiters[draw.IntN(len(r.limiters))].name)
	master, replicas := a.Owner(r.tb, slot)
	if len(replicas) == 0 {
		return nil // the first node has not heard yet of the one that came back
	}
	replica := replicas[draw.IntN(len(replicas))]
	if !a.Electable(r.tb, replica) {
		return nil
	}
	e := &event{text: master.Addr()}
	if !forced {
		a.Failover(r.tb, replica, false)
	} else {
		e.forgot = 1
		master.Crash()
		a.Failover(r.tb, replica, true)
		master.Restart(r.tb)
	}
	r.arena.known = r.arena.masters(r.tb)
	return e
}
