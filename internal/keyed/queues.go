// Package keyed serves the limiters that are kept by key, such as fixed windows: it gathers the requests
// for each key, makes calls of them and passes the answers on.
package keyed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Rule describes how one kind of limiter decides.
type Rule struct {
	Package string // its name in errors, and for observers if Options have none
	Options limit.Options
	Err     error  // in the configuration; nothing is asked then
	Most    int64  // permits that one call may decide about
	Limit   int64  // the most permits that there can ever be at once, 0 if only Redis knows it
	Write   string // the command by which decisions write, SET or ZADD; "": SET

	// Local returns the rule by which a local limiter decides about a key. With 0 permits it is not known,
	// unless Redis has said what the key's limit is.
	Local func() local.Rule

	// Check returns an error for a key that the limiter can't use, since it would reach what the
	// limiter keeps beside its keys. nil: all keys can be used.
	Check func(key string) error

	Second string                               // what makes a key its second one, at its end; "": there is none
	Ask    func(key string, b *lane.Batch) *Try // returns the call that decides a batch for a key
}

// Try is a script call, with a function that reads its answer.
type Try struct {
	lane.Call

	Read func(reply any, err error) (lane.Outcome, error)
	Next *Try // set by Read if the answer does not decide the batch
}

// Queues are the queues of a limiter of keys, one for each key.
type Queues struct {
	rule   Rule
	lanes  *lane.Lanes
	policy outage.Policy
	rates  outage.Rates // of keys that have their own

	keys map[string]*keyQueue // for which requests have gathered; the lock of lanes guards them
}

// Err returns the error that every call returns because of the configuration.
func (g *Queues) Err() error {
	if g.rule.Err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", g.rule.Package, g.rule.Err)
}

// keyQueue is where the requests for one key gather, from the first until a flight takes them.
type keyQueue struct {
	queues    *Queues
	key       string
	wave      *lane.Wave // of the flight that will take them; nil if callers can't wait on it
	waiting   []*request
	cancelled int // how many of them have no caller any more
}

type request struct {
	lane.Pending

	ctx     context.Context // for the Redis client's hooks, if the request goes by itself
	queue   *keyQueue       // in which it waits for a flight
	permits int64
	upTo    bool // as many as are free, at most permits
	settled bool // a grant is settled later
	outcome *lane.Outcome
	answer  lane.Answer
	err     error
}

// NewQueues returns the Queues of a rule.
func NewQueues(lanes *lane.Lanes, rule Rule) *Queues {
	t := &Queues{rule: rule, lanes: lanes, keys: make(map[string]*keyQueue)}
	t.policy = outage.Policy{Observer: lanes.Observer(), Failure: rule.Options.Failure, Shadow: rule.Options.Shadow}
	if rule.Options.Failure != nil {
		t.policy.Guard = outage.NewGuard()
	}
	return t
}

// send sends a request and waits for its answer, within that time if it is not 0.
func (g *Queues) send(ctx context.Context, key string, r *request, within time.Duration) (outage.Answer, error) {
	asked := time.Now()
	r.ctx, r.Asked = ctx, asked
	if within > 0 {
		r.Last = asked.Add(within)
	}
	l := g.lanes.Lock(ctx, key)
	k := g.keys[key]
	if k == nil && l.TryReserve() {
		b := g.newBatch()
		b.add(r)
		g.lanes.Mu.Unlock()
		l.SendOne(ctx, b.call(key), within > 0)
	} else {
		if k == nil {
			k = &keyQueue{queues: g, key: key}
			g.keys[key] = k
			k.wave = l.Ready(k)
		}
		r.queue = k
		k.waiting = append(k.waiting, r)
		r.WaitOn(k.wave)
		g.lanes.Mu.Unlock()
	}
	return g.await(ctx, r, asked)
}

func (g *Queues) await(ctx context.Context, r *request, asked time.Time) (outage.Answer, error) {
	look := asked.Add(g.lanes.Conn().Timeout())
	if !r.Last.IsZero() && r.Last.Before(look) {
		look = r.Last
	}
	if answered, err := r.Await(ctx, g.lanes, r, look, !r.Last.IsZero() || g.lanes.Conn().Inline()); !answered {
		g.cancel(r)
		return outage.Answer{}, err
	}
	a := outage.Answer{Decision: r.answer.Decision}
	switch {
	case r.err != nil:
		return outage.Answer{}, r.err
	case r.answer.Exceeds:
		return a, exceeds(r.permits, a.Limit)
	case a.Granted:
		a.Taken = r.answer.Taken
		a.Undo = func(ctx context.Context) error { return r.outcome.GiveBack(ctx, r.answer.Taken) }
		if r.settled {
			a.Settle = settle(r.outcome, r.answer.Taken)
		}
	}
	return a, nil
}

// cancel forgets requests whose callers have gone before a flight took them, when half of a key's are such
// requests: no flight leaves while a server hangs.
func (g *Queues) cancel(r *request) {
	g.lanes.Mu.Lock()
	defer g.lanes.Mu.Unlock()
	k := r.queue
	if k == nil || r.Batch != nil {
		return
	}
	if k.cancelled++; 2*k.cancelled > len(k.waiting) {
		k.waiting = slices.DeleteFunc(k.waiting, func(r *request) bool { return r.State != lane.Gathered })
		k.cancelled = 0
	}
}

// NextCall makes a call of the waiting requests.
func (g *keyQueue) NextCall(time.Time) (c *lane.Call, more bool) {
	t := g.queues
	b, taken := t.newBatch(), 0
	for _, r := range g.waiting {
		if r.State == lane.Gathered && !b.add(r) {
			break
		}
		taken++
	}
	g.waiting, g.cancelled, g.wave = slices.Delete(g.waiting, 0, taken), 0, nil
	more = len(g.waiting) > 0
	if !more {
		delete(t.keys, g.key)
	}
	if len(b.requests) == 0 {
		return nil, more
	}
	return b.call(g.key), more
}

// sentBatch is a batch with its callers.
type sentBatch struct {
	lane.Batch

	queues   *Queues
	try      *Try
	requests []*request
}

func (g *Queues) newBatch() *sentBatch {
	return &sentBatch{queues: g}
}

// add adds a request, or returns false if there is no room. The lock is held.
func (b *sentBatch) add(r *request) bool {
	if r.permits > b.queues.rule.Most-b.Sum && b.Count > 0 || r.upTo && !b.AddUpTo(r.permits) || !r.upTo && !b.Add(r.permits, false, 0) {
		return false
	}
	r.State, r.Batch = lane.Sent, &b.Batch
	b.requests = append(b.requests, r)
	return true
}

// call returns the call that decides the batch.
func (b *sentBatch) call(key string) *lane.Call {
	q := b.queues.rule.Ask(key, &b.Batch)
	b.try, q.Owner, q.Requests = q, b, len(b.requests)
	if len(b.requests) == 1 {
		q.By(b.requests[0].ctx)
	}
	return &q.Call
}

// OnReply passes the result to the callers, unless another call must be made.
func (b *sentBatch) OnReply(c *lane.Call) (again bool) {
	o, err := b.try.Read(c.Outcome())
	if next := b.try.Next; next != nil {
		b.try, c.Call = next, next.Call.Call
		return true
	}
	b.tell(c, o, err)
	return false
}

// tell gives each request its answer, and gives back permits granted to callers who have gone.
func (b *sentBatch) tell(c *lane.Call, o lane.Outcome, err error) {
	g := b.queues
	answers := make([]lane.Answer, len(b.requests))
	if err == nil {
		answers = b.Answers(answers[:0], o)
	}
	var unwanted, doubtful int64
	g.lanes.Mu.Lock()
	for i, r := range b.requests {
		if r.State != lane.Sent {
			unwanted += answers[i].Taken
			if errors.Is(err, limit.ErrUnknownOutcome) && !r.upTo {
				doubtful += r.permits
			}
			continue
		}
		r.answer, r.outcome, r.err = answers[i], &o, err
		r.MarkAnswered(c.Wave())
	}
	g.lanes.Mu.Unlock()
	if doubtful > 0 {
		g.givenUp(doubtful, err)
	}
	if unwanted > 0 {
		go func() {
			if err := o.GiveBack(context.Background(), unwanted); err != nil {
				g.givenUp(unwanted, err)
			}
		}()
	}
}

// Fail adds the limiter's package and the call to an error.
func Fail(pkg, op, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s %q: %w", pkg, op, key, err)
}

func exceeds(permits, most int64) error {
	return fmt.Errorf("%w: %d permits of %d; ask for fewer or raise the limit", limit.ErrPermitsExceedRate, permits, most)
}

// Parse reads the answer of the limiters' scripts: limit, free, taken, extra, reset, waits... Each limiter
// reads extra itself.
func Parse(reply any) (o lane.Outcome, extra int64, err error) {
	numbers, err := script.Integers(reply, 5)
	if err != nil {
		return lane.Outcome{}, 0, err
	}
	return lane.Outcome{
		Limit: numbers[0],
		Free:  numbers[1],
		Taken: numbers[2],
		Reset: script.Millis(max(0, numbers[4])),
		Waits: numbers[5:],
	}, numbers[3], nil
}

// Open returns the Lanes to rdb for a limiter of keys, and its options for a Rule. The error is about
// the client or the options.
func Open(rdb script.Redis, opts []limit.Option) (*lane.Lanes, limit.Options, error) {
	err := script.CheckClient(rdb)
	o := limit.Options{CallTimeout: script.DefaultTimeout}
	for _, opt := range opts {
		if opt != nil {
			err = errors.Join(err, opt(&o))
		}
	}
	return lane.New(script.NewConn(rdb, o.CallTimeout), observe.New(o.Observer, o.Logger)), o, err
}
