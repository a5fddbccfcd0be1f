package look

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

// node is a server that may be written to.
type node struct {
	client nodes.Client
	ahead  time.Duration // of this machine's clock
	keys   int64
}

// now returns the server's time in milliseconds, at a moment of this machine's.
func (n *node) now(local time.Time) int64 { return local.Add(n.ahead).UnixMilli() }

// walk goes over all keys of all servers, again and again.
type walk struct {
	nodes    []*node
	at       int // the node
	cursor   uint64
	clients  bool // sets of clients are walked, hashes are done
	round    int
	started  time.Time
	took     time.Duration
	scanned  int64
	underway bool
}

// part returns how much of the round is done, by the number of keys.
func (w *walk) part() float64 {
	if !w.underway {
		return 1
	}
	var keys int64
	for _, n := range w.nodes {
		keys += n.keys
	}
	return min(float64(w.scanned)/float64(max(keys, 1)), 1)
}

// Walk looks at more keys, with at most this many commands and not beyond the end of a round,
// and finds limiters and their free permits. It reads whole pages: what a page took beyond that
// is deducted from the next call.
func (r *Reader) Walk(ctx context.Context, units int) error {
	if !r.walk.underway {
		if err := r.begin(ctx); err != nil {
			return err
		}
	}
	r.budget = min(r.budget, 0) + units
	for r.budget > 0 && r.walk.underway {
		spent, err := r.page(ctx)
		if err != nil {
			r.walk.underway = false // the servers may be others now
			return err
		}
		r.budget -= spent
	}
	return nil
}

// Underway reports whether a round has begun that has not ended.
func (r *Reader) Underway() bool { return r.walk.underway }

// begin starts a round: it looks which servers there are.
func (r *Reader) begin(ctx context.Context) error {
	masters, err := nodes.Masters(ctx, r.rdb)
	if err != nil {
		return err
	}
	all := make([]*node, len(masters))
	for i, client := range masters {
		all[i] = &node{client: client}
		pipe := client.Pipeline()
		size, clock := pipe.DBSize(ctx), pipe.Time(ctx)
		start := time.Now()
		// If the user may not ask for the size, no percentage is shown.
		if err := r.run(ctx, pipe); err != nil && (clock.Err() != nil || !redis.HasErrorPrefix(size.Err(), "NOPERM")) {
			return err
		}
		all[i].keys = size.Val()
		all[i].ahead = clock.Val().Sub(start.Add(time.Since(start) / 2))
	}
	// Limiters of a server that is gone can't be read there; the walk finds it again.
	for name, e := range r.entries {
		if !slices.Contains(masters, e.node.client) {
			delete(r.entries, name)
		}
	}
	w := &r.walk
	w.nodes, w.at, w.cursor, w.clients, w.scanned = all, 0, 0, false, 0
	w.started, w.underway = time.Now(), true
	w.round = max(w.round, 1)
	return nil
}

// page looks at one page of keys.
func (r *Reader) page(ctx context.Context) (units int, err error) {
	w := &r.walk
	n := w.nodes[w.at]
	pattern, kind := r.pattern, "hash"
	if w.clients {
		pattern, kind = "*:permits:*", "zset"
	}
	pipe := n.client.Pipeline()
	scan := pipe.ScanType(ctx, w.cursor, pattern, pageKeys, kind)
	if err := r.run(ctx, pipe); err != nil {
		return 0, err
	}
	names, next := scan.Val()
	if !w.clients {
		w.scanned += pageKeys
	}
	units = pageUnits
	var more int
	if w.clients {
		more, err = r.clients(ctx, n, names)
	} else {
		more, err = r.hashes(ctx, n, names)
	}
	if err != nil {
		return 0, err
	}
	w.cursor = next
	if next == 0 {
		w.at++
	}
	if w.at == len(w.nodes) {
		r.turn()
	}
	return units + more, nil
}

// turn goes on to the sets of clients, if there may be any, or ends the round.
func (r *Reader) turn() {
	w := &r.walk
	w.at = 0
	if !w.clients && r.perKey > 0 {
		w.clients = true
		return
	}
	w.clients, w.underway, w.took = false, false, time.Since(w.started)
	r.perKey = 0
	for name, e := range r.entries {
		if e.round < w.round {
			delete(r.entries, name)
			continue
		}
		if e.PerClient() {
			r.perKey++
			e.forget(w.round)
		}
	}
	r.full = len(r.entries) >= maxKnown
	w.round++
}

// forget drops the clients that this round has not seen.
func (e *entry) forget(round int) {
	var kept []*pair
	for _, p := range e.pairs {
		if p.round >= round {
			kept = append(kept, p)
		}
	}
	e.pairs = kept
}

// hashes notes the hashes that are limiters, and glances at them.
func (r *Reader) hashes(ctx context.Context, n *node, names []string) (units int, err error) {
	var found []*entry
	var unread []string
	for _, name := range names {
		if e := r.entries[name]; e != nil && e.lasts() && r.walk.round < e.config+configRounds {
			found = append(found, r.seen(n, e))
		} else {
			unread = append(unread, name)
		}
	}
	for batch := range slices.Chunk(unread, maxBatch) {
		pipe := n.client.Pipeline()
		configs := make([]*redis.SliceCmd, len(batch))
		for i, name := range batch {
			configs[i] = pipe.HMGet(ctx, name, allFields...)
		}
		units += pipe.Len()
		if err := r.run(ctx, pipe); err != nil {
			return units, err
		}
		for i, name := range batch {
			if e := r.note(n, name, configs[i]); e != nil {
				found = append(found, e)
			}
		}
	}
	more, err := r.glance(ctx, n, found)
	return units + more, err
}

// seen notes that this round has met a limiter, and where.
func (r *Reader) seen(n *node, e *entry) *entry {
	if e.PerClient() {
		r.perKey++
	}
	e.node, e.round = n, r.walk.round
	return e
}

// note returns the limiter whose configuration this is, nil for none.
func (r *Reader) note(n *node, name string, config *redis.SliceCmd) *entry {
	e := r.entries[name]
	if e == nil {
		if len(r.entries) >= maxKnown {
			return nil
		}
		e = &entry{name: name}
	}
	if config.Err() != nil || !e.set(config.Val(), n.now(time.Now())) {
		delete(r.entries, name)
		return nil
	}
	e.config = r.walk.round
	for _, p := range e.pairs {
		p.noTTL = Anomaly{} // it is looked for again when the limiter is shown
	}
	e.ttls = time.Time{}
	r.entries[name] = e
	return r.seen(n, e)
}

// clients notes the clients whose sets these are, and glances at them.
func (r *Reader) clients(ctx context.Context, n *node, keys []string) (units int, err error) {
	touched := map[*entry]bool{}
	for _, key := range keys {
		e, client := r.owner(key)
		if e == nil {
			continue
		}
		k := redisson.KeysOf(e.name, client)
		p := e.pairOf(client)
		if p == nil && len(e.pairs) < maxClients {
			p = &pair{client: client, value: k.ClientValue, set: k.ClientPermits}
			e.pairs = append(e.pairs, p)
		}
		if p != nil {
			p.round = r.walk.round
			touched[e] = true
		}
	}
	var found []*entry
	for e := range touched {
		found = append(found, e)
	}
	return r.glance(ctx, n, found)
}

func (e *entry) pairOf(client string) *pair {
	for _, p := range e.pairs {
		if p.client == client {
			return p
		}
	}
	return nil
}

// owner returns the limiter to which a client's set belongs.
func (r *Reader) owner(key string) (e *entry, client string) {
	const between = ":permits:"
	for at := 0; ; {
		i := strings.Index(key[at:], between)
		if i < 0 {
			return nil, ""
		}
		tagged, client := key[:at+i], key[at+i+len(between):]
		names := []string{tagged}
		if inner, ok := strings.CutPrefix(tagged, "{"); ok && strings.HasSuffix(inner, "}") {
			names = append(names, strings.TrimSuffix(inner, "}"))
		}
		for _, name := range names {
			if e := r.entries[name]; e != nil && e.PerClient() && redisson.KeysOf(name, client).ClientPermits == key {
				return e, client
			}
		}
		at += i + 1
	}
}
