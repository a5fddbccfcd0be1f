package linearizability_test

import (
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

// model is a limiter in plain Go, as two clients share it.
type model struct {
	cfg    rratelimiter.Config // no rate is set where Rate is 0
	ends   time.Time           // when the limiter expires; zero: never
	shared *modelPair          // counts where the type is Overall
	own    [2]*modelPair       // where it is PerClient
}

// modelPair is the permits that one value counts.
type modelPair struct {
	grants []modelGrant // oldest first

	// inexact: what Redis holds is not what the calls so far would have made of
	// it, so that only its bounds are known.
	inexact bool
}

type modelGrant struct {
	at      time.Time
	permits int64
	client  int
}

func newModel() *model {
	return &model{shared: &modelPair{}, own: [2]*modelPair{{}, {}}}
}

// pair returns the pair that a client's calls count by.
func (m *model) pair(client int) *modelPair {
	if m.cfg.Type == rratelimiter.PerClient {
		return m.own[client]
	}
	return m.shared
}

// set gives the limiter a rate that starts full, for the caller.
func (m *model) set(cfg rratelimiter.Config, now time.Time, client int) {
	m.cfg = cfg
	m.renew(now)
	if cfg.KeepAlive == 0 {
		m.ends = time.Time{}
	}
	m.forget(client)
}

// forget drops what the caller's call deletes. What the other client keeps of
// its own stays behind, made by another rate.
func (m *model) forget(client int) {
	*m.shared = modelPair{}
	*m.own[client] = modelPair{}
	m.own[1-client].inexact = true
}

// renew starts the keep-alive time anew.
func (m *model) renew(now time.Time) {
	if m.cfg.KeepAlive > 0 {
		m.ends = now.Add(m.cfg.KeepAlive)
	}
}

// expire deletes the limiter if its time is over.
func (m *model) expire(now time.Time) {
	if m.ends.IsZero() || now.Before(m.ends) {
		return
	}
	m.cfg, m.ends = rratelimiter.Config{}, time.Time{}
	inexact := m.shared.inexact
	*m.shared = modelPair{inexact: inexact}
	m.own[0].inexact, m.own[1].inexact = true, true
}

// settle drops the grants that have run out.
func (m *model) settle(p *modelPair, now time.Time) {
	for len(p.grants) > 0 && !p.grants[0].at.Add(m.cfg.Interval).After(now) {
		p.grants = p.grants[1:]
	}
}

// Free returns the free permits, below 0 while a lowered rate is paid off.
func (m *model) free(p *modelPair, now time.Time) int64 {
	m.settle(p, now)
	free := m.cfg.Rate
	for _, g := range p.grants {
		free -= g.permits
	}
	return free
}

// ready returns when so many permits will be free.
func (m *model) ready(p *modelPair, now time.Time, permits int64) time.Time {
	free := m.free(p, now)
	if free >= permits {
		return now
	}
	for _, g := range p.grants {
		if free += g.permits; free >= permits {
			return g.at.Add(m.cfg.Interval)
		}
	}
	panic("more permits than the rate")
}

// full returns when all permits will be free.
func (m *model) full(p *modelPair, now time.Time) time.Time {
	m.settle(p, now)
	if len(p.grants) == 0 {
		return now
	}
	return p.grants[len(p.grants)-1].at.Add(m.cfg.Interval)
}

// StartAcquire takes permits, waiting no longer than timeout for them. It returns
// when the answer is there.
func (m *model) acquire(client int, now time.Time, permits int64, timeout time.Duration) (granted, gone bool, at time.Time) {
	deadline := now.Add(max(timeout, 0))
	for {
		m.expire(now)
		if m.cfg.Rate == 0 {
			return false, true, now
		}
		m.renew(now)
		p := m.pair(client)
		at := m.ready(p, now, permits)
		switch {
		case at.Equal(now):
			p.grants = append(p.grants, modelGrant{at: now, permits: permits, client: client})
			return true, false, now
		case m.upkeep(now).Before(at) && !m.upkeep(now).After(deadline):
			at = m.upkeep(now)
		case at.After(deadline):
			return false, false, deadline
		}
		now = at
	}
}

// upkeep returns when one who waits asks again to keep the limiter alive.
func (m *model) upkeep(now time.Time) time.Time {
	if m.cfg.KeepAlive == 0 {
		return now.Add(limitertest.Forever)
	}
	return now.Add(m.cfg.KeepAlive / 2)
}

// Release takes permits off the newest grants: the client's own, then others'.
func (m *model) release(client int, now time.Time, permits int64) {
	m.renew(now)
	p := m.pair(client)
	m.settle(p, now)
	for _, own := range []bool{true, false} {
		for i := len(p.grants) - 1; i >= 0; i-- {
			if g := &p.grants[i]; own == (g.client == client) {
				taken := min(permits, g.permits)
				g.permits -= taken
				permits -= taken
			}
		}
	}
	kept := p.grants[:0]
	for _, g := range p.grants {
		if g.permits > 0 {
			kept = append(kept, g)
		}
	}
	p.grants = kept
}

// update changes the rate and keeps the permits in use, where the type stays.
func (m *model) update(cfg rratelimiter.Config, now time.Time, client int) {
	if m.cfg.Rate != 0 && m.cfg.Type != cfg.Type {
		m.set(cfg, now, client)
		return
	}
	if m.cfg.Rate != 0 {
		m.settle(m.pair(client), now)
	}
	m.cfg = cfg
	m.renew(now)
	if cfg.KeepAlive == 0 {
		m.ends = time.Time{}
	}
	if cfg.Type == rratelimiter.PerClient {
		m.own[1-client].inexact = true
	}
}
