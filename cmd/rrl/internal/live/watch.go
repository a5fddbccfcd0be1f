package live

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/nodes"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

// ErrGone is what watching a limiter ends with that is not there.
var ErrGone = errors.New("no such limiter")

const (
	// newMembers is how many members are read at most that came since the sample
	// before.
	newMembers = 1000
	// clientsEvery is how often clients with permits of their own are looked for,
	// which walks all keys.
	clientsEvery = 30 * time.Second
	maxWatched   = 100 // clients
	keptPoints   = 1000
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

// Watch shows one limiter again and again.
type Watch struct {
	Client   redis.UniversalClient
	Name     string
	ClientID string // of the one whose permits are watched, "" for all
	Interval time.Duration
	Count    int // samples that Print prints, 0 for no end
	ASCII    bool
	Names    func(context.Context) (Names, error) // what Clients are called; nil: nobody knows

	entry  *entry
	reader *Reader
	found  time.Time        // when clients were looked for last
	until  map[string]int64 // by set, the newest grant seen, in milliseconds
}

// Sample reads the limiter.
func (w *Watch) Sample(ctx context.Context) (Point, error) {
	if w.reader == nil {
		w.reader = NewReader(w.Client, "")
		w.reader.Named(w.Names)
		w.entry = &entry{name: w.Name}
		w.until = map[string]int64{}
	}
	w.reader.names.learn(ctx)
	n, err := w.node(ctx)
	if err != nil {
		return Point{}, err
	}
	e := w.entry
	pipe := n.client.Pipeline()
	config := pipe.HMGet(ctx, w.Name, configFields...)
	clock := pipe.Time(ctx)
	start := time.Now()
	if err := w.reader.run(ctx, pipe); err != nil {
		return Point{}, err
	}
	n.ahead = clock.Val().Sub(start.Add(time.Since(start) / 2))
	p := Point{At: time.Now(), Limiter: Limiter{Name: w.Name, Callers: []Caller{}}}
	if p.Gone = !e.set(config.Val()); p.Gone {
		return p, nil
	}
	if err := w.findClients(ctx, n); err != nil {
		return p, err
	}
	if err := w.grants(ctx, n, clock.Val().UnixMilli(), &p); err != nil {
		return p, err
	}
	p.Limiter = e.limiter(time.Now())
	if err := w.reader.cost.ask(ctx, []*node{n}); err != nil {
		return p, err
	}
	p.Cost = w.reader.cost.cost()
	return p, nil
}

// node returns the server that has the limiter.
func (w *Watch) node(ctx context.Context) (*node, error) {
	client, err := nodes.Of(ctx, w.Client, w.Name)
	if err != nil {
		return nil, err
	}
	return &node{client: client}, nil
}

// findClients looks for those that have permits of their own.
func (w *Watch) findClients(ctx context.Context, n *node) error {
	e := w.entry
	if !e.perClient || time.Since(w.found) < clientsEvery {
		return nil
	}
	w.found = time.Now()
	ids := []string{w.ClientID}
	k := redisson.KeysOf(w.Name, "")
	if w.ClientID == "" {
		ids = nil
		keys := n.client.ScanType(ctx, 0, escapeGlob(k.ClientPermits)+"*", pageKeys, "zset").Iterator()
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
func (w *Watch) grants(ctx context.Context, n *node, at int64, p *Point) error {
	e := w.entry
	pipe := n.client.Pipeline()
	var reads []*pairRead
	var fresh []*redis.ZSliceCmd
	for _, pr := range e.pairs {
		reads = append(reads, readPair(ctx, pipe, pr, at-e.intervalMS))
		since, seen := w.until[pr.set]
		if !seen {
			since = at
			w.until[pr.set] = at
		}
		fresh = append(fresh, pipe.ZRangeByScoreWithScores(ctx, pr.set, &redis.ZRangeBy{
			Min: "(" + strconv.FormatInt(since, 10), Max: "+inf", Count: newMembers,
		}))
	}
	if err := w.reader.run(ctx, pipe); err != nil {
		return err
	}
	local := time.Now()
	e.read, e.detailed = local, local
	e.detail = e.judge(reads, n.now(local), &w.reader.names)
	for i, pr := range e.pairs {
		members := parse(fresh[i].Val())
		for _, m := range members {
			p.Granted += int64(m.Permits)
			// Of the millisecond that has not ended more may come, at the price of
			// counting none twice.
			w.until[pr.set] = max(w.until[pr.set], m.granted)
		}
		p.More = p.More || len(members) == newMembers
	}
	return nil
}

// run samples until ctx is over, as often as wanted, and calls emit, which says
// whether it is enough.
func (w *Watch) run(ctx context.Context, emit func(Point, error) bool) {
	tick := time.NewTicker(w.Interval)
	defer tick.Stop()
	for {
		p, err := w.Sample(ctx)
		if ctx.Err() != nil || !emit(p, err) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Print writes a line a sample.
func (w *Watch) Print(ctx context.Context, out *output.Printer) error {
	var failed error
	n := 0
	w.run(ctx, func(p Point, err error) bool {
		switch {
		case err != nil:
			failed = err
		case p.Gone && n == 0:
			failed = ErrGone
		case out.JSON:
			failed = output.WriteJSON(out, p)
		default:
			_, failed = fmt.Fprintln(out, PointText(&p))
		}
		n++
		return failed == nil && n != w.Count
	})
	return failed
}

// Show draws a graph on a terminal, until the user has seen enough.
func (w *Watch) Show(ctx context.Context, screen *Screen, paint func(color, text string) string) error {
	ctx, cancel := context.WithCancel(ctx)
	type result struct {
		point Point
		err   error
	}
	results := make(chan result)
	defer cancel()
	// Nobody waits for it at the end: a server that hangs would keep the user.
	go func() {
		w.run(ctx, func(p Point, err error) bool {
			select {
			case results <- result{p, err}:
				return true
			case <-ctx.Done():
				return false
			}
		})
	}()

	var points []Point
	columns, rows := screen.Size()
	size := time.NewTicker(sizeEvery)
	defer size.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case r := <-results:
			switch {
			case r.err != nil && len(points) == 0:
				return r.err
			case r.err != nil:
				points[len(points)-1].Err = r.err
			case r.point.Gone && len(points) == 0:
				return ErrGone
			default:
				points = append(points, r.point)
				points = points[max(len(points)-keptPoints, 0):]
			}
		case key, ok := <-screen.Keys:
			if !ok {
				screen.Keys = nil
			} else if key == 'q' || key == KeyStop {
				return nil
			}
		case <-size.C:
			c, r := screen.Size()
			if c == columns && r == rows {
				continue
			}
			columns, rows = c, r
		}
		if len(points) == 0 {
			continue
		}
		if err := screen.Draw(Graph(points, w.Interval, columns, rows, w.ASCII, paint)); err != nil {
			return err
		}
	}
}

// escapeGlob returns the pattern that matches s alone.
func escapeGlob(s string) string {
	var escaped []byte
	for i := range len(s) {
		switch s[i] {
		case '\\', '*', '?', '[', ']':
			escaped = append(escaped, '\\')
		}
		escaped = append(escaped, s[i])
	}
	return string(escaped)
}
