package script

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxApart is how many commands to a master run on goroutines of their own at
	// most, so that one that hangs can't gather more.
	maxApart = 64

	// maxPast is how many more there may be of which it is known that they wait in
	// vain: the server has answered since.
	maxPast = 3 * maxApart
)

// errCrowded is for a command that was not sent: too many others wait for its
// server.
var errCrowded = errors.New("too many commands wait for the server")

// gate bounds the commands of one master that run on goroutines of their own. Those
// that are late, because they wait on a connection that never answers, give up their
// places once the server has answered another. Where it has not, and all places are
// taken, one of them makes room for a probe now and then.
type gate struct {
	pace   time.Duration // of probes, and from when on a command is late
	places chan struct{}
	all    *atomic.Int32 // that are late and have a place, at all gates of the Conn

	mu      sync.Mutex
	late    int  // that have a place
	past    int  // that have none any more
	waiting int  // for a place
	probed  bool // within the last pace
}

func newGate(pace time.Duration, all *atomic.Int32) *gate {
	return &gate{pace: pace, places: make(chan struct{}, maxApart), all: all}
}

// passage is a command that has come through a gate.
type passage struct {
	gate       *gate
	late, over bool
}

// enter returns when there is a place; nil where ctx ends first.
func (g *gate) enter(ctx context.Context) *passage {
	p := &passage{gate: g}
	select {
	case g.places <- struct{}{}:
		return p
	default:
	}
	g.mu.Lock()
	g.waiting++
	g.probe()
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		g.waiting--
		g.mu.Unlock()
	}()
	select {
	case g.places <- struct{}{}:
		return p
	case <-ctx.Done():
		return nil
	}
}

// delayed notes that the command is late.
func (p *passage) delayed() {
	g := p.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if !p.late && !p.over {
		p.late = true
		g.count(1)
		g.probe()
	}
}

// leave notes that the command has ended.
func (p *passage) leave() {
	g := p.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	p.over = true
	switch { // which of those that are late has a place makes no difference
	case !p.late:
		<-g.places
	case g.past > 0:
		g.past--
	default:
		g.count(-1)
		<-g.places
	}
}

// count adds to those that are late and have a place. g.mu is held.
func (g *gate) count(n int) {
	g.late += n
	g.all.Add(int32(n))
}

// answered notes that the server has answered.
func (g *gate) answered() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pass(g.late)
}

// probe makes room for one that waits, once a pace. g.mu is held.
func (g *gate) probe() {
	if g.probed || g.waiting == 0 || g.late == 0 {
		return
	}
	g.pass(1)
	g.probed = true
	time.AfterFunc(g.pace, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.probed = false
		g.probe()
	})
}

// pass takes the places of so many that are late, as far as that is allowed. g.mu is
// held.
func (g *gate) pass(n int) {
	for n = min(n, maxPast-g.past); n > 0; n-- {
		<-g.places
		g.count(-1)
		g.past++
	}
}

// owes tells whether commands are late.
func (g *gate) owes() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.late+g.past > 0
}

// empty tells whether nothing of the gate's is under way.
func (g *gate) empty() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.places)+g.past+g.waiting == 0
}
