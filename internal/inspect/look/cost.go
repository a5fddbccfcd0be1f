package look

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
)

// askEvery is how often the servers are asked for their statistics.
const askEvery = 5 * time.Second

// usage is a server's statistics of one command: how often it ran, and for how long.
type usage struct {
	calls, micros int64
}

// meter counts what a Reader sends, and learns from the servers' statistics how long these
// commands take there.
type meter struct {
	since    time.Time
	sent     map[string]int64
	waited   time.Duration
	trips    int64
	asked    time.Time
	before   map[string]map[string]usage // by address and command
	perCall  map[string]float64          // microseconds, by command
	refused  bool
	told     bool
	lastCost Cost
	total    int64 // commands, ever
}

func newMeter() *meter {
	return &meter{since: time.Now(), sent: map[string]int64{}, before: map[string]map[string]usage{}, perCall: map[string]float64{}}
}

func (m *meter) roundTrip(took time.Duration, cmds []redis.Cmder) {
	m.waited += took
	m.trips++
	m.total += int64(len(cmds))
	for _, cmd := range cmds {
		m.sent[strings.ToLower(cmd.Name())]++
	}
}

// ask reads the statistics, now and then. If a server refuses, it is not asked again.
func (m *meter) ask(ctx context.Context, all []*node) error {
	if m.refused || time.Since(m.asked) < askEvery {
		return nil
	}
	m.asked = time.Now()
	sum := map[string]usage{}
	for _, n := range all {
		start := time.Now()
		cmd := n.client.Info(ctx, "commandstats")
		m.roundTrip(time.Since(start), []redis.Cmder{cmd})
		if err := cmd.Err(); err != nil {
			if _, answered := err.(redis.Error); answered { //nolint:errorlint // as it came
				m.refused = true
				return nil
			}
			return err
		}
		now := commandStats(cmd.Val())
		addr := nodes.Addr(n.client)
		for name, u := range now {
			old := m.before[addr][name]
			if u.calls < old.calls {
				old = usage{} // the statistics were reset
			}
			s := sum[name]
			sum[name] = usage{s.calls + u.calls - old.calls, s.micros + u.micros - old.micros}
		}
		m.before[addr] = now
	}
	for name, u := range sum {
		if u.calls > 0 {
			m.perCall[name] = float64(u.micros) / float64(u.calls)
		}
	}
	return nil
}

// commandStats reads INFO commandstats; names of subcommands are kept.
func commandStats(info string) map[string]usage {
	stats := map[string]usage{}
	for line := range strings.Lines(info) {
		name, values, found := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "cmdstat_"), ":")
		if !found {
			continue
		}
		var u usage
		for value := range strings.SplitSeq(values, ",") {
			key, text, _ := strings.Cut(value, "=")
			n, _ := strconv.ParseInt(text, 10, 64)
			switch key {
			case "calls":
				u.calls = n
			case "usec":
				u.micros = n
			}
		}
		stats[name] = u
	}
	return stats
}

// costSpan is what a cost is the mean of, at least: a walk goes by pages, so that
// a shorter time has seen one of them or none.
const costSpan = 0.95 // seconds

// cost returns the commands of the last second or more, a second.
func (m *meter) cost() Cost {
	span := time.Since(m.since).Seconds()
	switch {
	case !m.told:
		span = max(span, 1) // nothing was sent before
	case span < costSpan:
		return m.lastCost
	}
	m.told = true
	var count, micros float64
	known := len(m.perCall) > 0
	for name, n := range m.sent {
		count += float64(n)
		micros += float64(n) * m.perCall[name]
	}
	c := Cost{Commands: count / span}
	if m.trips > 0 {
		c.RoundTripMicros = float64(m.waited.Microseconds()) / float64(m.trips)
	}
	if known {
		perSecond := micros / span
		c.ServerMicros = &perSecond
	}
	m.since, m.sent, m.waited, m.trips, m.lastCost = time.Now(), map[string]int64{}, 0, 0, c
	return c
}
