package httplimit

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// What a local limiter keeps at most.
const (
	// localKeys is how many keys. Beyond that the one not asked for the longest
	// time is forgotten.
	localKeys = 1 << 15

	// localExact is how many grants of a key are kept apart. Those after that
	// within one localExact-th of the window are kept as one, as of the last.
	localExact = 32
)

// Local returns a limiter that keeps its state in this process: a sliding window
// of so many permits for each key, for [Fallback]. Each process has its own, so
// that n of them grant up to n times as much as the one in Redis.
//
// No span of a window's length ever has more than permits. Up to 32 grants in it
// give their permits back after exactly a window; where there are more, some do
// up to a 32nd of a window later. It keeps 32,768 keys; beyond these, the key
// that was not asked for the longest time starts anew.
//
// It is also a [limit.Returner] and a [limit.Windowed].
func Local(permits int64, window time.Duration) limit.Limiter {
	l := &local{limit: permits, window: window, start: time.Now(), keys: map[string]*localLog{}}
	l.ring.newer, l.ring.older = &l.ring, &l.ring
	return l
}

type local struct {
	limit  int64
	window time.Duration
	start  time.Time // times below are durations since

	mu   sync.Mutex
	keys map[string]*localLog
	ring localLog // stands before the key asked last and after the oldest
}

// localLog is the grants of one key, oldest first.
type localLog struct {
	key    string
	used   int64 // the sum of grants
	grants []localGrant

	newer, older *localLog // by when they were asked
}

// localGrant is permits taken from first to last. They run out together.
type localGrant struct {
	first, last time.Duration
	n           int64
}

func (l *local) Window() time.Duration { return l.window }

func (l *local) Take(ctx context.Context, key string, n int64) (limit.Decision, error) {
	d, _, err := l.take(ctx, key, n)
	return d, err
}

func (l *local) TakeReturnable(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context) error, error) {
	d, at, err := l.take(ctx, key, n)
	if err != nil || !d.Granted {
		return d, nil, err
	}
	giveBack := func(context.Context) error {
		l.giveBack(key, at, n)
		return nil
	}
	return d, giveBack, nil
}

func (l *local) take(ctx context.Context, key string, n int64) (limit.Decision, time.Duration, error) {
	switch {
	case l.limit < 1 || l.window <= 0:
		return limit.Decision{}, 0, fmt.Errorf("httplimit: Local: %w: limit %d, window %v", limit.ErrInvalidConfig, l.limit, l.window)
	case n < 1:
		return limit.Decision{}, 0, fmt.Errorf("httplimit: Local: %w: %d", limit.ErrInvalidPermits, n)
	case n > l.limit:
		return limit.Decision{}, 0, fmt.Errorf("httplimit: Local: %w: %d of %d", limit.ErrPermitsExceedRate, n, l.limit)
	case ctx.Err() != nil:
		return limit.Decision{}, 0, ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Since(l.start)
	l.sweep(now)
	log := l.log(key)
	log.expire(now - l.window)
	d := limit.Decision{Limit: l.limit, Granted: n <= l.limit-log.used}
	if d.Granted {
		log.add(now, n, l.window/localExact)
	} else {
		d.RetryAfter = log.freed(n-(l.limit-log.used)) + l.window - now
	}
	d.Remaining = l.limit - log.used
	d.ResetAfter = log.grants[len(log.grants)-1].last + l.window - now
	return d, now, nil
}

// sweep forgets the least recently asked keys that hold nothing any more, a few
// at a time.
func (l *local) sweep(now time.Duration) {
	for range 2 {
		oldest := l.ring.newer
		if oldest == &l.ring {
			return
		}
		if oldest.expire(now - l.window); oldest.used > 0 {
			return
		}
		l.forget(oldest)
	}
}

func (l *local) forget(log *localLog) {
	delete(l.keys, log.key)
	log.unlink()
}

// log returns the log of key, which is now the one asked last.
func (l *local) log(key string) *localLog {
	log, ok := l.keys[key]
	if ok {
		log.unlink()
	} else {
		if len(l.keys) >= localKeys {
			l.forget(l.ring.newer)
		}
		log = &localLog{key: key}
		l.keys[key] = log
	}
	log.newer, log.older = &l.ring, l.ring.older
	log.older.newer, l.ring.older = log, log
	return log
}

func (log *localLog) unlink() {
	log.newer.older, log.older.newer = log.older, log.newer
}

func (l *local) giveBack(key string, at time.Duration, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	log, ok := l.keys[key]
	if !ok {
		return
	}
	// Grants of the same moment are as good as one.
	for i := len(log.grants) - 1; i >= 0 && n > 0; i-- {
		g := &log.grants[i]
		if at < g.first || at > g.last {
			continue
		}
		back := min(n, g.n)
		n -= back
		log.used -= back
		if g.n -= back; g.n == 0 {
			log.grants = slices.Delete(log.grants, i, i+1)
		}
	}
}

// expire drops what was granted at or before then.
func (log *localLog) expire(then time.Duration) {
	gone := 0
	for gone < len(log.grants) && log.grants[gone].last <= then {
		log.used -= log.grants[gone].n
		gone++
	}
	log.grants = slices.Delete(log.grants, 0, gone)
}

// add notes a grant. Beyond localExact of them it goes to the newest if that
// began less than grain ago.
func (log *localLog) add(now time.Duration, n int64, grain time.Duration) {
	log.used += n
	if last := len(log.grants) - 1; last+1 >= localExact && now-log.grants[last].first < grain {
		log.grants[last].last = now
		log.grants[last].n += n
		return
	}
	log.grants = append(log.grants, localGrant{now, now, n})
}

// freed returns when the last of so many permits was taken, oldest first. There
// are as many.
func (log *localLog) freed(n int64) (at time.Duration) {
	for i := 0; n > 0; i++ {
		n -= log.grants[i].n
		at = log.grants[i].last
	}
	return at
}
