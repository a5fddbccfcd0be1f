package report

import (
	"fmt"
	"strings"

	"github.com/rratelimiter/rratelimiter/benchmarks/peer"
	"github.com/rratelimiter/rratelimiter/internal/docs/page"
)

// The tables that answer what users ask first, of this module by itself or beside
// few others.

// glance are the loads of the table at a glance.
var glance = []struct {
	name              string
	callers, limiters int
	ending            string // of the mode
}{
	{"1 caller", 1, 1, ""},
	{"8 callers of one limiter", 8, 1, ""},
	{"64 callers of one limiter", 64, 1, ""},
	{"256 callers of one limiter", 256, 1, ""},
	{"256 callers, 10,000 limiters", 256, manyLimiters, ""},
	{"the same, skewed", 256, manyLimiters, Skewed},
}

func glanceTable(r *Results) string {
	t := newTable("", "decisions a second", "p50, µs", "p99, µs", "1 ms away: p50, µs", "p99, µs")
	for _, g := range glance {
		k := loadKey(Rate, peer.Ours, Granting+g.ending, g.callers, g.limiters)
		if len(r.Values[k]) == 0 {
			continue
		}
		cells := []string{r.thousands(k) + " thousand", r.medians(P50)(k), r.medians(P99)(k)}
		k.Network = Delayed
		t.row(g.name, append(cells, r.medians(P50)(k), r.medians(P99)(k))...)
	}
	return t.text()
}

// answersTable is what a user wants to know first: medians only.
func answersTable(r *Results) string {
	var rows [][]string
	answer := func(question, format string, keys ...Key) {
		cells := make([]any, len(keys))
		for i, k := range keys {
			s := r.Of(k)
			if s.Rounds == 0 {
				return
			}
			if k.Metric == Rate {
				s.Median /= 1000
			}
			cells[i] = number(s.Median)
		}
		rows = append(rows, []string{question, fmt.Sprintf(format, cells...)})
	}
	ours := func(metric string, callers, limiters int) Key {
		return loadKey(metric, peer.Ours, Granting, callers, limiters)
	}
	lease := loadKey(Rate, peer.OursLease, Granting, 1, 1)
	far, bare := ours(P50, 1, 1), loadKey(P50, peer.EVALSHA, Granting, 1, 1)
	far.Network, bare.Network = Delayed, Delayed
	answer("How long does a call take?", "%s µs with Redis on the same machine", ours(P50, 1, 1))
	answer("And with 1 ms of network?", "%s µs; a script that does nothing takes %s µs", far, bare)
	answer("How many decisions a second does one process get?",
		"%s thousand with one caller; %s thousand with 64 callers and %s thousand with 256 callers of one limiter; %s thousand with 256 callers of 10,000 limiters",
		ours(Rate, 1, 1), ours(Rate, 64, 1), ours(Rate, 256, 1), ours(Rate, 256, manyLimiters))
	answer("And without a round trip, by `WithLease`?", "%s thousand with one caller", lease)
	answer("How much of Redis' thread does a decision take?",
		"%s µs for one caller; %s µs with 256 callers of one limiter; %s µs with 256 callers of 10,000 limiters",
		ours(ServerCPU, 1, 1), ours(ServerCPU, 256, 1), ours(ServerCPU, 256, manyLimiters))
	inTurn := func(name, mode string) Key { return loadKey(InTurn, name, mode, 1, 1) }
	answer("How long does Redis run a script for one caller?", "%s µs here, %s of Redisson's; %s and %s if one client runs both",
		inTurn(peer.Ours, Granting), inTurn(peer.Redisson, Granting), inTurn(peer.Ours, Granting+OneClient), inTurn(peer.Redisson, Granting+OneClient))
	answer("How much memory does a limiter need?", "%s bytes with one permit in use",
		loadKey(BytesLimiter, peer.Ours, Refusing, 256, manyLimiters))
	answer("What does Redisson do on one hot limiter?", "%s thousand decisions a second with 256 threads, %s thousand here",
		loadKey(Rate, peer.Redisson, Granting, 256, 1), ours(Rate, 256, 1))
	answer("And redis_rate on 10,000 limiters?", "%s thousand a second with 256 callers, %s thousand here",
		loadKey(Rate, peer.RedisRatePipeline, Granting, 256, manyLimiters), ours(Rate, 256, manyLimiters))
	most := func(name string) Key { return loadKey(Fullest, name, "crowds", 256, 1) }
	answer("Is anything faster on one hot limiter?",
		"bucket4j's async proxies, %s thousand a second; of a limit of 100 they let %s through in one interval, this module %s",
		loadKey(Rate, peer.Bucket4jAsync, Granting, 256, 1), most(peer.Bucket4jAsync), most(peer.Ours))
	if len(rows) == 0 {
		return notMeasured
	}
	return page.Table([]string{"question", "measured"}, rows, false)
}

// optionsTable has the figures of callers that their process answers from memory.
func optionsTable(r *Results) string {
	t := newTable("", "decisions a second", "p50, µs", "p99, µs")
	for _, option := range []struct{ name, peer, mode string }{
		{"`WithLease`, granting", peer.OursLease, Granting},
		{"`WithRefusalCache`, refusing", peer.OursMemory, Refusing},
	} {
		for _, callers := range []int{1, 64, 256} {
			k := loadKey(Rate, option.peer, option.mode, callers, 1)
			if len(r.Values[k]) > 0 {
				t.row(option.name+", "+head(k), r.thousands(k)+" thousand", r.medians(P50)(k), r.medians(P99)(k))
			}
		}
	}
	return t.text()
}

// costTable is what a decision costs, of this module.
func costTable(r *Results) string {
	t := newTable("", "granting: server time, µs", "server CPU, µs", "client CPU, µs", "refusing: server time, µs", "server CPU, µs", "client CPU, µs")
	for _, g := range glance {
		var cells []string
		found := false
		for _, mode := range []string{Granting, Refusing} {
			for _, metric := range []string{ServerTime, ServerCPU, ClientCPU} {
				s := r.Of(loadKey(metric, peer.Ours, mode+g.ending, g.callers, g.limiters))
				found = found || s.Rounds > 0
				cells = append(cells, spread(s))
			}
		}
		if found {
			t.row(g.name, cells...)
		}
	}
	return t.text()
}

// redisTable is what one Redis can give, if its main thread has a core of its
// own that does nothing else.
func redisTable(r *Results) string {
	t := newTable("thousand decisions a second", "one limiter, granting", "refusing", "10,000 limiters, granting", "refusing", "skewed, granting", "refusing")
	for _, name := range []string{peer.Ours, peer.Redisson, peer.RedissonAsync, peer.RedisRate, peer.RedisRatePipeline} {
		var cells []string
		found := false
		for _, g := range glance[3:] {
			for _, mode := range []string{Granting, Refusing} {
				s := r.Of(loadKey(ServerCPU, name, mode+g.ending, g.callers, g.limiters))
				cell := ""
				if s.Rounds > 0 && s.Min > 0 {
					found = true
					cell = spread(Summary{1000 / s.Median, 1000 / s.Max, 1000 / s.Min, s.Rounds})
				}
				cells = append(cells, cell)
			}
		}
		if found {
			t.row(bold(name), cells...)
		}
	}
	return t.text()
}

// besideTable is how long callers wait beside as many bare calls.
func besideTable(r *Results) string {
	t := newTable("", "bare calls: p50, µs", "one limiter", "one limiter, timeout 1 s", "a limiter each", "a limiter each, timeout 1 s")
	for _, callers := range []int{1, 8, 32} {
		for _, pause := range []string{"", Paused} {
			bare := Key{Metric: Beside, Peer: peer.EVALSHA, Network: Delayed, Mode: OneLimiter + pause, Callers: callers, Limiters: 1}
			if len(r.Values[bare]) == 0 {
				continue
			}
			cells := []string{r.plain(bare)}
			for _, mode := range []string{OneLimiter, OneLimiter + MayWait, OwnLimiter, OwnLimiter + MayWait} {
				k := bare
				k.Peer, k.Mode = peer.Ours, mode+pause
				cells = append(cells, times(r.Ratio(k, bare)))
			}
			t.row(head(bare)+pause, cells...)
		}
	}
	return t.text()
}

func times(s Summary) string {
	if s.Rounds == 0 {
		return ""
	}
	return spread(s) + "x"
}

// aloneTable is one caller beside the server, call by call beside a bare script.
func aloneTable(r *Results) string {
	t := newTable("", "go-redis as it comes: p50, µs", "against EVALSHA", "`ContextTimeoutEnabled`: p50, µs", "against EVALSHA")
	row := func(what, name, mode string) {
		var cells []string
		for _, ending := range []string{"", Punctual} {
			k, bare := loadKey(Solo, name, mode+ending, 1, 1), loadKey(Solo, peer.EVALSHA, Plain+ending, 1, 1)
			ratio := times(r.Ratio(k, bare))
			if k == bare {
				ratio = ""
			}
			cells = append(cells, r.plain(k), ratio)
		}
		if strings.Join(cells, "") != "" {
			t.row(what, cells...)
		}
	}
	row("EVALSHA of `return 1`", peer.EVALSHA, Plain)
	row("the same in a goroutine that its caller can leave", peer.EVALSHA, Honoured)
	for _, mode := range []string{Granting, Refusing} {
		for _, kind := range []string{Plain, Cancellable} {
			row(fmt.Sprintf("%s, %s, %s ctx", bold(peer.Ours), mode, kind), peer.Ours, mode+", "+kind)
		}
	}
	return t.text()
}

// turnsTable is the server's time for one caller, in turn with Redisson's: each library by its own Redis
// client, and both scripts by one.
func turnsTable(r *Results) string {
	t := newTable("server time a decision, µs", peer.Ours, peer.Redisson, "ratio")
	for _, mode := range []string{Granting, Granting + OneClient, Refusing, Refusing + OneClient} {
		ours, theirs := loadKey(InTurn, peer.Ours, mode, 1, 1), loadKey(InTurn, peer.Redisson, mode, 1, 1)
		if len(r.Values[ours]) > 0 {
			t.row(mode, r.plain(ours), r.plain(theirs), times(r.Ratio(ours, theirs)))
		}
	}
	return t.text()
}
