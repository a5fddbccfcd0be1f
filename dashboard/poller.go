package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/inspect/holders"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
)

const (
	// every is how often viewers get news.
	every = time.Second

	// soonest is how soon a new viewer gets news, after the others did.
	soonest = 250 * time.Millisecond

	// step is how often the walk over the keys goes on: in small parts, so that none
	// holds up the server.
	step = 100 * time.Millisecond

	// clientsEvery is how often the keys are walked if no one wants a list.
	clientsEvery = 30 * time.Second

	// namesEvery is how often the names of Clients are read at most.
	namesEvery = 5 * time.Second

	// maxUnnamed is how many without a name are remembered.
	maxUnnamed = 10_000

	// maxViewers bounds what is read for them each second.
	maxViewers = 64

	// maxDebt is how many seconds' commands a sample makes others wait for at most, so that
	// viewers get an answer before they take the wait for silence.
	maxDebt = 3

	// keptFor is how long what was read is worth showing to the next viewer.
	keptFor = 5 * time.Minute
)

// viewer is a request that wants updates.
type viewer struct {
	kind   string    // of the events
	view   look.View // of a list
	others *otherView
	name   string // of the limiter, if it is one

	from   string        // the address that it came from
	number int64         // counts those that came
	events chan event    // has the newest, until it is taken
	ended  chan struct{} // closed when it lost its place
}

// event is what a viewer gets.
type event struct {
	kind string
	data []byte
}

// The kinds of events.
const (
	listEvent    = "limiters"
	limiterEvent = "limiter"
	othersEvent  = "others"
	faultEvent   = "fault"
)

// tell leaves an event for the viewer, in place of an event that it has not taken.
func (v *viewer) tell(e event) {
	for {
		select {
		case v.events <- e:
			return
		default:
		}
		select {
		case <-v.events:
		default:
		}
	}
}

// poller reads from Redis for all viewers, on one goroutine while there are any.
type poller struct {
	h    *handler
	poke chan struct{} // a viewer came

	mu      sync.Mutex
	viewers map[*viewer]bool
	joined  int64 // viewers ever
	running bool
	stop    context.CancelFunc // of the goroutine's context

	// What follows is the goroutine's.
	reader      *look.Reader
	others      *othersReader
	names       holders.Names
	named       time.Time       // when the names were read
	unnamed     map[string]bool // marks without a name by then
	met         bool            // another one was seen
	namesErr    error
	inspections map[string]*inspection
	debt        int       // commands that samples have sent, and what follows is to do without
	stepped     time.Time // when the walk went on last
	ended       time.Time // when the last viewer left
}

func newPoller(h *handler) *poller {
	return &poller{h: h, poke: make(chan struct{}, 1), viewers: make(map[*viewer]bool)}
}

// join adds a viewer, until leave is called or it loses its place.
func (p *poller) join(v *viewer) (leave func(), err error) {
	v.events, v.ended = make(chan event, 1), make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.makeRoom(v.from); err != nil {
		return nil, err
	}
	p.joined++
	v.number = p.joined
	p.viewers[v] = true
	select {
	case p.poke <- struct{}{}:
	default:
	}
	if !p.running {
		p.start()
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.viewers[v] {
			return // it lost its place
		}
		delete(p.viewers, v)
		if len(p.viewers) == 0 {
			p.stop()
		}
	}, nil
}

// start is called with the lock held.
func (p *poller) start() {
	ctx, cancel := context.WithCancel(context.Background())
	p.running, p.stop = true, cancel
	go p.run(ctx)
}

// run reads until the last viewer has left.
func (p *poller) run(ctx context.Context) {
	if p.reader == nil || time.Since(p.ended) > keptFor {
		p.reader = look.NewReader(p.h.cfg.Redis, p.h.cfg.Pattern)
		p.others = newOthersReader(p.h.cfg)
		p.inspections, p.unnamed, p.named = make(map[string]*inspection), make(map[string]bool), time.Time{}
	}
	p.loop(ctx)
	p.ended = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = false
	if len(p.viewers) > 0 {
		p.start() // a viewer came while the last question was under way
	}
}

func (p *poller) loop(ctx context.Context) {
	// Who comes again and again is not to cost more than who stays.
	_ = sleep(ctx, step-time.Since(p.stepped))
	tick := time.NewTicker(step)
	defer tick.Stop()
	var walked, sampled time.Time
	late := false // a viewer that has seen nothing yet waits
	for ctx.Err() == nil {
		poked := false
		select {
		case <-p.poke:
			poked = true
		default:
		}
		err := p.walk(ctx, &walked)
		late = late || poked
		now := time.Now()
		due := late && now.Sub(sampled) >= soonest || now.Sub(sampled) >= every
		if err != nil || due && p.debt == 0 {
			sampled, late = now, false
			if err == nil {
				before := p.reader.Sent()
				err = p.sample(ctx)
				p.debt = min(int(p.reader.Sent()-before), maxDebt*p.h.cfg.Reads)
			}
			if err != nil {
				p.fault(ctx, err)
			}
		}
		if err != nil {
			_ = sleep(ctx, every)
			continue
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// walk goes on over the keys, as far as the budget of one step allows: a round a
// second at most.
func (p *poller) walk(ctx context.Context, walked *time.Time) error {
	p.stepped = time.Now()
	whole := int(float64(p.h.cfg.Reads) * step.Seconds())
	// Commands that samples have sent count against the walk, except for a small rest.
	units := max(whole-p.debt, whole/10, 1)
	p.debt = max(p.debt-whole, 0)
	lists, limiters, others := p.wanted()
	if len(others) > 0 {
		units /= 2
		if err := p.others.walk(ctx, units, p.reader); err != nil {
			return err
		}
	}
	pause := every
	switch {
	case len(lists) > 0:
	case len(limiters) > 0:
		pause = clientsEvery // only for clients that have come
	default:
		return nil
	}
	if !p.reader.Underway() && time.Since(*walked) < pause {
		return nil
	}
	err := p.reader.Walk(ctx, units)
	if !p.reader.Underway() {
		*walked = time.Now()
	}
	return err
}

// wanted returns the viewers, by what they want.
func (p *poller) wanted() (lists, limiters, others []*viewer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for v := range p.viewers {
		switch {
		case v.others != nil:
			others = append(others, v)
		case v.name != "":
			limiters = append(limiters, v)
		default:
			lists = append(lists, v)
		}
	}
	return lists, limiters, others
}

// sample reads what viewers have on their screens, and sends it to them.
func (p *poller) sample(ctx context.Context) error {
	p.learn(ctx)
	lists, limiters, others := p.wanted()
	all := slices.Concat(lists, limiters)
	views := make([]look.View, len(all))
	for i, v := range all {
		views[i] = v.view
	}
	snapshots, err := p.reader.Samples(ctx, views)
	if err != nil {
		return err
	}
	failed, err := p.inspect(ctx, limiters)
	if err != nil {
		return err
	}
	p.meetAll(snapshots)
	for i, v := range all {
		if v.name == "" {
			v.say(p.h.listOf(&snapshots[i]))
			continue
		}
		if err := failed[v.name]; err != nil {
			v.tell(faultOf(err))
			continue
		}
		v.say(p.h.limiterOf(v.name, p.inspections[v.name], &snapshots[i]))
	}
	for _, v := range others {
		keys, err := p.others.list(ctx, v.others, p.reader)
		if err != nil {
			return err
		}
		v.say(keys)
	}
	return nil
}

// learn reads the names of Clients: once a minute, and sooner if one is found that
// has no name yet.
func (p *poller) learn(ctx context.Context) {
	if since := time.Since(p.named); since < namesEvery || since < time.Minute && !p.met {
		return
	}
	p.named, p.met = time.Now(), false
	if len(p.unnamed) > maxUnnamed {
		clear(p.unnamed)
	}
	if p.names, p.namesErr = look.ReadNames(ctx, p.h.cfg.Redis, time.Now().UnixMilli()); p.namesErr != nil {
		p.namesErr = errors.New(reason(p.namesErr))
	}
	p.reader.Know(p.names)
}

// meet notes a caller without a name.
func (p *poller) meet(who string) {
	if !p.unnamed[who] {
		p.unnamed[who], p.met = true, true
	}
}

// meetAll notes those in what was read.
func (p *poller) meetAll(snapshots []look.Snapshot) {
	for i := range snapshots {
		for l := range snapshots[i].Limiters {
			for _, c := range snapshots[i].Limiters[l].Callers {
				if strings.HasPrefix(c.Who, look.ClientWord) {
					p.meet(c.Who)
				}
			}
		}
	}
	for _, i := range p.inspections {
		for s := range i.found.States {
			for _, share := range i.found.States[s].Shares {
				if share.Kind == holders.Unnamed {
					p.meet(share.Mark)
				}
			}
		}
	}
}

// say sends a viewer something as JSON.
func (v *viewer) say(what any) {
	text, err := json.Marshal(what)
	if err == nil {
		v.tell(event{v.kind, text})
	}
}

// fault reports to all viewers that Redis does not answer.
func (p *poller) fault(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	p.h.cfg.Logger.WarnContext(ctx, "dashboard can't read from Redis", "error", err)
	p.mu.Lock()
	defer p.mu.Unlock()
	for v := range p.viewers {
		v.tell(faultOf(err))
	}
}

// faultOf is what viewers get of an error.
func faultOf(err error) event {
	text, _ := json.Marshal(struct {
		Message string `json:"message"`
	}{"Redis can't be read: " + reason(err)})
	return event{faultEvent, text}
}
