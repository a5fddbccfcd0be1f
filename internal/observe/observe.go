// Package observe reports to an observer and a log what limiters do: at once if a caller is at hand, otherwise from a
// goroutine of its own, so that no lock is held while they run; and what they panic with ends nothing.
package observe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// Observer reports to both. A nil one reports nothing, at no cost.
type Observer struct {
	to  limit.Observer // or nil
	log *slog.Logger   // or nil

	mu      sync.Mutex
	queue   []func()
	telling bool
	waiting map[string]int  // callers, by limiter
	changed map[string]bool // limiters in waiting that are in the queue
}

// New returns an Observer, nil if there is neither observer nor log.
func New(to limit.Observer, log *slog.Logger) *Observer {
	if to == nil && log == nil {
		return nil
	}
	return &Observer{to: to, log: log, waiting: make(map[string]int), changed: make(map[string]bool)}
}

// Watches reports whether more than rare events are observed.
func (o *Observer) Watches() bool { return o != nil && o.to != nil }

// Decided reports a call that began at d.Start and ended now. Its outcome follows from granted and err.
func (o *Observer) Decided(ctx context.Context, d limit.Decided, granted bool, err error) {
	if !o.Watches() {
		return
	}
	d.Waited = time.Since(d.Start)
	switch {
	case tooCostly(d.Permits, err):
		d.Outcome = limit.TooCostly
	case err != nil:
		d.Outcome, d.Err, d.Kind = limit.Failed, err, limit.KindOf(err)
	case granted:
		d.Outcome = limit.Granted
	default:
		d.Outcome = limit.Refused
	}
	o.safely(func() { o.to.Decided(ctx, d) })
}

// tooCostly reports whether a request for so many permits was refused because of its size, which a client of the program
// may have chosen: that is no mistake in the program.
func tooCostly(permits int64, err error) bool {
	kind := limit.KindOf(err)
	return kind == limit.KindExceeds || kind == limit.KindInvalid && permits > math.MaxInt32 && errors.Is(err, limit.ErrInvalidPermits)
}

// Landed reports a flight, whose callers wait for what it brings, to an Observer that Watches. The caller
// may hold locks.
func (o *Observer) Landed(f limit.Flight) { o.later(func() { o.to.Landed(f) }) }

// Waiting counts callers that wait for permits of the limiter, or no longer do, for an Observer that Watches. The
// caller may hold locks.
func (o *Observer) Waiting(limiter string, change int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.waiting[limiter] += change; o.waiting[limiter] == 0 {
		delete(o.waiting, limiter)
	}
	if o.changed[limiter] {
		return
	}
	o.changed[limiter] = o.queueLocked(func() {
		o.mu.Lock()
		delete(o.changed, limiter)
		callers := o.waiting[limiter]
		o.mu.Unlock()
		o.to.Waiting(limiter, callers)
	})
}

// Leased reports a lease. The caller may hold locks.
func (o *Observer) Leased(l limit.Lease) {
	if o.Watches() {
		o.later(func() { o.to.Leased(l) })
	}
}

// Settled reports a settlement. The caller may hold locks.
func (o *Observer) Settled(s limit.Settled) {
	if o.Watches() {
		s.Kind = limit.KindOf(s.Err)
		o.later(func() { o.to.Settled(s) })
	}
}

// Happened reports a rare event, also to the log. The caller may hold locks.
func (o *Observer) Happened(e limit.Event) {
	if o == nil {
		return
	}
	if o.to != nil {
		o.later(func() { o.to.Happened(e) })
	}
	if o.log != nil {
		o.later(func() { write(o.log, e) })
	}
}

// write logs what happened: as a warning, unless it is good news.
func write(log *slog.Logger, e limit.Event) {
	var about []slog.Attr
	if e.Limiter != "" {
		about = append(about, slog.String("limiter", e.Limiter))
	}
	if e.Permits != 0 {
		about = append(about, slog.Int64("permits", e.Permits))
	}
	if e.Want != (limit.Rate{}) {
		about = append(about, slog.String("found", e.Found.String()), slog.String("want", e.Want.String()))
	}
	if e.Err != nil {
		about = append(about, slog.Any("error", e.Err))
	}
	if e.Kind == limit.LayoutsExclude {
		about = append(about, slog.String("cure", "name the oldest Redisson that shares it in WithRedissonVersion"))
	}
	level := slog.LevelWarn
	if e.Kind == limit.ServerAnswers || e.Kind == limit.AskedAgain || e.Kind == limit.ReplicasKeepUp {
		level = slog.LevelInfo
	}
	log.LogAttrs(context.Background(), level, "rratelimiter: "+string(e.Kind), about...)
}

// maxBehind is how much an observer that is too slow has before it; it receives no more.
const maxBehind = 10_000

// later makes tell run soon, after earlier reports.
func (o *Observer) later(tell func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queueLocked(tell)
}

func (o *Observer) queueLocked(tell func()) (queued bool) {
	if len(o.queue) == maxBehind {
		return false
	}
	o.queue = append(o.queue, tell)
	if !o.telling {
		o.telling = true
		go o.drain()
	}
	return true
}

func (o *Observer) drain() {
	for {
		o.mu.Lock()
		queue := o.queue
		if o.queue = nil; len(queue) == 0 {
			o.telling = false
			o.mu.Unlock()
			return
		}
		o.mu.Unlock()
		for _, tell := range queue {
			o.safely(tell)
		}
	}
}

// safely keeps a panic of the observer from ending the caller.
func (o *Observer) safely(tell func()) {
	defer func() {
		if v := recover(); v != nil && o.log != nil {
			defer func() { _ = recover() }()
			o.log.Error("rratelimiter: an observer panicked", slog.String("panic", fmt.Sprint(v)))
		}
	}()
	tell()
}
