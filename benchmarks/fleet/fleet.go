package main

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lease"
)

// fleet is programs on one limiter.
type fleet struct {
	events

	server   limiter
	wire     time.Duration // there and back
	random   *rand.Rand
	programs []*program
	uses     uses
	leases   bool
	longest  time.Duration // life of a lease
}

// call costs Redis some time, and then the program.
func (f *fleet) call(do func(at time.Duration), then func()) {
	half := func() time.Duration { return time.Duration(float64(f.wire) / 2 * (0.8 + 0.4*f.random.Float64())) }
	f.after(half(), func() {
		done := f.server.work(f.now)
		do(done)
		f.after(done-f.now+half(), then)
	})
}

// join adds a program.
func (f *fleet) join(demand float64) *program {
	p := &program{fleet: f, random: rand.New(rand.NewPCG(f.random.Uint64(), 0)), demand: demand, born: f.now, since: f.now}
	if f.leases {
		p.plan = &lease.Planner{Most: 1 << 31, Random: p.random.Float64}
	}
	f.programs = append(f.programs, p)
	p.next()
	return p
}

// uses counts permits by the time of their use.
type uses struct {
	bin  time.Duration
	bins []float64
}

func (u *uses) add(permits int64, from, to time.Duration) {
	if permits == 0 {
		return
	}
	first, last := int(from/u.bin), int(max(from, to-1)/u.bin)
	for len(u.bins) <= last {
		u.bins = append(u.bins, 0)
	}
	for i := first; i <= last; i++ {
		part := 1.0
		if to > from {
			part = float64(min(to, time.Duration(i+1)*u.bin)-max(from, time.Duration(i)*u.bin)) / float64(to-from)
		}
		u.bins[i] += float64(permits) * part
	}
}

// most returns the most permits that were used in a span, of whole bins.
func (u *uses) most(span time.Duration) float64 {
	n, sum, most := int(span/u.bin), 0.0, 0.0
	for i, b := range u.bins {
		if sum += b; i >= n {
			sum -= u.bins[i-n]
		}
		most = max(most, sum)
	}
	return most
}

// jain returns how equal the numbers are: 1 if all are the same.
func jain(all []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, x := range all {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / float64(len(all)) / squares
}

func median(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}
