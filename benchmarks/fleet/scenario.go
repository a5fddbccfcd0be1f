package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// scenario is a fleet and its demand.
type scenario struct {
	programs int
	interval time.Duration
	rate     int64
	demand   float64 // of the rate
	shape    string
	leases   bool
	wire     time.Duration
	cost     time.Duration
	seed     uint64
}

// The shapes of demand.
const (
	even   = "even"
	zipf   = "Zipf 1.1"
	bursts = "bursts"
	churn  = "arrivals and deaths"
)

// result is a scenario's result.
type result struct {
	scenario

	calls    float64 // a second
	used     float64 // of min(demand, rate)
	jain     float64 // of equal demands
	newcomer float64 // intervals to its share; the worst of some
	charged  float64 // the most that was in use, of the rate
	over     float64 // the most that was used in a span of the bound, of the rate
	life     time.Duration
}

// newcomers is how many programs come late.
const newcomers = 10

// run runs the scenario in virtual time.
func (s scenario) run() result {
	f := &fleet{
		server: limiter{rate: s.rate, interval: s.interval, cost: s.cost},
		wire:   s.wire, leases: s.leases, random: rand.New(rand.NewPCG(s.seed, 1)),
	}
	f.uses.bin = s.interval / 200
	total := s.demand * float64(s.rate) / s.interval.Seconds()
	weights, sum := make([]float64, s.programs), 0.0
	for i := range weights {
		weights[i] = 1
		if s.shape == zipf {
			weights[i] = math.Pow(float64(i+1), -1.1)
		}
		sum += weights[i]
	}
	for _, w := range weights {
		s.enter(f, total*w/sum)
	}
	warmUp, measured := 3*s.interval, 10*s.interval
	if !s.leases { // each request is an event
		warmUp, measured = s.interval, s.interval
	}
	f.run(warmUp)
	before, calls := f.used(), f.server.calls
	f.run(warmUp + measured)
	r := result{scenario: s, calls: float64(f.server.calls-calls) / measured.Seconds()}
	taken, all := f.used(), 0.0
	var each []float64
	for i, n := range taken {
		if i < len(before) {
			n -= before[i]
		}
		all += n
		each = append(each, n)
	}
	r.used, r.jain = all/(measured.Seconds()/s.interval.Seconds()*float64(s.rate)*min(1, s.demand)), jain(each)
	if s.shape == even && s.leases {
		r.newcomer = s.newcomers(f, total/float64(s.programs))
	}
	r.life = f.longest
	r.charged, r.over = float64(f.server.most)/float64(s.rate), f.uses.most(s.interval-f.longest-time.Millisecond)/float64(s.rate)
	return r
}

// used returns what each program has used.
func (f *fleet) used() []float64 {
	var all []float64
	for _, p := range f.programs {
		p.settle()
		all = append(all, float64(p.used))
	}
	return all
}

// enter adds a program of that shape.
func (s scenario) enter(f *fleet, demand float64) {
	switch s.shape {
	case bursts: // a fifth of the time, five times as much
		p := f.join(0)
		var on, off func()
		on = func() {
			p.setDemand(5 * demand)
			f.after(time.Duration(f.random.ExpFloat64()*float64(s.interval)/2), off)
		}
		off = func() {
			p.setDemand(0)
			f.after(time.Duration(f.random.ExpFloat64()*float64(s.interval)*2), on)
		}
		f.after(time.Duration(f.random.ExpFloat64()*float64(s.interval)), on)
	case churn: // a life of three intervals, and another in its place
		p := f.join(demand)
		f.after(time.Duration(f.random.ExpFloat64()*float64(3*s.interval)), func() {
			p.die()
			s.enter(f, demand)
		})
	default:
		// Not all begin at the same moment.
		f.after(time.Duration(f.random.Float64()*float64(s.interval)/20), func() { f.join(demand) })
	}
}

// newcomers lets some programs come, and returns after how many intervals the last of them
// used as much in half an interval as the others did.
func (s scenario) newcomers(f *fleet, demand float64) float64 {
	old, from := len(f.programs), f.now
	for range newcomers {
		f.join(demand)
	}
	const steps = 20
	before := [][]float64{f.used()}
	for step := 1; step <= 9*steps; step++ {
		f.run(from + time.Duration(step)*s.interval/steps)
		now := f.used()
		before = append(before, now)
		all := slices.Clone(now)
		for i, n := range before[max(0, step-steps/2)] {
			all[i] -= n
		}
		share, waiting := 0.9*median(all[:old]), false
		for i, p := range f.programs[old:] {
			if p.reached == 0 && all[old+i] >= share {
				p.reached = f.now - from
			}
			waiting = waiting || p.reached == 0
		}
		if !waiting {
			break
		}
	}
	slowest := time.Duration(0)
	for _, p := range f.programs[old:] {
		slowest = max(slowest, p.reachedIn(s.interval))
	}
	return slowest.Seconds() / s.interval.Seconds()
}

func (p *program) reachedIn(interval time.Duration) time.Duration {
	if p.reached == 0 {
		return 9 * interval
	}
	return p.reached
}
