package report

import (
	"fmt"

	"github.com/rratelimiter/rratelimiter/benchmarks/peer"
)

// A figure is one of those that this module means to reach.
type figure struct {
	what    string
	atLeast float64
	aim     float64
	less    bool // less is better
	unit    string
	beside  string // what it is measured against, if the results say so
	Summary        // what was measured
	missing string // why it was not
}

func (f *figure) verdict() string {
	reached := func(bound float64) bool {
		if f.less {
			return f.Median <= bound
		}
		return f.Median >= bound
	}
	switch {
	case f.Rounds == 0:
		return f.missing
	case reached(f.aim):
		return "aim"
	case reached(f.atLeast):
		return "reached"
	}
	return "**missed**"
}

// loadKey returns the key of a load on the direct network.
func loadKey(metric, name, mode string, callers, limiters int) Key {
	return Key{Metric: metric, Peer: name, Network: Direct, Mode: mode, Callers: callers, Limiters: limiters}
}

const manyLimiters = 10_000

// figures returns the figures to reach.
func figures(r *Results) []figure {
	var all []figure
	add := func(f figure) {
		if f.missing == "" {
			f.missing = "not measured"
		}
		all = append(all, f)
	}
	ratio := func(what string, atLeast, aim float64, a, b Key) {
		add(figure{what: what, atLeast: atLeast, aim: aim, less: atLeast > aim, unit: "x", beside: describe(b), Summary: r.Ratio(a, b)})
	}
	hot := func(mode string) Key { return loadKey(Rate, peer.Ours, mode, 256, 1) }
	for _, mode := range []string{Granting, Refusing} {
		best := r.Best(loadKey(Rate, peer.Redisson, mode, 256, 1), peer.Redisson, peer.RedissonAsync)
		ratio("one hot limiter, 256 callers, "+mode+", against Redisson at its best", 20, 40, hot(mode), best)
	}
	for _, mode := range []string{Granting, Refusing} {
		ratio("the same, "+mode+", against redis_rate", 10, 20, hot(mode), loadKey(Rate, peer.RedisRate, mode, 256, 1))
	}
	for _, mode := range []string{Granting, Refusing} {
		ratio("10,000 limiters, 256 callers, "+mode+", against redis_rate", 3, 4,
			loadKey(Rate, peer.Ours, mode, 256, manyLimiters), loadKey(Rate, peer.RedisRate, mode, 256, manyLimiters))
	}
	for _, mode := range []string{Granting, Refusing} {
		for _, kind := range []string{"plain", "cancellable"} {
			ratio(fmt.Sprintf("one caller, p50, %s, %s ctx, against EVALSHA of `return 1`", mode, kind), 1.2, 1.1,
				loadKey(Solo, peer.Ours, mode+", "+kind, 1, 1), loadKey(Solo, peer.EVALSHA, kind, 1, 1))
		}
	}
	for _, callers := range []int{1, 256} {
		atLeast, aim, name := 0.8, 0.7, "one caller"
		if callers == 256 {
			atLeast, aim, name = 0.06, 0.03, "256 callers on one limiter"
		}
		for _, mode := range []string{Granting, Refusing} {
			ratio(fmt.Sprintf("server time a decision, %s, %s, against Redisson", name, mode), atLeast, aim,
				loadKey(ServerTime, peer.Ours, mode, callers, 1), loadKey(ServerTime, peer.Redisson, mode, callers, 1))
		}
	}
	ratio("bytes a permit under that load, against Redisson", 0.05, 0.03,
		loadKey(BytesPermit, peer.Ours, Granting, 256, 1), loadKey(BytesPermit, peer.Redisson, Granting, 256, 1))
	add(longest(r))
	ratio("with leases, 8 callers, against Redisson", 150, 500,
		loadKey(Rate, peer.OursLease, Granting, 8, 1), loadKey(Rate, peer.Redisson, Granting, 8, 1))
	add(beyondGoRedis(r))
	add(overTheLimit(r))
	return all
}

func describe(k Key) string {
	if k.Metric != Rate {
		return k.Peer
	}
	if k.Callers == 1 {
		return k.Peer + ", 1 caller"
	}
	return fmt.Sprintf("%s, %d callers", k.Peer, k.Callers)
}

// longest is our longest script, in the worst case of what has piled up.
func longest(r *Results) figure {
	f := figure{what: "longest script with a million members piled up", atLeast: 2, aim: 1, less: true, unit: " ms"}
	for k := range r.Values {
		if s := r.Of(k); k.Metric == Longest && k.Peer == peer.Ours && s.Median/1000 > f.Median {
			f.Summary = Summary{s.Median / 1000, s.Min / 1000, s.Max / 1000, s.Rounds}
			f.beside = k.Mode
		}
	}
	f.missing = "not measured"
	return f
}

// beyondGoRedis is what one call allocates beyond that of a bare script.
func beyondGoRedis(r *Results) figure {
	f := figure{what: "allocations of one TryAcquire beyond go-redis' own", atLeast: 6, aim: 3, less: true, missing: "not measured"}
	for _, mode := range []string{Granting, Refusing} {
		for _, kind := range []string{"plain", "cancellable"} {
			own := r.Of(loadKey(Allocations, peer.Ours, mode+", "+kind, 1, 1))
			bare := r.Of(loadKey(Allocations, peer.EVALSHA, Granting+", "+kind, 1, 1))
			if own.Rounds == 0 || bare.Rounds == 0 {
				continue
			}
			n := own.Median - bare.Median
			if f.Rounds == 0 {
				f.Summary = Summary{n, n, n, 1}
			}
			f.Summary = Summary{max(f.Median, n), min(f.Min, n), max(f.Max, n), 1}
		}
	}
	f.beside = "the worst of granting and refusing, with and without a cancellable ctx"
	return f
}

// overTheLimit is every permit of RateLimiters that was granted beyond a limit,
// lost, or refused without need, in all of the run.
func overTheLimit(r *Results) figure {
	f := figure{what: "permits over the limit, permits lost, in all of it", less: true, missing: "not measured"}
	var sum float64
	loads := 0
	for k, values := range r.Values {
		if k.Peer != peer.Ours && k.Peer != peer.OursLease && k.Peer != peer.OursMemory {
			continue // a fixed window may grant twice its limit, by its rule
		}
		if k.Peer == peer.OursLease && k.Callers == 256 && k.Metric == Wrong && k.Mode == "steadily" {
			continue // that many a second are more than the limit, and some are refused
		}
		for _, v := range values {
			switch k.Metric {
			case Unaccounted, Wrong:
				sum += max(v, -v)
				loads++
			case Fullest:
				sum += max(0, v-smallLimit)
				loads++
			case AfterIdle:
				sum += max(v-smallLimit, smallLimit-v)
				loads++
			}
		}
	}
	if loads > 0 {
		f.Summary = Summary{sum, sum, sum, 1}
		f.beside = fmt.Sprintf("%d counts", loads)
	}
	return f
}

// smallLimit is the limit of the runs whose grants are counted from outside.
const smallLimit = 100
