package rratelimiter

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/meet"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// MaxLimiters is how many limiters TryAcquireAll takes at most.
const MaxLimiters = 32

// TryAcquireAll takes permits from every one of the limiters or from none, and
// tells whether it did: so many from each, for example from one of 10 a second,
// one of 1000 an hour and one of the user. It is one decision, made by one
// script: no limiter is charged where another refuses.
//
// The limiters are handles of this Client, up to MaxLimiters, each once. Their
// names share a hash tag, as in "{shop}:second" and "{shop}:hour", so that a
// cluster keeps them on one server; else it is ErrUnsupported, whatever the
// server is.
//
// With a timeout of 0 or less it asks once. With more it asks again when all
// that refused said that they could grant, in time to keep those with a KeepAlive
// time alive, and at once where this Client releases permits of one of the
// limiters or changes it; it does not stand in their lines. All else is as with
// [RateLimiter.TryAcquire]. An error that one limiter is the cause of says which;
// nothing is taken from any then. Where Redissons before 3.13.3 share the limiters
// it is ErrUnsupported.
func (c *Client) TryAcquireAll(ctx context.Context, permits int64, timeout time.Duration, limiters ...*RateLimiter) (bool, error) {
	ok, err := c.tryAcquireAll(ctx, permits, timeout, limiters)
	if err == nil {
		return ok, nil
	}
	const op = "TryAcquireAll"
	if of, known := errors.AsType[*limiterError](err); known {
		return false, &limiterError{op: op, name: of.name, err: of.err}
	}
	return false, fmt.Errorf("rratelimiter: %s: %w", op, err)
}

// tryAcquireAll is TryAcquireAll, but for the name of the call in its errors.
func (c *Client) tryAcquireAll(ctx context.Context, permits int64, timeout time.Duration, limiters []*RateLimiter) (bool, error) {
	if err := c.checkAll(limiters); err != nil {
		return false, err
	}
	if permits < 1 || permits > MaxPermits {
		return false, fmt.Errorf("%w: %d is not between 1 and %d", ErrInvalidPermits, permits, int64(MaxPermits))
	}
	if c.rules.windowed() {
		return false, c.rules.unsupported("TryAcquireAll")
	}
	if len(limiters) == 1 {
		return limiters[0].TryAcquire(ctx, permits, timeout)
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	b := c.newBundle(permits, limiters)
	if err := b.enter(); err != nil {
		return false, err
	}
	defer b.leave()
	return b.acquire(ctx, timeout)
}

// checkAll tells why limiters can't go together in one decision.
func (c *Client) checkAll(limiters []*RateLimiter) error {
	if c.err != nil {
		return c.err
	}
	if len(limiters) == 0 || len(limiters) > MaxLimiters {
		return fmt.Errorf("%w: %d limiters are given, not between 1 and %d", ErrInvalidConfig, len(limiters), MaxLimiters)
	}
	owners := make(map[string]*RateLimiter, 5*len(limiters))
	for i, l := range limiters {
		switch {
		case l == nil:
			return fmt.Errorf("%w: limiter %d of %d is nil", ErrInvalidConfig, i+1, len(limiters))
		case l.client != c:
			return l.blame(fmt.Errorf("%w: the limiter is a handle of another Client", ErrInvalidConfig))
		case l.err != nil:
			return l.blame(l.err)
		}
		for _, key := range l.keys.Names() {
			other := owners[key]
			switch {
			case other == nil:
				owners[key] = l
			case other.keys.Names()[0] == l.keys.Names()[0]:
				return l.blame(fmt.Errorf("%w: the limiter is given twice; ask it for the sum of the permits", ErrInvalidConfig))
			case other != l:
				return l.blame(fmt.Errorf("%w: %q is a key of the limiter %q too", ErrInvalidConfig, key, other.name))
			}
		}
	}
	if len(limiters) == 1 {
		return nil // the server tells
	}
	first := limiters[0].keys.Names()[0]
	for _, l := range limiters {
		for _, key := range l.keys.Names() {
			if hashTag(key) == hashTag(first) {
				continue
			}
			if l == limiters[0] {
				return l.blame(fmt.Errorf("%w: the keys %q fall in different slots of a cluster: "+
					"name the limiter with one hash tag, as in \"{shop}:hour\"", ErrUnsupported, l.keys.Names()))
			}
			return l.blame(fmt.Errorf("%w: %q and %q have no hash tag in common, so that a cluster would keep them apart: "+
				"begin the names of all with the same word in braces, as in \"{shop}:second\" and \"{shop}:hour\"",
				ErrUnsupported, first, l.keys.Names()[0]))
		}
	}
	return nil
}

// bundle is one caller's wish for the same permits of several limiters.
type bundle struct {
	client   *Client
	limiters []*RateLimiter
	keys     *script.Keys // of all of them
	queues   []*queue     // theirs, in the order of their names
	permits  int64
	patience time.Duration // while servers change places

	member []byte        // of the last attempt
	sent   time.Time     // when that was first sent
	woken  chan struct{} // holds one where permits may have become free since
}

func (c *Client) newBundle(permits int64, limiters []*RateLimiter) *bundle {
	names := make([]string, 0, 5*len(limiters))
	for _, l := range limiters {
		names = append(names, l.keys.Names()...)
	}
	return &bundle{
		client:   c,
		limiters: limiters,
		keys:     script.KeysOf(names...),
		permits:  permits,
		woken:    make(chan struct{}, 1),
	}
}

// verdict is the script's answer.
type verdict struct {
	granted bool
	wait    time.Duration   // until none of those that refused would
	keeps   []time.Duration // of each limiter the keep-alive time, which was started anew; 0 for none
	sent    time.Time
}

// ask makes one attempt, and returns early when ctx ends: what is granted then
// goes back.
func (b *bundle) ask(ctx context.Context) (verdict, error) {
	if ctx.Done() == nil {
		b.begin()
		defer b.end()
		return b.decide(ctx)
	}
	var v verdict
	var err error
	var settled atomic.Bool // the answer is there, or nobody waits for it
	done := make(chan struct{})
	own := *b // the caller may have gone when the answer comes
	for _, q := range own.queues {
		own.client.stay(q)
	}
	go func() {
		defer own.leave()
		own.begin()
		defer own.end()
		if settled.Load() {
			return // nothing was sent
		}
		ctx := context.WithoutCancel(ctx)
		v, err = own.decide(ctx)
		if !settled.CompareAndSwap(false, true) && v.granted {
			own.giveBack(ctx)
		}
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		if settled.CompareAndSwap(false, true) {
			return verdict{}, ctx.Err()
		}
		<-done
	}
	return v, err
}

// decide sends an attempt, as often as the script asks for it.
func (b *bundle) decide(ctx context.Context) (verdict, error) {
	refused := false
	defer func() {
		for _, q := range b.queues {
			if !refused {
				q.granted()
			}
		}
	}()
	for {
		b.member = b.client.identity(nil, 1)
		setPermits(b.member, b.permits)
		b.sent = time.Now()
		reply, err := b.attempt(ctx)
		if isTaken(reply, err) {
			b.client.attempts.Add(mathrand.Uint64N(1 << numberBits(b.client.rules.layout)))
			continue
		}
		if err != nil {
			return verdict{}, b.explain(ctx, err)
		}
		v, err := b.parse(reply)
		refused = err == nil && !v.granted
		return v, err
	}
}

// attempt sends the attempt until it is decided.
func (b *bundle) attempt(ctx context.Context) (any, error) {
	call := script.Call{Script: lua.AcquireAll, Keys: b.keys, Patience: b.patience}
	return b.client.untilDecided(ctx, call, func(words []any, age time.Duration, token string) []any {
		ageText := ""
		if age >= 0 {
			ageText = formatAge(age)
		}
		words = append(words, b.member, meet.Number(b.permits), b.client.rules.letters(), ageText, token)
		for _, l := range b.limiters {
			word := l.fallback
			if l.auditDue(b.sent) {
				word = "a" + word
			}
			words = append(words, word)
		}
		return words
	})
}

// parse reads the script's answer.
func (b *bundle) parse(reply any) (verdict, error) {
	v := verdict{sent: b.sent}
	if _, v.granted = reply.(int64); v.granted {
		return v, nil
	}
	values, _ := reply.([]any)
	if len(values) == 3 && values[0] == "exceeds" {
		numbers, err := integers(values[1:], 2)
		if err != nil {
			return verdict{}, err
		}
		err = errExceeds(b.permits, numbers[1])
		if l := b.limiter(numbers[0]); l != nil {
			err = l.blame(err)
		}
		return verdict{}, err
	}
	numbers, err := integers(reply, len(values))
	if err != nil {
		return verdict{}, err
	}
	all := len(b.limiters)
	if len(numbers) <= all || (len(numbers)-all)%3 != 0 {
		return verdict{}, fmt.Errorf("unexpected answer of a script: %v", reply)
	}
	for _, keep := range numbers[:all] {
		v.keeps = append(v.keeps, meet.Millis(keep))
	}
	for refusal := range slices.Chunk(numbers[all:], 3) {
		v.wait = max(v.wait, meet.Millis(max(refusal[1], -refusal[1])))
		if l := b.limiter(refusal[0]); l != nil && l.auditDue(b.sent) {
			l.auditDone(time.Now(), meet.Millis(refusal[2]))
		}
	}
	return v, nil
}

// limiter returns the one of that number, from 1; nil where there is none.
func (b *bundle) limiter(number int64) *RateLimiter {
	if number < 1 || number > int64(len(b.limiters)) {
		return nil
	}
	return b.limiters[number-1]
}

// explain is Client.explain, and says which limiter the error speaks of.
func (b *bundle) explain(ctx context.Context, err error) error {
	var number int64
	if answer, ok := errors.AsType[redis.Error](err); ok {
		code := script.Code(answer)
		word, _, _ := strings.Cut(strings.TrimPrefix(answer.Error(), code+" "), " ")
		switch n, _ := strconv.ParseInt(word, 10, 64); code {
		case "NOTINIT":
			number = n
		case "CORRUPT":
			number = (n + 4) / 5 // of the key
		case "WRONGTYPE":
			return b.explainType(ctx, err)
		}
	}
	err = b.client.explain(ctx, b.keys.Names(), err)
	if l := b.limiter(number); l != nil {
		return l.blame(err)
	}
	return err
}

// explainType finds the key of the wrong type.
func (b *bundle) explainType(ctx context.Context, err error) error {
	for _, l := range b.limiters {
		explained := b.client.explainType(ctx, l.keys.Names(), err)
		if !errors.Is(explained, err) { // which it wraps where it found none
			return l.blame(explained)
		}
	}
	return fmt.Errorf("%w: %w", ErrCorrupt, err)
}

// blame says which limiter an error of several speaks of.
func (l *RateLimiter) blame(err error) error { return l.fail("", err) }

// giveBack returns what the attempt was granted, as its caller went away.
func (b *bundle) giveBack(ctx context.Context) {
	var wg sync.WaitGroup
	for _, l := range b.limiters {
		wg.Go(func() {
			_ = b.client.giveBackGrant(ctx, l.keys, grant{b.member, b.permits}, b.sent)
			b.client.wake(l.keys.Names()[0])
		})
	}
	wg.Wait()
}

// enter counts the call in at each limiter's queue; leave counts it out.
func (b *bundle) enter() error {
	for _, l := range b.limiters {
		q, err := b.client.enter(l)
		if err != nil {
			b.leave()
			return err
		}
		b.queues = append(b.queues, q)
	}
	slices.SortFunc(b.queues, func(a, b *queue) int { return strings.Compare(a.keys.Names()[0], b.keys.Names()[0]) })
	return nil
}

func (b *bundle) leave() {
	for _, q := range b.queues {
		b.client.leave(q)
	}
}

// begin has an attempt hold up the jobs of all its queues until end, as a batch
// does: while its outcome is in doubt its members must stay as they were written.
// Jobs that came before are done first. Attempts go through the queues in the
// same order, so that none waits for another that waits for it.
func (b *bundle) begin() {
	for _, q := range b.queues {
		q.mu.Lock()
		if !q.jobsBefore() {
			q.bundles++
			q.mu.Unlock()
			continue
		}
		admitted := make(chan struct{})
		q.behind = append(q.behind, admitted)
		q.mu.Unlock()
		<-admitted
	}
}

func (b *bundle) end() {
	for _, q := range b.queues {
		q.mu.Lock()
		q.bundles--
		q.start()
		q.mu.Unlock()
	}
}

// jobsBefore tells whether an attempt of a bundle that comes now waits for a job.
func (q *queue) jobsBefore() bool { return q.jobs.Len() > 0 || q.jobNow }

// admit lets those attempts begin that have waited for a job.
func (q *queue) admit() {
	q.bundles += len(q.behind)
	for _, admitted := range q.behind {
		close(admitted)
	}
	q.behind = nil
}
