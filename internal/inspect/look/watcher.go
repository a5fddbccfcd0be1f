package look

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

const (
	// newMembers is how many members are read at most, the newest.
	newMembers = 1000
	// clientsEvery is how often clients with permits of their own are looked for,
	// which walks all keys.
	clientsEvery = 30 * time.Second
	maxWatched   = 100 // clients
)

// Point is one sample of one limiter.
type Point struct {
	At   time.Time `json:"time"`
	Gone bool      `json:"gone"` // there is no such limiter now
	Limiter
	// Granted is how many permits were granted since the sample before. Grants
	// whose interval has run out since are not among them, nor those of a
	// Redisson that keeps no members.
	Granted int64 `json:"granted"`
	// More says that there were more grants than were read.
	More bool  `json:"more_granted"`
	Cost Cost  `json:"cost"`
	Err  error `json:"-"`
}

// Watcher reads one limiter again and again.
type Watcher struct {
	Client   nodes.Client
	Name     string
	ClientID string                               // of the client whose permits are watched, "" for all
	Names    func(context.Context) (Names, error) // the names of Clients; nil: unknown

	entry  *entry
	reader *Reader
	found  time.Time // when clients were looked for last
}

// Sample reads the limiter.
func (w *Watcher) Sample(ctx context.Context) (Point, error) {
	if w.reader == nil {
		w.reader = NewReader(w.Client, "")
		w.reader.Named(w.Names)
		w.entry = &entry{name: w.Name}
	}
	w.reader.names.learn(ctx)
	n, err := w.node(ctx)
	if err != nil {
		return Point{}, err
	}
	e := w.entry
	pipe := n.client.Pipeline()
	config := pipe.HMGet(ctx, w.Name, allFields...)
	clock := pipe.Time(ctx)
	start := time.Now()
	if err := w.reader.run(ctx, pipe); err != nil {
		return Point{}, err
	}
	n.ahead = clock.Val().Sub(start.Add(time.Since(start) / 2))
	p := Point{At: time.Now(), Limiter: Limiter{Name: w.Name, Callers: []Caller{}}}
	if p.Gone = ofWrongType(config) || !e.set(config.Val(), clock.Val().UnixMilli()); p.Gone {
		return p, nil
	}
	if err := w.findClients(ctx, n); err != nil {
		return p, err
	}
	if err := w.grants(ctx, n, clock.Val().UnixMilli(), &p); err != nil {
		return p, err
	}
	if err := w.reader.readTTLs(ctx, n, []*entry{e}); err != nil {
		return p, err
	}
	e.noteUsedUp(e.read)
	p.Limiter = e.limiter(time.Now())
	if err := w.reader.cost.ask(ctx, []*node{n}); err != nil {
		return p, err
	}
	p.Cost = w.reader.cost.cost()
	return p, nil
}

// node returns the server that has the limiter.
func (w *Watcher) node(ctx context.Context) (*node, error) {
	client, err := nodes.Of(ctx, w.Client, w.Name)
	if err != nil {
		return nil, err
	}
	return &node{client: client}, nil
}

// findClients looks for those that have permits of their own.
func (w *Watcher) findClients(ctx context.Context, n *node) error {
	e := w.entry
	if !e.PerClient() || time.Since(w.found) < clientsEvery {
		return nil
	}
	w.found = time.Now()
	ids := []string{w.ClientID}
	k := redisson.KeysOf(w.Name, "")
	if w.ClientID == "" {
		ids = nil
		keys := n.client.ScanType(ctx, 0, EscapeGlob(k.ClientPermits)+"*", pageKeys, "zset").Iterator()
		for keys.Next(ctx) && len(ids) < maxWatched {
			ids = append(ids, keys.Val()[len(k.ClientPermits):])
		}
		if err := keys.Err(); err != nil {
			return err
		}
	}
	for _, id := range ids {
		if e.pairOf(id) == nil {
			k := redisson.KeysOf(w.Name, id)
			e.pairs = append(e.pairs, &pair{client: id, value: k.ClientValue, set: k.ClientPermits})
		}
	}
	return nil
}

// grants reads the pairs, and what was granted since the sample before. At is the
// server's time, just now.
func (w *Watcher) grants(ctx context.Context, n *node, at int64, p *Point) error {
	e := w.entry
	pipe := n.client.Pipeline()
	var reads []*pairRead
	for _, pr := range e.pairs {
		reads = append(reads, readPair(ctx, pipe, pr, at-e.IntervalMS, newMembers))
	}
	if err := w.reader.run(ctx, pipe); err != nil {
		return err
	}
	local := time.Now()
	e.read, e.detailed = local, local
	e.detail = e.judge(reads, n.now(local), &w.reader.names)
	for _, pr := range e.pairs {
		p.Granted += pr.pace.granted
		p.More = p.More || pr.pace.missed
	}
	return nil
}
