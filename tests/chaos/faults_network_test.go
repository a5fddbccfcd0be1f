package chaos_test

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

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

// harmlessTwice tells whether a second copy of the command that no attempt of the
// package's own knows of must change nothing. Of a batch, and of a call that takes as many
// permits as are free, it may take what the first one left, for nobody.
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
	case lua.AcquireAll, lua.AcquireMany, lua.Available, lua.Config, lua.Probe, lua.TTL, lua.Wait:
		return true
	}
	return false
}

// blow has the weather act on all that a worker sends.
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

// clear lets everything through again.
func (w *worker) clear() {
	for _, proxy := range w.proxies {
		proxy.OnCommand(nil)
	}
	w.choke(0)
}

func (w *worker) choke(rate int) {
	for _, proxy := range w.proxies {
		proxy.Choke(rate)
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
	{name: "bandwidth choked", mood: lossy, do: func(r *round, draw *rand.Rand) *event {
		w, rate := r.drawWorker(draw), 1000+draw.IntN(50_000)
		w.choke(rate)
		r.sleep(r.spell(draw))
		w.choke(0)
		return &event{text: w.name}
	}},
	{name: "partitioned", mood: lossy, do: func(r *round, draw *rand.Rand) *event {
		w, addrs, healed := r.drawWorker(draw), r.arena.addrs(), make(chan struct{})
		proxy := w.proxies[addrs[draw.IntN(len(addrs))]]
		proxy.OnCommand(func(redistest.Command) redistest.Action { return redistest.Late.When(healed) })
		r.sleep(r.spell(draw))
		if draw.IntN(2) == 0 {
			proxy.HangUp() // what was held is lost
		}
		close(healed)
		w.blow()
		return &event{text: w.name}
	}},
}

func (r *round) drawWorker(draw *rand.Rand) *worker { return r.workers[draw.IntN(len(r.workers))] }

var clientFaults = []*fault{
	{name: clientClosed, mood: gentle, do: func(r *round, draw *rand.Rand) *event { return r.replace(r.drawWorker(draw)) }},
	processKilled,
}

// replace closes a Client in full use, once callers have another one.
func (r *round) replace(w *worker) *event {
	old, err := w.crew.replace()
	if err != nil {
		r.violate("closed", "", "Close of %s: %v", old, err)
	}
	return &event{text: old}
}

const clientClosed = "Client closed"

// Contexts that end are counted as faults too: callers draw them.
const contextEnded = "context ended"

// pulse tells how long this machine keeps goroutines from running.
type pulse struct{ most atomic.Int64 }

func (p *pulse) beat(done <-chan struct{}) {
	const every = 5 * time.Millisecond
	for {
		start := time.Now()
		select {
		case <-done:
			return
		case <-time.After(every):
		}
		p.note(time.Since(start) - every)
	}
}

func (p *pulse) note(late time.Duration) {
	for {
		most := p.most.Load()
		if int64(late) <= most || p.most.CompareAndSwap(most, int64(late)) {
			return
		}
	}
}

func (p *pulse) worst() time.Duration { return time.Duration(p.most.Load()) }

// slack is how much later than it must an answer may come on this machine, now.
func (r *round) slack() time.Duration { return 300*time.Millisecond + 3*r.pulse.worst() }

func TestRequestsAreDoubledWhereACopyIsHarmless(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		what     string
		script   *lua.Script
		args     []string
		harmless bool
	}{
		{"one request", lua.Acquire, []string{"member", "2"}, true},
		{"with figures", lua.Acquire, []string{"member", "2", "", "fs"}, true},
		{"as much as is free", lua.Acquire, []string{"member", "2", "", "fsu"}, false},
		{"a batch", lua.Acquire, []string{"member", "2", "", "", "", "", "0", "1", "2"}, false},
		{"a look", lua.Available, nil, true},
		{"a give-back", lua.GiveBack, []string{"member", "2"}, false},
	} {
		args := append([]string{"evalsha", tc.script.SHA, "3", "{a}", "{a}:value", "{a}:permits"}, tc.args...)
		assert.Equal(t, tc.harmless, harmlessTwice(redistest.Command{Args: args}), tc.what)
	}
}
