package look

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
)

const (
	pageKeys   = 500     // keys that one SCAN looks at
	pageUnits  = 50      // commands that one SCAN counts as: it takes as long
	maxKnown   = 100_000 // limiters kept
	maxClients = 1_000   // clients kept of a limiter that gives each permits of its own
	// A configuration is read again after this many rounds, or when it is shown.
	configRounds = 5
	maxBatch     = 100 // limiters or clients read by one round trip
	newest       = 200 // members of a set read for its callers
	maxLooks     = 400 // limiters that one sample reads in full
)

// A Reader reads limiters off the servers behind a client, in small steps. It is
// for one goroutine.
type Reader struct {
	rdb     nodes.Client
	pattern string
	cost    *meter
	names   names
	walk    walk
	entries map[string]*entry
	budget  int // commands that the walk may send yet; below 0 after a page
	perKey  int // limiters known that give each client permits of its own
	full    bool
	noTTLs  bool // the user may not read times to live
}

// NewReader returns a Reader of the limiters whose names match the pattern, ""
// for all.
func NewReader(rdb nodes.Client, pattern string) *Reader {
	return &Reader{rdb: rdb, pattern: pattern, cost: newMeter(), entries: map[string]*entry{}}
}

// Named makes the Reader read the names of Clients by read, once a minute. If that
// fails they have no names.
func (r *Reader) Named(read func(context.Context) (Names, error)) { r.names.read = read }

// Know sets the names that the Reader uses for Clients.
func (r *Reader) Know(all Names) { r.names.known = all }

// harmless reports whether an error is about one key's content, or its place.
func harmless(err error) bool {
	return errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "WRONGTYPE") ||
		redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK") || redis.HasErrorPrefix(err, "TRYAGAIN")
}

// run sends what gathered in pipe, and returns an error that is not of one key.
func (r *Reader) run(ctx context.Context, pipe redis.Pipeliner) error {
	if pipe.Len() == 0 {
		return nil
	}
	start := time.Now()
	cmds, err := pipe.Exec(ctx)
	r.cost.roundTrip(time.Since(start), cmds)
	return firstNotHarmless(cmds, err)
}

// firstNotHarmless returns the first error that is not of one key, of a pipeline's
// commands and then of the pipeline.
func firstNotHarmless(cmds []redis.Cmder, err error) error {
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && !harmless(err) {
			return err
		}
	}
	if err != nil && harmless(err) {
		return nil
	}
	return err
}

// glanced is a pair that is read with two short commands.
type glanced struct {
	entry *entry
	pair  *pair
	value *redis.StringCmd
	last  *redis.ZSliceCmd
}

func (g *glanced) read(ctx context.Context, pipe redis.Pipeliner) {
	g.value, g.last = pipe.Get(ctx, g.pair.value), pipe.ZRangeWithScores(ctx, g.pair.set, -1, -1)
}

// check judges the pair, as far as these two tell.
func (g *glanced) check(f *Findings) (readable bool) { return f.checkPair(g.pair, g.value, g.last) }

// glance reads how much of each pair is free, about.
func (r *Reader) glance(ctx context.Context, n *node, entries []*entry) (units int, err error) {
	var all []*glanced
	for _, e := range entries {
		for _, p := range e.pairs {
			all = append(all, &glanced{entry: e, pair: p})
		}
	}
	for batch := range slices.Chunk(all, maxBatch) {
		pipe := n.client.Pipeline()
		for _, g := range batch {
			g.read(ctx, pipe)
		}
		units += pipe.Len()
		if err := r.run(ctx, pipe); err != nil {
			return units, err
		}
		local := time.Now()
		for _, g := range batch {
			g.entry.read = local
			g.judge(n.now(local))
		}
	}
	return units, nil
}

// judge takes the value as the free permits, unless all permits in use have run out.
func (g *glanced) judge(nowMS int64) {
	e, p := g.entry, g.pair
	p.free, p.known, p.alone = e.Rate, true, nil
	var found Findings
	readable := g.check(&found)
	old := time.Since(e.detailed) >= stale
	if why := found.Broken(); why.Kind != "" || old {
		p.broken = why // what a full reading found stays until it is old
	}
	if old {
		p.pace = nil
	}
	if !readable {
		p.free, p.known = 0, false
		return
	}
	last := g.last.Val()
	runOut := len(last) > 0 && int64(last[0].Score)+e.IntervalMS <= nowMS
	if errors.Is(g.value.Err(), redis.Nil) || runOut || e.forgets() {
		return
	}
	value, err := g.value.Int64()
	p.free, p.known = min(max(e.value(value), 0), e.Rate), err == nil
	if p.known && len(last) == 0 {
		value = e.value(value)
		p.alone = &value
	}
	p.forget(e.Rate)
}

// look reads limiters in full: configuration, free permits and callers.
func (r *Reader) look(ctx context.Context, entries []*entry) error {
	byNode := map[*node][]*entry{}
	for _, e := range entries {
		byNode[e.node] = append(byNode[e.node], e)
	}
	for n, entries := range byNode {
		if err := r.lookOn(ctx, n, entries); err != nil {
			return err
		}
	}
	return nil
}

// maxPairs bounds how many clients' pairs are read in full at once.
const maxPairs = 20

func (r *Reader) lookOn(ctx context.Context, n *node, entries []*entry) error {
	pipe := n.client.Pipeline()
	configs := make([]*redis.SliceCmd, len(entries))
	reads := make([][]*pairRead, len(entries))
	now := n.now(time.Now())
	for i, e := range entries {
		e.Fields = e.At(now)
		configs[i] = pipe.HMGet(ctx, e.name, allFields...)
		for _, p := range e.pairs[:min(len(e.pairs), maxPairs)] {
			reads[i] = append(reads[i], readPair(ctx, pipe, p, now-e.IntervalMS, newest))
		}
	}
	if err := r.run(ctx, pipe); err != nil {
		return err
	}
	local := time.Now()
	now = n.now(local)
	for i, e := range entries {
		if gone := ofWrongType(configs[i]); gone || configs[i].Err() == nil && !e.set(configs[i].Val(), now) {
			delete(r.entries, e.name)
			continue
		}
		e.read, e.detailed = local, local
		e.detail = e.judge(reads[i], now, &r.names)
	}
	err := r.readTTLs(ctx, n, entries)
	for _, e := range entries {
		e.noteUsedUp(local)
	}
	return err
}

// readTTLs looks now and then for keys that should have a time to live. If the user may not
// read those, they are left out.
func (r *Reader) readTTLs(ctx context.Context, n *node, entries []*entry) error {
	pipe := n.client.Pipeline()
	hashes := map[*entry]*redis.DurationCmd{}
	reads := map[*pair]*ttls{}
	for _, e := range entries {
		if r.noTTLs || time.Since(e.ttls) < stale || e.broken.Kind != "" {
			continue
		}
		e.ttls = time.Now()
		hashes[e] = pipe.PTTL(ctx, e.name)
		for _, p := range e.pairs[:min(len(e.pairs), maxPairs)] {
			reads[p] = readTTLs(ctx, pipe, p)
		}
	}
	if err := r.run(ctx, pipe); err != nil {
		if r.noTTLs = redis.HasErrorPrefix(err, "NOPERM"); r.noTTLs {
			return nil
		}
		return err
	}
	for e, hash := range hashes {
		for _, p := range e.pairs {
			if t := reads[p]; t != nil {
				t.check(p, &e.Fields, hash.Val())
			}
		}
	}
	return nil
}

// judge sums up the readings of an entry's pairs.
func (e *entry) judge(reads []*pairRead, nowMS int64, names *names) *Limiter {
	l := &Limiter{}
	byClient := map[string]int64{}
	for _, rd := range reads {
		rd.judge(e.Fields, nowMS)
		rd.pair.free, rd.pair.known = rd.free, rd.known
		rd.pair.forget(e.Rate)
		if rd.pair.pace == nil {
			rd.pair.pace = &pace{}
		}
		l.PerSecond += rd.pair.pace.perSecond(rd.members, len(rd.last.Val()) == rd.most, e.IntervalMS, nowMS)
		if e.PerClient() && rd.known {
			byClient[names.ofID(rd.pair.client)] += e.Rate - rd.pair.free
		} else if !e.PerClient() {
			l.Callers = callersOf(rd.inUse(e.IntervalMS, nowMS), names)
		}
	}
	if e.PerClient() {
		l.Callers = shares(byClient)
	}
	if l.Callers == nil {
		l.Callers = []Caller{}
	}
	return l
}

// choose returns the entries that the view shows, in its order, and what there is
// beside them.
func (r *Reader) choose(v *View) (shown []*entry, s Snapshot) {
	s = Snapshot{
		At: time.Now(), Known: len(r.entries), Left: r.full, Limiters: []Limiter{}, Offset: v.Offset,
		Complete: r.walk.round > 1, Walked: r.walk.part(), RoundMS: r.walk.took.Milliseconds(),
	}
	if v.Name != "" {
		if e := r.entries[v.Name]; e != nil {
			shown = []*entry{e}
		}
		return shown, s
	}
	f := first{view: v, most: v.Offset + v.Rows}
	for _, e := range r.entries {
		if e.why().Kind != "" {
			s.Broken++
		}
		if free, known := e.free(); known {
			if free < e.Rate {
				s.InUse++
			}
			if free == 0 || e.wasUsedUp(s.At) {
				s.Used++
			}
		}
		if v.Filter == "" || Has(e.name, v.Filter) {
			s.Matching++
			f.add(v.rank(e, s.At))
		}
	}
	f.cut()
	for _, rank := range f.kept[min(v.Offset, len(f.kept)):] {
		shown = append(shown, rank.entry)
	}
	return shown, s
}

// Sample reads what the view shows in full and returns it.
func (r *Reader) Sample(ctx context.Context, v View) (Snapshot, error) {
	all, err := r.Samples(ctx, []View{v})
	return all[0], err
}

// Samples is Sample of several views at once. With an error they are as old as they say.
func (r *Reader) Samples(ctx context.Context, views []View) ([]Snapshot, error) {
	r.names.learn(ctx)
	chosen := make([][]*entry, len(views))
	for i := range views {
		chosen[i], _ = r.choose(&views[i])
	}
	err := r.look(ctx, firstOf(chosen, maxLooks))
	all := make([]Snapshot, len(views))
	for i := range views {
		var shown []*entry
		shown, all[i] = r.choose(&views[i])
		for _, e := range shown {
			all[i].Limiters = append(all[i].Limiters, e.limiter(all[i].At))
		}
	}
	if err == nil {
		err = r.cost.ask(ctx, r.walk.nodes)
	}
	if err != nil {
		r.walk.underway = false // the servers may be others now
	}
	cost := r.cost.cost()
	for i := range all {
		all[i].Cost = cost
	}
	return all, err
}

// firstOf returns the first entries of all views, in turn, up to most.
func firstOf(views [][]*entry, most int) []*entry {
	seen := map[*entry]bool{}
	var all []*entry
	for place, more := 0, true; more && len(all) < most; place++ {
		more = false
		for _, shown := range views {
			if place < len(shown) && len(all) < most {
				more = true
				if e := shown[place]; !seen[e] {
					seen[e] = true
					all = append(all, e)
				}
			}
		}
	}
	return all
}

// Clients returns the ids of the clients of a limiter that the walk has seen, which give
// each permits of its own.
func (r *Reader) Clients(name string) []string {
	var ids []string
	if e := r.entries[name]; e != nil && e.PerClient() {
		for _, p := range e.pairs {
			ids = append(ids, p.client)
		}
	}
	slices.Sort(ids)
	return ids
}

// Cost returns what looking cost a second, as of the last Sample.
func (r *Reader) Cost() Cost { return r.cost.lastCost }

// Sent returns how many commands were sent ever.
func (r *Reader) Sent() int64 { return r.cost.total }

// Spend counts a round trip beside the Reader's own to what looking costs.
func (r *Reader) Spend(took time.Duration, cmds []redis.Cmder) { r.cost.roundTrip(took, cmds) }
