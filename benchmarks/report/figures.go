package report

import (
	"fmt"
	"strings"

	"github.com/rratelimiter/rratelimiter/benchmarks/peer"
)

// A figure is one of those that this module means to reach.
type figure struct {
	what    string
	bounds  bounds
	told    bool // only reported: there is nothing to reach
	unit    string
	beside  string // what it is measured against, if the results say so
	Summary        // what was measured
}

// bounds are what a figure is to reach at least, and what it aims at. If the
// aim is the lower one, less is better.
type bounds struct{ atLeast, aim float64 }

const missed = "**missed**"

func (f *figure) verdict() string {
	reached := func(bound float64) bool {
		if f.bounds.aim > f.bounds.atLeast {
			return f.Median >= bound
		}
		return f.Median <= bound
	}
	switch {
	case f.Rounds == 0:
		return "not measured"
	case f.told:
		return ""
	case reached(f.bounds.aim):
		return "aim"
	case reached(f.bounds.atLeast):
		return "reached"
	}
	return missed
}

// loadKey returns the key of a load on the direct network.
func loadKey(metric, name, mode string, callers, limiters int) Key {
	return Key{Metric: metric, Peer: name, Network: Direct, Mode: mode, Callers: callers, Limiters: limiters}
}

const manyLimiters = 10_000

// list collects figures.
type list struct {
	r   *Results
	all []figure
}

func (l *list) ratio(what string, b bounds, a, beside Key) {
	l.all = append(l.all, figure{
		what: what, bounds: b, told: b == bounds{}, unit: "x", beside: describe(beside), Summary: l.r.Ratio(a, beside),
	})
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

// figures returns the figures to reach.
func figures(r *Results) []figure {
	l := &list{r: r}
	l.far()
	l.crowded()
	l.alone()
	l.all = append(l.all, hungFigures(r)...)
	l.all = append(l.all, overTheLimit(r))
	return l.all
}

// far are those of callers beside as many bare calls, with a network between.
func (l *list) far() {
	for _, own := range []bool{false, true} {
		for _, callers := range []int{1, 8, 32} {
			if own && callers != 32 {
				continue
			}
			for _, way := range besideModes(own) {
				k := Key{Metric: Beside, Peer: peer.Ours, Network: Delayed, Mode: way, Callers: callers, Limiters: 1}
				what := fmt.Sprintf("p50, 1 ms away, %s, %s", head(Key{Callers: callers, Limiters: 1}), way)
				l.ratio(what, bounds{1.2, 1.1}, k, bareBeside(k))
			}
		}
	}
}

// besideModes are the ways to ask of callers who share a limiter, or have one each.
func besideModes(own bool) []string {
	mode := OneLimiter
	if own {
		mode = OwnLimiter
	}
	return []string{mode, mode + MayWait, mode + Paused, mode + MayWait + Paused}
}

// bareBeside is the key of the bare calls that k is measured beside.
func bareBeside(k Key) Key {
	paused := strings.HasSuffix(k.Mode, Paused)
	k.Peer, k.Mode = peer.EVALSHA, OneLimiter
	if paused {
		k.Mode += Paused
	}
	return k
}

// crowded are those of many callers beside the server.
func (l *list) crowded() {
	for mode, b := range inOrder(bounds{20, 35}, bounds{}) {
		best := l.r.Best(loadKey(Rate, peer.Redisson, mode, 256, 1), peer.Redisson, peer.RedissonAsync)
		l.ratio("decisions a second, one hot limiter, 256 callers, "+mode, b, loadKey(Rate, peer.Ours, mode, 256, 1), best)
	}
	many := func(mode string) (ours, theirs Key) {
		return loadKey(Rate, peer.Ours, mode, 256, manyLimiters), loadKey(Rate, peer.RedisRatePipeline, mode, 256, manyLimiters)
	}
	for mode, b := range inOrder(bounds{1.2, 1.5}, bounds{1, 1.3}) {
		ours, theirs := many(mode)
		l.ratio("the same, 10,000 known limiters, "+mode, b, ours, theirs)
	}
	for mode, b := range inOrder(bounds{1.6, 2.5}, bounds{1.6, 2.5}) {
		ours, theirs := many(mode + Skewed)
		l.ratio("the same, keys by Zipf 1.1, "+mode, b, ours, theirs)
	}
	l.ratio("8 callers of one limiter, granting", bounds{1, 1.4},
		loadKey(Rate, peer.Ours, Granting, 8, 1), loadKey(Rate, peer.RedisRate, Granting, 8, 1))
	l.ratio("client CPU a decision, 256 callers, 10,000 known limiters, granting", bounds{1.2, 0.9},
		loadKey(ClientCPU, peer.Ours, Granting, 256, manyLimiters),
		loadKey(ClientCPU, peer.RedisRatePipeline, Granting, 256, manyLimiters))
}

// inOrder goes through granting and refusing, each with its bounds.
func inOrder(granting, refusing bounds) func(func(string, bounds) bool) {
	return func(yield func(string, bounds) bool) {
		_ = yield(Granting, granting) && yield(Refusing, refusing)
	}
}

// alone are those of one caller beside the server.
func (l *list) alone() {
	solo := func(name, mode string) Key { return loadKey(Solo, name, mode, 1, 1) }
	clients := []struct{ ending, name string }{{"", ", go-redis as it comes"}, {Punctual, ", ContextTimeoutEnabled"}}
	for _, client := range clients {
		for mode, b := range inOrder(bounds{1.45, 1.25}, bounds{1.45, 1.25}) {
			l.ratio("p50, one caller, "+mode+client.name, b,
				solo(peer.Ours, mode+", "+Plain+client.ending), solo(peer.EVALSHA, Plain+client.ending))
		}
	}
	for _, client := range clients {
		cancellable := solo(peer.Ours, Granting+", "+Cancellable+client.ending)
		plain := solo(peer.Ours, Granting+", "+Plain+client.ending)
		l.ratio("p50, one caller, cancellable ctx"+client.name, bounds{1.15, 1.05}, cancellable, plain)
		l.all[len(l.all)-1].beside = "the same, Background ctx"
	}
	for mode, b := range inOrder(bounds{0.75, 0.65}, bounds{0.75, 0.65}) {
		l.ratio("server time a decision, one caller, both scripts by one client, "+mode, b,
			loadKey(InTurn, peer.Ours, mode+OneClient, 1, 1), loadKey(InTurn, peer.Redisson, mode+OneClient, 1, 1))
	}
}

func hungFigures(r *Results) []figure {
	most := figure{what: "hung server: goroutines beyond the callers", bounds: bounds{200, 50}}
	slowest := figure{what: "hung server: slowest `TryAcquire(ctx, 1, 100ms)`", bounds: bounds{0.5, 0.2}, unit: " s"}
	for k := range r.Values {
		s := r.Of(k)
		switch k.Metric {
		case HungMost:
			most.Summary = s
			most.beside = group(k.Limiters) + " limiters"
		case HungSlowest:
			slowest.Summary = Summary{s.Median / 1e6, s.Min / 1e6, s.Max / 1e6, s.Rounds}
			slowest.beside = group(k.Limiters) + " limiters"
		}
	}
	return []figure{most, slowest}
}

// overTheLimit is every permit of RateLimiters that was granted beyond a limit,
// lost, minted, or refused without need, in all of the run.
func overTheLimit(r *Results) figure {
	f := figure{what: "permits over the limit, lost or minted, in all of the run"}
	var sum float64
	loads := 0
	for k, values := range r.Values {
		if k.Peer != peer.Ours && k.Peer != peer.OursLease && k.Peer != peer.OursMemory {
			continue // a fixed window may grant twice its limit, by its rule
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
