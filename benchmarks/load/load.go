// Package load makes callers ask limiters for permits, as fast as they answer, and counts the
// results.
package load

import (
	"cmp"
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/histogram"
)

// Take asks limiter i for one permit and reports whether it was granted.
type Take func(ctx context.Context, i int) (bool, error)

// A Load is a number of callers, each of which asks for one permit after another, of limiters
// that it draws, and for at least one.
type Load struct {
	Callers  int
	Limiters int
	Draw     Draw
	Pause    time.Duration // the mean of what callers wait between two calls
	Warm     time.Duration // how long before counting begins
	Length   time.Duration // how long decisions are counted
	// Patience is how long callers may then wait for their last answers, which
	// no longer count, before their contexts end; a minute if it is 0.
	Patience time.Duration
}

// A Draw is how callers choose among limiters.
type Draw int

// Uniform is all alike. Zipf asks a few for most: the first of 10,000 for one
// permit in seven. With Own each caller asks the one of its number only.
const (
	Uniform Draw = iota
	Zipf
	Own
)

// ZipfExponent is the exponent of [Zipf].
const ZipfExponent = 1.1

// A Result is the result of a Load.
type Result struct {
	Granted, Refused int64
	Errors           int64
	FirstError       string
	Elapsed          time.Duration // in which these were counted
	CPU              time.Duration // of the callers' process meanwhile
	Latencies        histogram.Histogram

	// Decisions and errors, those before and after counting included.
	All, Failed int64
}

// Rate returns the decisions a second.
func (r *Result) Rate() float64 {
	return float64(r.Granted+r.Refused) / r.Elapsed.Seconds()
}

const (
	warming int32 = iota
	measuring
	over
)

// caller is one caller's part of the result, on cache lines of its own.
type caller struct {
	Result
	_ [64]byte
}

// Run puts the load on the limiters behind take. Each caller has a context of
// its own that can be cancelled, as a server's requests have.
func Run(ctx context.Context, l Load, take Take) *Result {
	runtime.GC()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	callers := make([]caller, l.Callers)
	var (
		phase atomic.Int32
		wg    sync.WaitGroup
	)
	for i := range callers {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			callers[i].run(ctx, l, i, take, &phase)
		})
	}
	time.Sleep(l.Warm)
	phase.Store(measuring)
	start, cpu := time.Now(), cpuTime()
	time.Sleep(l.Length)
	phase.Store(over)
	elapsed := time.Since(start)
	cpu = cpuTime() - cpu
	giveUp := time.AfterFunc(cmp.Or(l.Patience, time.Minute), cancel)
	wg.Wait()
	giveUp.Stop()

	sum := &Result{Elapsed: elapsed, CPU: cpu}
	for i := range callers {
		c := &callers[i]
		sum.Granted += c.Granted
		sum.Refused += c.Refused
		sum.Errors += c.Errors
		sum.All += c.All
		sum.Failed += c.Failed
		sum.Latencies.Merge(&c.Latencies)
		if sum.FirstError == "" {
			sum.FirstError = c.FirstError
		}
	}
	return sum
}

// draws returns what draws the limiters of a caller.
func (l Load) draws(caller int, random *rand.Rand) func() int {
	switch {
	case l.Limiters < 2:
		return func() int { return 0 }
	case l.Draw == Own:
		return func() int { return caller % l.Limiters }
	case l.Draw == Zipf:
		zipf := rand.NewZipf(random, ZipfExponent, 1, uint64(l.Limiters-1))
		return func() int { return int(zipf.Uint64()) }
	}
	return func() int { return random.IntN(l.Limiters) }
}

func (c *caller) run(ctx context.Context, l Load, number int, take Take, phase *atomic.Int32) {
	random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	draw := l.draws(number, random)
	start := time.Now()
	for {
		granted, err := take(ctx, draw())
		end := time.Now()
		if err == nil {
			c.All++
		} else {
			c.Failed++
		}
		if phase.Load() == measuring {
			c.count(end.Sub(start), granted, err)
		}
		if phase.Load() == over || ctx.Err() != nil {
			return
		}
		if l.Pause > 0 {
			// From half to one and a half, so that callers don't fall into step.
			time.Sleep(l.Pause/2 + rand.N(l.Pause))
			end = time.Now()
		}
		start = end
	}
}

func (c *caller) count(took time.Duration, granted bool, err error) {
	switch {
	case err != nil:
		c.Errors++
		c.FirstError = err.Error()
		return
	case granted:
		c.Granted++
	default:
		c.Refused++
	}
	c.Latencies.Add(took)
}

// Each asks each of n limiters for one permit and returns how many gave it.
func Each(ctx context.Context, n int, take Take) (int, error) {
	const callers = 64
	var (
		next, granted atomic.Int64
		once          sync.Once
		first         error
		wg            sync.WaitGroup
	)
	for range min(callers, n) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				ok, err := take(ctx, int(i))
				if err != nil {
					once.Do(func() { first = err })
					return
				}
				if ok {
					granted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return int(granted.Load()), first
}
