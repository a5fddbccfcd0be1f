package redistest

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Trips decides what becomes of a client's round trips with scripts, and counts them: its Send is a [Hook]. All others pass.
type Trips struct {
	Hold  chan struct{}                 // each waits until it is closed; nil: none waits
	Fails func(trip, scripts int) error // what a trip, counted from 1, meets in place of the server; nil: nothing
	Stuck atomic.Bool                   // no answer comes while one is waited for
	Loses atomic.Int32                  // so many do not reach the server

	mu      sync.Mutex
	takes   time.Duration
	answers func(cmds []redis.Cmder, failed error) error
	sizes   []int
	now     int // under way
	most    int
}

// Send is the Hook.
func (f *Trips) Send(_ context.Context, cmds []redis.Cmder, next func() error) error {
	scripts := 0
	for _, cmd := range cmds {
		if strings.HasPrefix(cmd.Name(), "eval") {
			scripts++
		}
	}
	if scripts == 0 {
		return next()
	}
	var trip int
	var takes time.Duration
	f.locked(func() {
		f.sizes = append(f.sizes, scripts)
		f.now++
		f.most, trip, takes = max(f.most, f.now), len(f.sizes), f.takes
	})
	defer f.locked(func() { f.now-- })
	if f.Stuck.Load() {
		time.Sleep(3 * time.Second) // as long as go-redis waits by default
		return Fail(cmds, context.DeadlineExceeded)
	}
	if f.Hold != nil {
		<-f.Hold
	}
	time.Sleep(takes)
	if f.Loses.Add(-1) >= 0 {
		return os.ErrDeadlineExceeded
	}
	if f.Fails != nil {
		if err := f.Fails(trip, scripts); err != nil {
			return err
		}
	}
	err := next()
	var answers func(cmds []redis.Cmder, failed error) error
	if f.locked(func() { answers = f.answers }); answers != nil {
		err = answers(cmds, err)
	}
	return err
}

func (f *Trips) locked(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// Take says how long trips take from now on.
func (f *Trips) Take(d time.Duration) { f.locked(func() { f.takes = d }) }

// Answer lets answers say what comes back from now on, in place of what did.
func (f *Trips) Answer(answers func(cmds []redis.Cmder, failed error) error) {
	f.locked(func() { f.answers = answers })
}

// Forget starts the count again.
func (f *Trips) Forget() { f.locked(func() { f.sizes, f.most = nil, f.now }) }

// Sizes returns how many scripts each trip had.
func (f *Trips) Sizes() (all []int) {
	f.locked(func() { all = slices.Clone(f.sizes) })
	return all
}

// Most returns how many trips were under way at the same time.
func (f *Trips) Most() (most int) {
	f.locked(func() { most = f.most })
	return most
}

// AnswerError is an error that Redis answered.
type AnswerError string

func (a AnswerError) Error() string { return string(a) }

// RedisError says that it is one.
func (AnswerError) RedisError() {}
