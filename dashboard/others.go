package dashboard

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/door"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/limit"
)

const (
	otherPage = 200    // keys that one SCAN looks at
	otherUnit = 20     // commands that it counts as
	peekUnits = 4      // commands that a look at one key counts as
	maxOthers = 20_000 // keys kept
	peekers   = 16     // looks at once: they share round trips
)

// otherView is the part of a list of keys that a viewer wants.
type otherView struct {
	search       string
	offset, rows int
}

// otherKey is a key of a fixed window, a sliding log or a bucket.
type otherKey struct {
	name  string
	of    int // which of Config.Others
	round int
	told  limit.Decision
	err   error
	read  time.Time
}

func (k *otherKey) use() float64 {
	if k.err != nil || k.told.Limit == 0 {
		return 0
	}
	return 1 - float64(k.free())/float64(k.told.Limit)
}

func byUse(a, b *otherKey) int {
	return cmp.Or(cmp.Compare(b.use(), a.use()), cmp.Compare(a.name, b.name))
}

// free returns what can be taken: the limiter was asked what would be left after one.
func (k *otherKey) free() int64 {
	if k.told.Granted {
		return k.told.Remaining + 1
	}
	return k.told.Remaining
}

// othersReader walks over the keys of Config.Others. It is the poller's.
type othersReader struct {
	cfg    Config
	keys   map[string]*otherKey
	round  int
	kinds  int // done of this round
	nodes  []nodes.Client
	at     int // of nodes
	cursor uint64
	budget int
	ended  time.Time
	under  bool
}

func newOthersReader(cfg Config) *othersReader {
	return &othersReader{cfg: cfg, keys: make(map[string]*otherKey)}
}

// walk goes on for about that many commands, a round each second at most.
func (o *othersReader) walk(ctx context.Context, units int, spend *look.Reader) (err error) {
	if len(o.cfg.Others) == 0 || !o.under && time.Since(o.ended) < every {
		return nil
	}
	if !o.under {
		if o.nodes, err = nodes.Masters(ctx, o.cfg.Redis); err != nil {
			return err
		}
		o.round++
		o.kinds, o.at, o.cursor, o.under = 0, 0, 0, true
	}
	o.budget = min(o.budget, 0) + units
	for o.budget > 0 && o.under {
		if err := o.page(ctx, spend); err != nil {
			o.under = false
			return err
		}
	}
	return nil
}

// page looks at one page of keys.
func (o *othersReader) page(ctx context.Context, spend *look.Reader) error {
	other := o.cfg.Others[o.kinds]
	start := time.Now()
	scan := o.nodes[o.at].Scan(ctx, o.cursor, look.EscapeGlob(other.Prefix)+"*", otherPage)
	spend.Spend(time.Since(start), []redis.Cmder{scan})
	names, next, err := scan.Result()
	if err != nil {
		return err
	}
	suffix := ""
	if keyed, _ := door.Behind[outage.Keyed](other.Limiter); keyed != nil {
		suffix = keyed.Suffix()
	}
	var found []*otherKey
	for _, name := range names {
		if suffix != "" && strings.HasSuffix(name, suffix) || name == other.Thresholds {
			continue
		}
		k := o.keys[name]
		if k == nil && len(o.keys) < maxOthers {
			k = &otherKey{name: name}
			o.keys[name] = k
		}
		if k != nil {
			k.of, k.round = o.kinds, o.round
			found = append(found, k)
		}
	}
	o.budget -= otherUnit + peekUnits*len(found)
	if err := o.peek(ctx, found, spend); err != nil {
		return err
	}
	if o.cursor = next; next == 0 {
		o.turn()
	}
	return nil
}

// turn goes on to the next server, then to the next kind, or ends the round.
func (o *othersReader) turn() {
	if o.at++; o.at < len(o.nodes) {
		return
	}
	o.at = 0
	if o.kinds++; o.kinds < len(o.cfg.Others) {
		return
	}
	o.under, o.ended = false, time.Now()
	for name, k := range o.keys {
		if k.round < o.round {
			delete(o.keys, name)
		}
	}
}

// peek asks what the limiters would answer for these keys.
func (o *othersReader) peek(ctx context.Context, keys []*otherKey, spend *look.Reader) error {
	var group sync.WaitGroup
	next := make(chan *otherKey)
	start := time.Now()
	for range min(peekers, len(keys)) {
		group.Go(func() {
			for k := range next {
				k.told, k.err = o.cfg.Others[k.of].Limiter.Peek(ctx, k.name, 1)
				k.read = time.Now()
			}
		})
	}
	cmds := make([]redis.Cmder, len(keys))
	for i, k := range keys {
		next <- k
		cmds[i] = redis.NewCmd(ctx, "evalsha")
	}
	close(next)
	group.Wait()
	if len(keys) > 0 {
		spend.Spend(time.Since(start), cmds)
	}
	for _, k := range keys {
		// What is under one key is that key's problem; a server that does not answer is a
		// problem of all.
		if k.err != nil && limit.KindOf(k.err) == limit.KindUnavailable {
			return k.err
		}
	}
	return nil
}

// otherRow is a key in the list.
type otherRow struct {
	named

	Of      string   `json:"of"` // what the page calls the limiter
	Limit   *int64   `json:"limit"`
	Free    *int64   `json:"free"`
	Use     *float64 `json:"use"`
	ResetMS *int64   `json:"reset_ms"`
	Error   string   `json:"error,omitempty"`
	AgeMS   int64    `json:"age_ms"`
}

// otherList is a part of all keys.
type otherList struct {
	At       time.Time  `json:"at"`
	Known    int        `json:"known"`
	Matching int        `json:"matching"`
	More     bool       `json:"more"`
	Offset   int        `json:"offset"`
	Keys     []otherRow `json:"keys"`
	Cost     look.Cost  `json:"cost"`
}

// list returns the part that a viewer wants, by use.
func (o *othersReader) list(ctx context.Context, v *otherView, spend *look.Reader) (otherList, error) {
	var all []*otherKey
	search := strings.ToLower(v.search)
	for _, k := range o.keys {
		if strings.Contains(strings.ToLower(k.name), search) {
			all = append(all, k)
		}
	}
	slices.SortFunc(all, byUse)
	l := otherList{
		At: time.Now(), Known: len(o.keys), Matching: len(all), More: len(o.keys) >= maxOthers, Offset: v.offset, Keys: []otherRow{},
	}
	page := all[min(v.offset, len(all)):min(v.offset+v.rows, len(all))]
	err := o.peek(ctx, page, spend)
	slices.SortFunc(page, byUse)
	l.Cost = spend.Cost()
	for _, k := range page {
		l.Keys = append(l.Keys, o.row(k, l.At))
	}
	return l, err
}

func (o *othersReader) row(k *otherKey, now time.Time) otherRow {
	r := otherRow{named: nameOf(k.name), Of: o.cfg.Others[k.of].Name, AgeMS: now.Sub(k.read).Milliseconds()}
	if k.err != nil {
		p, _ := problemOf(k.err)
		r.Error = p.Detail
		return r
	}
	use, free, reset := k.use(), k.free(), k.told.ResetAfter.Milliseconds()
	if use == 0 {
		reset = 0 // what was asked for would have to come back, no more
	}
	r.Limit, r.Free, r.Use, r.ResetMS = &k.told.Limit, &free, &use, &reset
	return r
}
