package middleware

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Turn is a request that waits for the permits of its limits, beside others of the same middleware. Requests that meet
// ask one limit after the other, so that none takes what another lacks: the scarcest first. What is granted is kept while
// others are waited for, if they grant soon.
type Turn struct {
	options   *Options
	questions []Question
	inOrder   bool   // asks one limit after the other
	awaited   string // the key that it waits for; "" if it waits for none
	inFlight  bool   // that is of a limit in flight

	came  uint64        // how many requests came before it, and itself
	frees uint64        // what had come back in flight when it last asked
	freed chan struct{} // closed when what it waits for in flight came back
}

// Turn counts in a request with these questions, whose answers Ask sets.
func (o *Options) Turn(questions []Question) *Turn {
	t := &Turn{options: o, questions: questions}
	for i := range questions {
		if o.crowd.enter(questions[i].Key, t) {
			t.inOrder = len(questions) > 1
		}
	}
	return t
}

// Leave counts the request out.
func (t *Turn) Leave() {
	for i := range t.questions {
		t.options.crowd.leave(t.questions[i].Key)
	}
}

// Ask asks the limits that have granted nothing which is kept. If some refuse, it is to be called again after RetryAfter,
// for which Sleep waits; until then GiveBack returns what is kept.
func (t *Turn) Ask(ctx context.Context) Verdict {
	t.frees = t.options.crowd.frees.Load()
	for i := range t.questions {
		if q := &t.questions[i]; !q.kept {
			*q = q.Again()
		}
	}
	if !t.inOrder {
		t.inOrder = len(t.questions) > 1
		v := t.options.AskAll(ctx, t.questions)
		t.await()
		return v
	}
	t.options.asking(t.questions)
	defer t.options.giveBackPanicking(ctx, t.questions)
	all := rounds(ctx, t.questions)
	t.options.crowd.sort(all, t.awaited)
	for _, r := range all {
		if v := t.options.Judge(t.questions); v.Refused || v.Closed {
			break
		}
		r.ask(ctx)
	}
	t.await()
	return t.options.conclude(ctx, t.questions, true)
}

// AskAndWait is Ask for the only limit, which [Limit.WaitsItself]. If that refuses, no permits come before ctx ends.
func (t *Turn) AskAndWait(ctx context.Context) Verdict {
	q := &t.questions[0]
	*q = q.Again()
	q.AskAndWait(ctx, 0, true)
	return t.options.conclude(ctx, t.questions, false)
}

// Sleep waits for d, or until what the request waits for in flight comes back here, which is at any moment. If ctx ends before
// that, it returns an error, at once if it knows so in advance.
func (t *Turn) Sleep(ctx context.Context, d time.Duration) error {
	if !t.inFlight {
		return Sleep(ctx, d)
	}
	t.options.crowd.await(t)
	timer := time.NewTimer(max(d, time.Millisecond))
	defer timer.Stop()
	select {
	case <-t.freed:
	case <-timer.C:
	case <-ctx.Done():
	}
	t.options.crowd.goOn(t, ctx.Err() == nil)
	return ctx.Err()
}

// Sleep waits for d. If ctx ends before that, it returns an error, at once if it knows so in advance.
func Sleep(ctx context.Context, d time.Duration) error {
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= d {
		return context.DeadlineExceeded
	}
	timer := time.NewTimer(max(d, time.Millisecond))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// await records for which key a refused request waits.
func (t *Turn) await() {
	t.awaited, t.inFlight = "", false
	if q := Longest(t.questions); q != nil {
		t.awaited, t.inFlight = q.Key, q.Limit.InFlight
		t.options.crowd.refused(q.Key, time.Now().Add(q.Wait()))
	}
}

// Longest returns the refused question that has the longest wait, one for which no waiting helps if there is any; nil if none
// was refused.
func Longest(questions []Question) (of *Question) {
	for i := range questions {
		switch q := &questions[i]; {
		case !q.Refused() || q.Limit.Shadow:
		case of == nil, q.Hopeless(), !of.Hopeless() && q.Wait() > of.Wait():
			of = q
		}
	}
	return of
}

// keepable is the part of the time for which a grant counts, or until its limit is full again, for which it may wait for
// others: what leaves much later than it was granted would be more than the limit then.
const keepable = 8

// keep decides which grants are kept until a refused request asks again, if it does. No place in flight waits for another:
// two requests that each have what the other waits for would get neither.
func keep(questions []Question, asksAgain bool) {
	place := slices.ContainsFunc(questions, func(q Question) bool { return q.Refused() && q.Limit.InFlight && !q.Limit.Shadow })
	for i := range questions {
		q := &questions[i]
		q.kept = asksAgain && q.State == Granted && !q.Returned && (!place || !q.Limit.InFlight)
	}
	wait := RetryAfter(Live(questions))
	for i := range questions {
		q := &questions[i]
		late := time.Since(q.answered) + wait // when the request leaves
		q.kept = q.kept && wait > 0 && late <= cmp.Or(q.lasts, q.Decision.ResetAfter, q.Limit.Window())/keepable
	}
}

// crowd knows of the requests that ask limits or wait for them, by key.
type crowd struct {
	mu   sync.Mutex
	keys map[string]*demand
	came uint64 // how many

	frees atomic.Uint64 // how often something in flight came back
}

// demand is what requests want of a key.
type demand struct {
	requests int
	until    time.Time // when the last of them that was refused could pass; zero: none was
	line     []*Turn   // those that wait for what is in flight, in the order in which they came
	freed    uint64    // what had come back by then, when some of it last did
}

// enter counts in a request, and reports whether others ask about the key.
func (c *crowd) enter(key string, t *Turn) (others bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.came++
	t.came = c.came
	if c.keys == nil {
		c.keys = make(map[string]*demand)
	}
	d := c.keys[key]
	if d == nil {
		d = &demand{}
		c.keys[key] = d
	}
	d.requests++
	return d.requests > 1
}

// leave counts a request out.
func (c *crowd) leave(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.keys[key]; d.requests > 1 {
		d.requests--
	} else {
		delete(c.keys, key)
	}
}

// refused notes when a request that was refused could pass.
func (c *crowd) refused(key string, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys[key].until = until
}

// await puts a request in line for what it waits for in flight, unless some has come back since it asked.
func (c *crowd) await(t *Turn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t.freed = make(chan struct{})
	d := c.keys[t.awaited]
	if d.freed > t.frees {
		close(t.freed)
		return
	}
	at, _ := slices.BinarySearchFunc(d.line, t, byCame)
	d.line = slices.Insert(d.line, at, t)
}

// goOn takes a request out of the line. If it was woken and does not ask, the next is woken.
func (c *crowd) goOn(t *Turn, asks bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.keys[t.awaited]
	if at, inLine := slices.BinarySearchFunc(d.line, t, byCame); inLine {
		d.line = slices.Delete(d.line, at, at+1)
	} else if !asks {
		d.wakeFirst()
	}
}

func byCame(a, b *Turn) int { return cmp.Compare(a.came, b.came) }

// freed wakes the request that has waited longest for what is in flight of a key.
func (c *crowd) freed(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.keys[key]; d != nil {
		d.freed = c.frees.Add(1)
		d.wakeFirst()
	}
}

func (d *demand) wakeFirst() {
	if len(d.line) > 0 {
		close(d.line[0].freed)
		d.line = slices.Delete(d.line, 0, 1)
	}
}

// rank is where a round stands in the order in which a request asks.
type rank struct {
	own   bool      // the request waits for it
	until time.Time // when the last request that it refused could pass
}

// sort puts first what the request itself waits for, and then what has refused requests for the longest. Places in flight stay
// together in the order of the policies: of two requests that want the same places one gets them all.
func (c *crowd) sort(all []*round, awaited string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ranks, places := make(map[*round]*rank, len(all)), &rank{}
	for _, r := range all {
		of := &rank{}
		if slices.ContainsFunc(r.parts, func(p part) bool { return p.question.Limit.InFlight }) {
			of = places
		}
		ranks[r] = of
		for _, p := range r.parts {
			of.own = of.own || p.question.Key == awaited
			if at := c.keys[p.question.Key].until; at.After(of.until) {
				of.until = at
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *round) int {
		switch first, second := ranks[a], ranks[b]; {
		case first.own == second.own:
			return second.until.Compare(first.until)
		case first.own:
			return -1
		default:
			return 1
		}
	})
}
