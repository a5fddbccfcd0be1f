package rratelimiter

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"runtime"
	"sync/atomic"
	"time"
	"weak"

	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/limit"
)

// WithRefusalCache has a handle remember that permits were refused. The
// guarantee: a limiter known to be exhausted is not asked again before the moment
// that the server named.
//
// It counts for Take and for TryAcquire with a timeout of 0 or less, of at least
// as many permits as were refused; more than the limiter is known to have in an
// interval are asked for, and so is what Take can't answer with figures. Take's
// RetryAfter and ResetAfter are less by the time that has passed; for more permits
// than were refused, RetryAfter is the least that it can be. Permits that the
// Client takes since, by whichever call, end what is known of the figures, not the
// refusal: Take asks, TryAcquire does not. What others have taken since, and what
// has come free while not all of the permits were, the figures leave out.
//
// The moment is counted from when the refused request was sent, so that nobody is
// refused whom Redis would grant. A Release, SetRate, UpdateRate, Delete, Rename or
// change of the time to live through the same Client ends the refusal early, as
// do permits that the Client gives back; those of other Go programs do so with
// [Notices]. What Redisson releases or sets is noticed at the moment named, not
// before. A limiter with a time to live is asked when half of that is over, if
// that comes first; to know, a refusal for more than 100ms costs one more, small
// script call.
//
// What is remembered belongs to the handle, and handles of one name do not share
// it.
func WithRefusalCache(opts ...RefusalOption) LimiterOption {
	return func(l *RateLimiter) error {
		key := l.config()
		f := &refusals{changes: l.client.changesOf(key), grants: l.client.grantsOf(key)}
		for _, opt := range opts {
			if opt == nil {
				continue
			}
			if err := opt(l, f); err != nil {
				return err
			}
		}
		l.refused = f
		return nil
	}
}

// RefusalOption configures WithRefusalCache.
type RefusalOption func(*RateLimiter, *refusals) error

// Notices has the handle tell other programs of what it changes by Release,
// SetRate and the like, and end its refusals when it is told: by PUBLISH and
// SUBSCRIBE on the channel "{name}:changed", braces as in the limiter's keys. The
// guarantee: at best a refusal ends with the change; where the message is lost
// or nobody is subscribed yet, at the moment that the server named.
//
// A Client subscribes by one connection, for all its limiters, as long as it
// remembers refusals. A Redis given to New that can't Subscribe and Publish, as
// go-redis' clients can, is ErrUnsupported. On a cluster messages go to all
// nodes. An ACL must allow the commands and the channel.
func Notices() RefusalOption {
	return func(l *RateLimiter, f *refusals) error {
		if !canNotice(l.client.rdb) {
			return fmt.Errorf("%w: %w: Notices: a %T has no Subscribe and Publish", ErrInvalidConfig, ErrUnsupported, l.client.rdb)
		}
		f.channel = channelOf(l.facts.Keys.Names()[1])
		return nil
	}
}

// unsureFor is how long a refusal lasts while the limiter's time to live is not
// known.
const unsureFor = 100 * time.Millisecond

// refusals are what a handle remembers.
type refusals struct {
	channel string         // for notices, or ""
	changes *atomic.Uint64 // of the limiter through its Client
	grants  *grants        // likewise
	tries   slot           // answers TryAcquire
	figures slot           // answers Take
	reading atomic.Bool    // the time to live is being read
}

// slot holds a refusal.
type slot struct{ atomic.Pointer[refusal] }

// refusal is the answer to a request that was refused. It is not changed.
type refusal struct {
	permits  int64
	most     int64 // the most permits that are known to be within the rate
	sent     time.Time
	lasts    time.Duration // from then
	life     time.Duration // from then, for which the limiter is known to live
	unsure   bool          // it may last longer: the limiter's time to live is not known
	before   counts
	decision limit.Decision
}

// counts is how often the limiter was changed, and permits of it granted, as far as
// is known.
type counts struct{ changes, grants uint64 }

func (f *refusals) count() counts {
	if f == nil {
		return counts{}
	}
	return counts{f.changes.Load(), f.grants.count.Load()}
}

// since tells whether what was told at that time still holds: a grant makes a
// refusal no less true, but its figures.
func (f *refusals) since(s *slot, before counts) bool {
	now := f.count()
	return before.changes == now.changes && (s == &f.tries || before.grants == now.grants)
}

// valid tells whether the refusal still holds.
func (f *refusals) valid(s *slot, a *refusal) bool {
	return a != nil && f.since(s, a.before) && time.Since(a.sent) < a.lasts
}

// find returns the refusal that answers a request, nil where there is none.
func (f *refusals) find(s *slot, permits int64) *refusal {
	a := s.Load()
	if a == nil || permits < a.permits || permits > a.most || !f.valid(s, a) {
		return nil
	}
	return a
}

// note remembers a refusal that was asked for when the counts were these.
func (f *refusals) note(permits int64, sent time.Time, before counts, d limit.Decision) {
	if f == nil || d.RetryAfter <= 0 || !f.since(&f.tries, before) {
		return
	}
	a := &refusal{
		permits: permits, most: max(permits, d.Limit), sent: sent, before: before, decision: d,
		lasts: min(d.RetryAfter, unsureFor), unsure: d.RetryAfter > unsureFor,
	}
	if old := f.tries.Load(); f.valid(&f.tries, old) && old.life > 0 {
		a.settle(old.life - sent.Sub(old.sent))
	}
	if d.ResetAfter > 0 && f.since(&f.figures, before) { // all figures were told
		f.put(&f.figures, a)
	}
	f.put(&f.tries, a)
}

// settle makes a refusal last as long as it may for a limiter that lives so long.
func (a *refusal) settle(life time.Duration) {
	a.life, a.unsure, a.lasts = life, false, min(a.decision.RetryAfter, life)
}

// remember is note for a request that was refused.
func (f *refusals) remember(permits int64, before counts, a engine.Answer) {
	d := a.Decision
	if a.AtLeast {
		d.ResetAfter = 0 // these are no figures for Take
	}
	f.note(permits, a.Sent, before, d)
}

// put keeps the refusal of the fewest permits, and what is known of the rate.
func (f *refusals) put(s *slot, a *refusal) {
	for {
		old, kept := s.Load(), a
		if old != nil && f.since(s, old.before) && (old.most > a.most || old.permits < a.permits) {
			both := *a
			if old.permits < a.permits && f.valid(s, old) {
				both = *old
			}
			both.most = max(old.most, a.most)
			kept = &both
		}
		if s.CompareAndSwap(old, kept) {
			return
		}
	}
}

// refuse answers a request from what the handle remembers, without a round trip.
func (l *RateLimiter) refuse(ctx context.Context, permits int64) bool {
	f := l.refused
	return f != nil && f.find(&f.tries, permits) != nil && ctx.Err() == nil
}

// refusal is refuse with the figures as they are now.
func (l *RateLimiter) refusal(ctx context.Context, permits int64) (limit.Decision, bool) {
	f := l.refused
	if f == nil {
		return limit.Decision{}, false
	}
	a := f.find(&f.figures, permits)
	if a == nil || ctx.Err() != nil {
		return limit.Decision{}, false
	}
	d, age := a.decision, time.Since(a.sent)
	d.RetryAfter = max(1, d.RetryAfter-age)
	d.ResetAfter = max(1, d.ResetAfter-age)
	return d, true
}

// confirm makes new refusals last until the moment that the server named, or
// half as long as the limiter lives: a time to live that each request starts anew
// must not run out for want of requests.
func (l *RateLimiter) confirm(ctx context.Context) {
	f := l.refused
	if f == nil {
		return
	}
	defer l.listen()
	unsure := func(s *slot) bool {
		a := s.Load()
		return a != nil && a.unsure && f.valid(s, a)
	}
	if !unsure(&f.tries) && !unsure(&f.figures) || !f.reading.CompareAndSwap(false, true) {
		return
	}
	defer f.reading.Store(false)
	now := time.Now()
	ms, err := l.ttl(ctx)
	if err != nil || ms == -2 {
		return
	}
	for _, s := range []*slot{&f.tries, &f.figures} {
		if a := s.Load(); a != nil && a.unsure {
			sure, life := *a, time.Duration(math.MaxInt64/2) // to spare for sums
			if ms >= 0 {
				life = now.Sub(a.sent) + lane.Millis(ms)/2
			}
			sure.settle(life)
			s.CompareAndSwap(a, &sure)
		}
	}
}

// changes counts for each limiter how often it was changed, as far as a Client
// knows. Limiters may share a count: then one that is changed ends another's
// refusals, which costs a request.
type changes [1024]atomic.Uint64

var changesSeed = maphash.MakeSeed()

// changesOf returns the count of the limiter of that key.
func (c *Client) changesOf(key string) *atomic.Uint64 {
	return &c.changes[maphash.String(changesSeed, key)%uint64(len(c.changes))]
}

// countChange is told that permits of the limiter of that key may have become free.
func (c *Client) countChange(key string) { c.changesOf(key).Add(1) }

// forgetRefusals ends those of all limiters.
func (c *Client) forgetRefusals() {
	for i := range c.changes {
		c.changes[i].Add(1)
	}
}

// grants counts how often permits of a limiter were taken through a Client, for
// those who remember figures. Unlike changes it is the limiter's alone: a busy
// limiter would leave others that share its count nothing to remember.
type grants struct {
	key   string
	count atomic.Uint64
}

// grantsOf returns the count of the limiter of that key. The Client keeps it for as
// long as somebody else does.
func (c *Client) grantsOf(key string) *grants {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.counted[key].Value()
	if g != nil {
		return g
	}
	g = &grants{key: key}
	if c.counted == nil {
		c.counted = make(map[string]weak.Pointer[grants])
	}
	c.counted[key] = weak.Make(g)
	runtime.AddCleanup(g, c.uncount, key)
	c.remembering.Store(true)
	return g
}

// uncount forgets a count that nobody keeps.
func (c *Client) uncount(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counted[key].Value() == nil {
		delete(c.counted, key)
	}
}

// countGrant is told that permits of the limiter of that key were taken, or may have
// been.
func (c *Client) countGrant(key string) {
	if !c.remembering.Load() {
		return
	}
	c.mu.Lock()
	g := c.counted[key].Value()
	c.mu.Unlock()
	if g != nil {
		g.count.Add(1)
	}
}

// changing prepares for a call that changes the limiter: leases end. What it
// returns is to be called when the limiter was changed, and tells those who
// remember refusals of it or of others, by their keys.
func (l *RateLimiter) changing(ctx context.Context, others ...string) (changed func()) {
	if l.err != nil {
		return func() {}
	}
	l.client.engine.Recall(ctx, &l.facts)
	return func() {
		l.client.countChange(l.config())
		if l.refused != nil && l.refused.channel != "" {
			l.client.announce(l.refused.channel)
			for _, channel := range others {
				l.client.announce(channel)
			}
		}
	}
}
