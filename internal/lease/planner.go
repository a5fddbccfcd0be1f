package lease

import (
	"cmp"
	"math"
	"math/rand/v2"
	"time"
)

const (
	// freePart is the part of the free permits that a lease may hold though its program has not
	// taken as much lately: one in this many.
	freePart = 16

	// growth is how many times as much a lease may hold as its program took lately, or found
	// free while permits were short.
	growth = 4

	// A program of N has its turn every √N steps, so 100 make 2,000 calls a second. An interval
	// has at most this many steps, and at least this many turns.
	step, steps, turns = 5 * time.Millisecond, 1000, 10
)

// Planner says how many permits a handle takes ahead, for how long, and when it comes back
// after nothing was free. It is not safe for concurrent use.
type Planner struct {
	Most   int64          // permits of a lease
	Want   time.Duration  // a lease's life; 0: as the package says
	Random func() float64 // in [0,1); nil: that of math/rand/v2

	rate, free int64         // as far as is known
	interval   time.Duration // the limiter's; 0 while it is not known
	pace       time.Duration // the time that answers take
	asked      time.Time     // when the program asked last; zero before
	answered   time.Time     // when the last answer came
	drawn      int64         // permits that callers took since asked
	demand     average       // of that, over the last few times
	got        average       // what Redis gave, over the last interval
	short      bool          // the last answer left nothing free
	found      average       // what calls found free while it was short, a second for each
	back       time.Time     // when to ask again for more than callers want
}

// Answer is the result of a batch.
type Answer struct {
	Sent, Come  time.Time
	Interval    time.Duration // 0: the answer had no figures
	Rate, Free  int64         // Free: after it
	Callers     int64         // permits that its callers got
	Asked       int64         // permits that were to be taken ahead
	Ahead       int64         // permits that were
	Refused     bool          // a caller was refused, or there was no answer
	Wait, Reset time.Duration // until the refused permits are free, and all are; 0: unknown
}

// average is a number of permits by time.
type average struct{ permits, seconds float64 }

// add adds permits that took this long, after decaying what is known.
func (a *average) add(permits int64, d time.Duration, keep float64) {
	a.permits = a.permits*keep + float64(permits)
	a.seconds = a.seconds*keep + d.Seconds()
}

// in returns how many permits fall into a time.
func (a *average) in(d time.Duration) float64 {
	if a.seconds == 0 {
		return 0
	}
	return max(0, a.permits) / a.seconds * d.Seconds()
}

// turn returns the time between a program's calls that all programs may make.
func (p *Planner) turn() time.Duration {
	step, interval := max(step, p.interval/steps).Seconds(), p.interval.Seconds()
	var seconds float64
	if p.short {
		// What calls find free is what came back since the last call of any program.
		calls := float64(p.rate) / interval / max(p.found.in(time.Second), 1e-9)
		seconds = calls * step * step
	} else {
		// The others there would be if all that is in use were in parts like this one's.
		others := float64(p.rate-p.free)/max(1, p.got.in(p.interval)) - 1
		seconds = math.Sqrt(max(0, others)) * step
	}
	return max(time.Duration(min(seconds, interval/turns)*float64(time.Second)), 4*p.pace)
}

// Life returns how long a lease lives, 0 while that is not known.
func (p *Planner) Life() time.Duration {
	return min(cmp.Or(p.Want, max(p.interval/20, p.turn()*3/2)), p.interval/2)
}

// Back returns when to ask again if the last answer left nothing free, otherwise the zero time.
func (p *Planner) Back() time.Time { return p.back }

// Ask returns how many permits to take ahead with a batch of permits that is sent now. If that
// is unknown, figures says that the answer must have them.
func (p *Planner) Ask(permits int64, now time.Time) (ahead int64, figures bool) {
	since := max(now.Sub(p.asked), time.Microsecond)
	switch {
	case p.asked.IsZero() || p.interval > 0 && since > p.interval: // the known figures have run out
		p.demand, p.got, p.answered, p.short = average{}, average{seconds: p.interval.Seconds() / 20}, now, false
	case !p.short || float64(p.drawn) > p.demand.in(since): // otherwise callers were refused meanwhile
		p.demand.add(p.drawn, since, 0.5)
	}
	p.asked, p.drawn = now, 0
	if p.interval == 0 || now.Before(p.back) {
		return 0, p.interval == 0
	}
	// Two thirds of the life, so that most leases are used up before their end.
	span := max(0, p.Life()-p.pace) * 2 / 3
	wanted := p.demand.in(span)
	size := min(wanted, growth*p.demand.permits, max(float64(p.free-permits)/freePart, p.got.in(span)))
	if p.short {
		size = min(wanted*3/2, growth*p.found.in(time.Second))
	}
	ahead = max(0, min(int64(size)-permits, p.Most))
	return ahead, ahead > 0 || int64(wanted) > permits
}

// Answered records an answer.
func (p *Planner) Answered(a Answer) {
	taken := a.Callers + a.Ahead
	p.drawn += taken
	p.pace += (a.Come.Sub(a.Sent) - p.pace) / 4
	if a.Interval > 0 {
		if p.interval == 0 {
			p.got.seconds = a.Interval.Seconds() / 20
		}
		p.rate, p.free, p.interval = a.Rate, a.Free, a.Interval
	}
	if p.interval > 0 {
		since := max(0, a.Come.Sub(p.answered))
		p.got.add(taken, since, math.Exp(-since.Seconds()/p.interval.Seconds()))
	}
	if p.short {
		p.found.add(taken+a.Free, time.Second, 0.9)
	}
	p.answered, p.back = a.Come, time.Time{}
	if p.short = a.Refused || a.Ahead < a.Asked; p.short {
		p.back = a.Sent.Add(p.spread(a.Wait, a.Reset))
	}
}

// spread returns when to come back for what is free after wait, so that not all programs come at once.
func (p *Planner) spread(wait, reset time.Duration) time.Duration {
	random := p.Random
	if random == nil {
		random = rand.Float64
	}
	turn := float64(p.turn())
	back := time.Duration((0.5 + random()) * turn)
	if wait > time.Duration(turn/2) { // then all come for the same, and the last may get nothing
		back = wait + time.Duration(random()*min(turn, float64(p.interval/20)))
	}
	if reset > 0 {
		back = min(back, reset)
	}
	return max(wait, back)
}

// Unused records that a lease ended with this many permits left.
func (p *Planner) Unused(permits int64) {
	p.drawn = max(0, p.drawn-permits)
	p.got.permits -= float64(permits)
	p.short = p.short && permits == 0
}
