package meet

import (
	"context"
	"fmt"
	"sync"

	"github.com/rratelimiter/rratelimiter/internal/chain"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Rule is how one kind of limiter decides.
type Rule struct {
	// Package names the limiter in errors.
	Package string

	// Err is what is wrong with the limiter's configuration: nothing is asked then.
	Err error

	// Most is the most permits that one call may decide about.
	Most int64

	// Limit is the most permits that there can ever be at once, 0 where only Redis
	// knows.
	Limit int64

	// Check tells why a key can't be had: it leads to what the limiter keeps beside
	// its keys. nil: all can.
	Check func(key string) error

	// Decide has the requests of a batch decided for a key, in one script call.
	Decide func(ctx context.Context, key string, b *Batch) (Verdict, error)
}

// Verdict is what came of a batch.
type Verdict struct {
	Outcome

	// GiveBack undoes the grant of so many of the permits taken. It may be
	// called more than once, also at the same time, until all are undone.
	GiveBack func(ctx context.Context, permits int64) error
}

// Table is where the callers of one limiter meet, those of each key by
// themselves. While a call for a key is on its way, requests for it gather;
// then all of them go together. A caller that finds its key free goes at once.
type Table struct {
	rule Rule

	mu    sync.Mutex
	seats map[string]*seat // of the keys that a call is on its way for
}

// seat is where the requests for one key gather.
type seat struct {
	key     string
	waiting chain.List[*request]
}

type request struct {
	permits int64
	place   chain.Link[*request] // among those that wait
	state   state
	verdict *Verdict
	answer  Answer
	err     error
	done    chan struct{} // closed with the answer; nil while nobody waits for it
}

type state int

const (
	queued state = iota
	inFlight
	left     // the caller went away while its request was in flight
	answered // the answer is there
)

// NewTable returns the Table of a rule.
func NewTable(rule Rule) *Table {
	return &Table{rule: rule, seats: make(map[string]*seat)}
}

// Take asks for permits of a key, and comes back with the decision and what
// undoes a grant. op names the limiter's method in errors. When ctx ends it returns
// ctx.Err() at once; what is granted nevertheless is given back.
func (t *Table) Take(ctx context.Context, op, key string, permits int64) (limit.Decision, func(context.Context) error, error) {
	d, giveBack, err := t.take(ctx, key, permits)
	return d, giveBack, Fail(t.rule.Package, op, key, err)
}

func (t *Table) take(ctx context.Context, key string, permits int64) (limit.Decision, func(context.Context) error, error) {
	switch most := t.rule.Limit; {
	case t.rule.Err != nil:
		return limit.Decision{}, nil, t.rule.Err
	case key == "":
		return limit.Decision{}, nil, fmt.Errorf("%w: the key is empty", limit.ErrInvalidConfig)
	case permits < 1 || permits > t.rule.Most:
		return limit.Decision{}, nil, fmt.Errorf("%w: %d is not between 1 and %d", limit.ErrInvalidPermits, permits, t.rule.Most)
	case most > 0 && permits > most:
		return limit.Decision{Limit: most}, nil, exceeds(permits, most)
	case ctx.Err() != nil:
		return limit.Decision{}, nil, ctx.Err()
	}
	if check := t.rule.Check; check != nil {
		if err := check(key); err != nil {
			return limit.Decision{}, nil, err
		}
	}
	r := &request{permits: permits}
	r.place.Element = r
	t.mu.Lock()
	s := t.seats[key]
	lead := s == nil
	if lead {
		s = &seat{key: key}
		t.seats[key] = s
	}
	s.waiting.Push(&r.place)
	alone := lead && ctx.Done() == nil
	if !alone {
		r.done = make(chan struct{})
	}
	t.mu.Unlock()

	switch {
	case alone:
		t.first(ctx, s)
	case lead:
		go t.work(context.WithoutCancel(ctx), s)
		fallthrough
	default:
		select {
		case <-r.done:
		case <-ctx.Done():
			if t.abandon(r) {
				return limit.Decision{}, nil, ctx.Err()
			}
		}
	}
	return r.take()
}

// take returns what the request was told.
func (r *request) take() (limit.Decision, func(context.Context) error, error) {
	a := r.answer
	switch {
	case r.err != nil:
		return limit.Decision{}, nil, r.err
	case a.Exceeds:
		return a.Decision, nil, exceeds(r.permits, a.Decision.Limit)
	case !a.Decision.Granted:
		return a.Decision, nil, nil
	}
	return a.Decision, func(ctx context.Context) error { return r.verdict.GiveBack(ctx, r.permits) }, nil
}

// abandon takes a request back whose caller's context has ended. It tells false
// where the answer is there.
func (t *Table) abandon(r *request) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch r.state {
	case answered:
		return false
	case inFlight:
		r.state = left
	case queued:
		r.place.Leave()
	}
	return true
}

// first does what a caller alone has asked for on its own goroutine, and leaves
// the rest to others.
func (t *Table) first(ctx context.Context, s *seat) {
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if s.waiting.Len() > 0 {
			go t.work(ctx, s)
		} else {
			delete(t.seats, s.key)
		}
	}()
	t.mu.Lock()
	b, requests := t.board(s)
	t.mu.Unlock()
	if panicked := t.step(ctx, s, b, requests); panicked != nil {
		panic(panicked)
	}
}

// work decides what has gathered until nothing is left.
func (t *Table) work(ctx context.Context, s *seat) {
	for {
		t.mu.Lock()
		if s.waiting.Len() == 0 {
			delete(t.seats, s.key)
			t.mu.Unlock()
			return
		}
		b, requests := t.board(s)
		t.mu.Unlock()
		t.step(ctx, s, b, requests)
	}
}

// board makes a batch of those that wait. t.mu is held.
func (t *Table) board(s *seat) (b *Batch, requests []*request) {
	b = &Batch{}
	for place := s.waiting.First(); place != nil; place = s.waiting.First() {
		r := place.Element
		if len(requests) > 0 && r.permits > t.rule.Most-b.Sum || !b.Add(r.permits, false, 0) {
			break
		}
		place.Leave()
		r.state = inFlight
		requests = append(requests, r)
	}
	return b, requests
}

// step decides one batch. Where a hook of the Redis client's panics on the way,
// all its callers hear of it: in a goroutine that is nobody's it would end the
// process. What it panicked with is returned.
func (t *Table) step(ctx context.Context, s *seat, b *Batch, requests []*request) (panicked any) {
	v, err := Verdict{}, error(nil)
	defer func() {
		if panicked = recover(); panicked != nil {
			err = fmt.Errorf("%w: a hook of the Redis client panicked: %v", limit.ErrUnknownOutcome, panicked)
		}
		if unwanted := t.tell(requests, b, &v, err); unwanted > 0 {
			go func() { _ = v.GiveBack(ctx, unwanted) }()
		}
	}()
	v, err = t.rule.Decide(ctx, s.key, b)
	return nil
}

// tell gives each request its answer. It returns the permits that were granted
// to callers who have gone.
func (t *Table) tell(requests []*request, b *Batch, v *Verdict, err error) (unwanted int64) {
	answers := make([]Answer, len(requests))
	if err == nil {
		answers = b.Answers(answers[:0], v.Outcome)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, r := range requests {
		if r.state == left && answers[i].Decision.Granted {
			unwanted += r.permits
		}
		r.state, r.answer, r.verdict, r.err = answered, answers[i], v, err
		if r.done != nil {
			close(r.done)
		}
	}
	return unwanted
}

// ParseVerdict reads what the scripts of the limiters answer: limit, free, taken,
// mark, reset, waits... The mark is the limiter's own.
func ParseVerdict(reply any) (v Verdict, mark int64, err error) {
	numbers, err := Integers(reply, 5)
	if err != nil {
		return Verdict{}, 0, err
	}
	return Verdict{Outcome: Outcome{
		Limit: numbers[0],
		Free:  numbers[1],
		Taken: numbers[2],
		Reset: Millis(numbers[4]),
		Waits: numbers[5:],
	}}, numbers[3], nil
}
