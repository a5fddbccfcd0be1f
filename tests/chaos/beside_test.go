package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// newBesidePlan is a round that programs with Redisson, or with this package, make alone:
// the same limiters, calls and faults either way. No fault loses data, or doubles requests,
// which no network does.
func newBesidePlan(seed uint64, number int, arenas []string, redisson string) *plan {
	p := newPlan(seed, number, arenas)
	p.beside, p.redisson = true, redisson
	if p.mood == losing || p.mood == stepping {
		p.mood = lossy
	}
	p.faults = slices.DeleteFunc(p.faults, func(f *fault) bool { return f.mood == losing || f.mood == stepping })
	p.weather = slices.DeleteFunc(p.weather, func(w *weather) bool { return w.name == doubledRequest })
	draw := p.draw("beside")
	p.limiters, p.clients = nil, nil
	for i := range 3 {
		// A failover may bring back what the other round left.
		l := drawLimiter(draw, fmt.Sprintf("{b%d:%d:%s}", number, i, redisson), overall)
		l.redisson, l.mints = redisson, draw.IntN(2) == 0
		p.limiters = append(p.limiters, l)
	}
	for i := range redissonWorkers {
		p.clients = append(p.clients, clientPlan{
			name: fmt.Sprintf("b%d", i+1), redis: "defaults", redisson: redisson, process: true,
			callTimeout: time.Duration(600+draw.IntN(900)) * time.Millisecond, callers: 8, pause: 3 * time.Millisecond,
		})
	}
	if !slices.Contains(p.faults, processKilled) {
		p.faults = append(p.faults, processKilled)
	}
	return p
}

// drawOperation draws a call: where Redisson is measured too, one that it has.
func (p *plan) drawOperation(draw *rand.Rand, l *limiter) operation {
	if !p.beside {
		return drawOperation(draw, l)
	}
	name := p.drawJavaOperation(draw, l)
	return operations[slices.IndexFunc(operations, func(op operation) bool { return op.name == name })]
}

// TestBesideRedisson makes rounds twice, with the newest Redisson alone and with this
// package alone, and records the figures of both. What Redisson's calls come to is no
// fault of ours, so nothing is checked of it. It takes -minutes.
func TestBesideRedisson(t *testing.T) { //nolint:paralleltest // it would slow down what it measures
	redistest.SkipShort(t, "real redis-servers, and JVMs")
	if *minutes == 0 {
		t.Skip("it takes -minutes")
	}
	if less := askedReduction(t).String(); less != "" {
		t.Fatalf("rounds here are not made with less: %s", less)
	}
	redis.SetLogger(silence{})
	t.Cleanup(jvms.close)
	seed, started := askedSeed(), servers{}
	for number := range askedRounds(0) {
		for _, redisson := range []string{newestRedisson, ""} {
			p := newBesidePlan(seed, number, askedArenas(), redisson)
			if !prepareRedisson(t, p) {
				t.Skip("it takes Java")
			}
			a := started.of(t, p.servers)
			t.Run(fmt.Sprintf("round %d with %q", number, redisson), func(t *testing.T) {
				r := p.run(t, a)
				if r.broken.Load() {
					delete(started, p.servers)
					return
				}
				r.recordRedisson()
				if redisson == "" {
					r.report()
				}
			})
		}
		if t.Failed() {
			break
		}
	}
}
