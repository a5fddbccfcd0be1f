package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
)

// Beyond these a finding is more than fine.
const (
	slowTrip    = 5 * time.Millisecond
	clockNote   = 100 * time.Millisecond
	clockWarn   = time.Second
	lagWarn     = 10 // seconds
	memoryWarn  = 0.9
	tripsAsked  = 21
	oldestRedis = "6.2"
)

// info holds the fields of INFO.
type info map[string]string

func parseInfo(text string) info {
	fields := info{}
	for line := range strings.Lines(text) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), ":"); found {
			fields[name] = value
		}
	}
	return fields
}

func (i info) number(name string) int64 {
	n, _ := strconv.ParseInt(i[name], 10, 64)
	return n
}

// answered reports whether the server itself said the error.
func answered(err error) bool {
	_, is := errors.AsType[redis.Error](err)
	return is
}

// server makes the checks of one server. An error is none that it said.
func (d *doctor) server(ctx context.Context, s *server) error {
	if err := d.clock(ctx, s); err != nil {
		return err
	}
	s.info = info{}
	for _, section := range []string{"server", "memory", "stats", "persistence", "replication"} {
		text, err := s.Info(ctx, section).Result()
		switch {
		case err == nil:
			maps.Copy(s.info, parseInfo(text))
		case !answered(err):
			return err
		case redis.HasErrorPrefix(err, "NOPERM"):
			d.refused(s, "server", err)
			return nil
		}
	}
	d.version(s)
	d.memory(s)
	d.persistence(ctx, s)
	d.replication(s)
	return nil
}

// clock times round trips, and compares the server's clock with this machine's.
func (d *doctor) clock(ctx context.Context, s *server) error {
	var trips []time.Duration
	shortest := time.Duration(1<<63 - 1)
	var ahead time.Duration
	for range tripsAsked {
		start := time.Now()
		now, err := s.Time(ctx).Result()
		took := time.Since(start)
		if err != nil {
			if answered(err) {
				d.refused(s, "clock", err)
				return nil
			}
			return err
		}
		trips = append(trips, took)
		if took < shortest {
			shortest, ahead = took, now.Sub(start.Add(took/2))
		}
	}
	// The first one opens the connection.
	trips = trips[1:]
	slices.Sort(trips)
	median, longest := trips[len(trips)/2], trips[len(trips)-1]
	text := fmt.Sprintf("%v, the longest of %d %v", shortTime(median), len(trips), shortTime(longest))
	if median > slowTrip {
		d.add(s, "round trip", Warning, text, "a decision takes at least one round trip",
			"run the program nearer to the server, or use WithLease for hot limiters")
	} else {
		d.fine(s, "round trip", text)
	}
	off := ahead.Abs()
	text = fmt.Sprintf("the server's is %v ahead of this machine's", shortTime(ahead))
	if ahead < 0 {
		text = fmt.Sprintf("the server's is %v behind this machine's", shortTime(off))
	}
	text += fmt.Sprintf(", give or take %v", shortTime(shortest/2))
	if off <= shortest/2 {
		text = fmt.Sprintf("the server's and this machine's are the same, give or take %v", shortTime(shortest/2))
	}
	const reason = "rratelimiter goes by the server's clock, Redisson by its own machine's: clocks that differ give permits back early or late"
	const advice = "keep the clocks of the servers, and of the machines that run Redisson, in step by NTP"
	switch sure := off - shortest/2; {
	case sure > clockWarn:
		d.add(s, "clock", Warning, text, reason, advice)
	case sure > clockNote:
		d.add(s, "clock", Note, text, reason, advice)
	default:
		d.fine(s, "clock", text)
	}
	return nil
}

func shortTime(d time.Duration) time.Duration {
	switch abs := d.Abs(); {
	case abs > time.Minute:
		return d.Round(time.Second)
	case abs > time.Second:
		return d.Round(10 * time.Millisecond)
	case abs > time.Millisecond:
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(time.Microsecond)
}

func (d *doctor) version(s *server) {
	name, version := "Redis", s.info["redis_version"]
	if valkey := s.info["valkey_version"]; valkey != "" {
		d.fine(s, "version", "Valkey "+valkey)
		return
	}
	switch {
	case version == "":
		d.add(s, "version", Note, "the server does not report its version", "", "Redis from 6.2 on and Valkey are known to work")
	case older(version, oldestRedis):
		d.add(s, "version", Error, name+" "+version, "the scripts are written for Redis from 6.2 on", "upgrade the server")
	default:
		d.fine(s, "version", name+" "+version)
	}
}

// older compares versions by their first two numbers.
func older(version, than string) bool {
	number := func(v string) int {
		parts := append(strings.Split(v, "."), "0")
		major, _ := strconv.Atoi(parts[0])
		minor, _ := strconv.Atoi(parts[1])
		return major*1000 + minor
	}
	return number(version) < number(than)
}

func (d *doctor) memory(s *server) {
	policy, known := s.info["maxmemory_policy"]
	if !known {
		return
	}
	limit, used := s.info.number("maxmemory"), s.info.number("used_memory")
	evicts := policy != "noeviction"
	const reason = "a limiter with evicted keys starts full again: it grants more than its rate, or calls fail because it has no rate"
	const advice = "set maxmemory-policy to noeviction, or give limiters a server of their own"
	switch evicted := s.info.number("evicted_keys"); {
	case evicts && evicted > 0:
		d.add(s, "eviction", Error, fmt.Sprintf("%d keys were evicted since the server's start, maxmemory-policy is %s", evicted, policy), reason, advice)
	case evicts && limit > 0:
		d.add(s, "eviction", Warning, "maxmemory-policy is "+policy, reason, advice)
	case evicts:
		d.add(s, "eviction", Note, "maxmemory-policy is "+policy+", but there is no maxmemory, so nothing is evicted", reason, advice)
	default:
		d.fine(s, "eviction", "maxmemory-policy is noeviction")
	}
	if limit == 0 {
		d.fine(s, "memory", fmt.Sprintf("%d MB used, no maxmemory", used>>20))
		return
	}
	text := fmt.Sprintf("%d of %d MB used", used>>20, limit>>20)
	if float64(used) > memoryWarn*float64(limit) {
		d.add(s, "memory", Warning, text, "a full server refuses to write, and so every call of a limiter fails, unless it evicts keys",
			"raise maxmemory, or move its other data")
	} else {
		d.fine(s, "memory", text)
	}
}

func (d *doctor) persistence(ctx context.Context, s *server) {
	i := s.info
	if _, known := i["aof_enabled"]; !known {
		return
	}
	if i["loading"] == "1" {
		d.add(s, "persistence", Error, "the server is loading its data", "calls fail until it has", "wait")
	}
	for name, what := range map[string]string{"rdb_last_bgsave_status": "snapshot", "aof_last_write_status": "write to the append-only file"} {
		if i[name] == "err" {
			d.add(s, "persistence", Error, "the last "+what+" failed", "the server may refuse to write until it works again (MISCONF)",
				"see the server's log; often the disk is full")
		}
	}
	if i["aof_enabled"] == "1" {
		d.fine(s, "persistence", "append-only file")
		return
	}
	save, err := s.ConfigGet(ctx, "save").Result()
	if err != nil {
		d.add(s, "persistence", Note, "no append-only file; whether snapshots are kept could not be read: "+err.Error(),
			"a server loses at a restart what it did not save", "")
		return
	}
	const reason = "after a restart limiters are as they were at the last snapshot, or gone: permits in use are granted again"
	const advice = "appendonly yes keeps all but the last second; if limits may start full again, give limiters their rate with WithDefault"
	if save["save"] != "" {
		d.add(s, "persistence", Note, "snapshots only, at "+save["save"], reason, advice)
	} else {
		d.add(s, "persistence", Note, "none", reason, advice)
	}
}

func (d *doctor) replication(s *server) {
	i := s.info
	switch i["role"] {
	case "":
		return
	case "master":
	default:
		d.add(s, "replication", Error, "this is a replica", "limiters write: a replica refuses that", "connect to the master")
		return
	}
	count := int(i.number("connected_slaves"))
	if count == 0 {
		d.add(s, "replication", Note, "no replicas", "when the server is gone, so are its limiters", "")
		return
	}
	offset := i.number("master_repl_offset")
	worst, texts := Fine, []string{}
	for n := range count {
		fields := info{}
		for field := range strings.SplitSeq(i[fmt.Sprintf("slave%d", n)], ",") {
			name, value, _ := strings.Cut(field, "=")
			fields[name] = value
		}
		text := fmt.Sprintf("%s:%s %s, %d bytes and %d s behind", fields["ip"], fields["port"], fields["state"],
			max(offset-fields.number("offset"), 0), fields.number("lag"))
		if fields["state"] != "online" || fields.number("lag") > lagWarn {
			worst = Warning
		}
		texts = append(texts, text)
	}
	text := strings.Join(texts, "; ")
	if worst == Fine {
		d.fine(s, "replication", text)
		return
	}
	d.add(s, "replication", worst, text, "after a failover a limiter forgets what its new master had not received, and grants that again",
		"see why the replica lags: its network, its disk, or its load; docs/servers.md says what min-replicas and WAIT hold")
}

// cluster asks for the state of a cluster, if there is one.
func (d *doctor) cluster(ctx context.Context) {
	if !nodes.IsCluster(d.rdb) {
		return
	}
	text, err := d.rdb.ClusterInfo(ctx).Result()
	if err != nil {
		d.refused(nil, "cluster", err)
		return
	}
	i := parseInfo(text)
	summary := fmt.Sprintf("state %s, %s of 16384 slots served, %s nodes, %s masters", i["cluster_state"], i["cluster_slots_ok"],
		i["cluster_known_nodes"], i["cluster_size"])
	if i["cluster_state"] != "ok" || i["cluster_slots_ok"] != "16384" {
		d.add(nil, "cluster", Error, summary, "limiters in a slot without a server fail; if cluster-require-full-coverage is on, all fail",
			"run redis-cli --cluster check, then fix")
		return
	}
	d.fine(nil, "cluster", summary)
}
