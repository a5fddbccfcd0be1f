package main

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lease"
)

// program is one of the fleet: callers whose requests for a permit each come at random, and
// that are refused if there is none.
type program struct {
	fleet  *fleet
	random *rand.Rand
	plan   *lease.Planner // nil: without leases

	demand float64       // requests a second
	since  time.Duration // up to when their results have been counted
	gone   bool
	turn   int // of what has been planned; a later one undoes it

	grant   *grant // that the lease is part of
	left    int64  // in the lease
	until   time.Duration
	drained time.Duration // when the lease would be used up
	shut    time.Duration // until when requests are refused from memory
	asking  bool

	used    int64
	born    time.Duration
	reached time.Duration // when a newcomer had its share
}

func (p *program) now() time.Duration { return p.fleet.now }

// settle counts what has come since the last time.
func (p *program) settle() {
	from, now := p.since, p.now()
	p.since = now
	if p.left == 0 || now <= from {
		return
	}
	used := p.left
	if now < p.drained {
		used = min(p.left-1, int64(float64(p.left)*float64(now-from)/float64(p.drained-from)))
	}
	p.use(used, from, min(now, p.drained))
	p.left -= used
}

// use counts permits that were used within that time.
func (p *program) use(permits int64, from, to time.Duration) {
	p.used += permits
	p.fleet.uses.add(permits, from, to)
}

// setDemand changes the demand.
func (p *program) setDemand(demand float64) {
	p.settle()
	p.demand = demand
	p.next()
}

// die ends the program, and keeps what it has.
func (p *program) die() {
	p.settle()
	p.gone, p.demand, p.left = true, 0, 0
	p.turn++
}

// next finds out when the program has to call Redis.
func (p *program) next() {
	p.turn++
	if p.asking || p.gone {
		return
	}
	now, turn := p.now(), p.turn
	then := func(at time.Duration, do func()) {
		p.fleet.after(at-now, func() {
			if p.turn == turn {
				do()
			}
		})
	}
	switch {
	case p.left > 0:
		p.drained = now + p.times(p.left)
		if p.drained < p.until {
			then(p.drained, func() {
				p.settle()
				p.left = 0
				p.next()
			})
		} else {
			then(p.until, p.expire)
		}
	case p.demand > 0:
		then(max(now, p.shut)+p.times(1), func() { p.ask(1) })
	}
}

// times draws how long this many requests take to come.
func (p *program) times(n int64) time.Duration {
	if p.demand == 0 {
		return math.MaxInt64 / 4
	}
	return time.Duration(gamma(p.random, n) / p.demand * float64(time.Second))
}

// expire gives back what a lease has left.
func (p *program) expire() {
	p.settle()
	left, g := p.left, p.grant
	p.left = 0
	p.giveBack(g, left)
	p.next()
}

func (p *program) giveBack(g *grant, permits int64) {
	if permits == 0 {
		return
	}
	p.plan.Unused(permits)
	p.fleet.call(func(at time.Duration) { p.fleet.server.giveBack(at, g, permits) }, func() {})
}

// at is a time as a Planner has it.
func at(d time.Duration) time.Time { return time.Unix(0, int64(d)) }

// ask asks for permits of callers, and some ahead.
func (p *program) ask(callers int64) {
	p.asking = true
	p.turn++
	sent, ahead := p.now(), int64(0)
	if p.plan != nil {
		ahead, _ = p.plan.Ask(callers, at(sent))
	}
	p.since = sent
	var a answer
	p.fleet.call(func(at time.Duration) { a = p.fleet.server.acquire(at, callers, ahead) }, func() {
		p.asking = false
		if p.gone {
			return
		}
		p.answered(sent, callers, ahead, a)
	})
}

// answered deals with an answer, and with those who came meanwhile.
func (p *program) answered(sent time.Duration, callers, ahead int64, a answer) {
	now := p.now()
	came := poisson(p.random, p.demand*(now-p.since).Seconds())
	p.since = now
	p.use(a.callers, now, now)
	if p.plan != nil {
		refused := a.callers < callers
		p.plan.Answered(lease.Answer{
			Sent: at(sent), Come: at(now), Interval: p.fleet.server.interval, Rate: p.fleet.server.rate, Free: a.free,
			Callers: a.callers, Asked: ahead, Ahead: a.ahead, Refused: refused, Wait: a.wait, Reset: a.reset,
		})
		if refused || a.ahead < ahead {
			p.shut = time.Duration(p.plan.Back().UnixNano())
		}
		life := p.plan.Life()
		p.fleet.longest = max(p.fleet.longest, life)
		p.grant, p.left, p.until = a.grant, a.ahead, sent+life
		if p.until <= now {
			p.left = 0
			p.giveBack(a.grant, a.ahead)
		}
	} else if a.callers < callers {
		p.shut = sent + a.wait
	}
	served := min(came, p.left)
	p.use(served, now, now)
	p.left -= served
	if came -= served; came > 0 && (a.callers == callers || p.plan == nil) {
		p.ask(came)
		return
	}
	p.next()
}

// gamma draws the time that n events take, at one a second.
func gamma(r *rand.Rand, n int64) float64 {
	if n == 1 {
		return r.ExpFloat64()
	}
	// Marsaglia and Tsang.
	d := float64(n) - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := r.NormFloat64()
		v := (1 + c*x) * (1 + c*x) * (1 + c*x)
		if v > 0 && math.Log(1-r.Float64()) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}

// poisson draws how many events come if that many are expected.
func poisson(r *rand.Rand, mean float64) int64 {
	if mean > 50 {
		return max(0, int64(math.Round(mean+math.Sqrt(mean)*r.NormFloat64())))
	}
	n := int64(0)
	for left := mean - r.ExpFloat64(); left > 0; left -= r.ExpFloat64() {
		n++
	}
	return n
}
