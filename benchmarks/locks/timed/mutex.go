// Package timed has the mutex that locks.sh puts in the place of sync.Mutex. It is no part of the module: the
// overlay of a build makes it one.
package timed

import (
	"expvar"
	"path/filepath"
	"runtime"
	"sync"
	"time"
)

// Mutex is a sync.Mutex that counts for how long it is held.
type Mutex struct {
	mu    sync.Mutex
	stats *Stats
	since time.Duration
}

// Stats are what one Mutex counts, and its lock guards. They are read while no one uses it.
type Stats struct {
	By                   string // who locked it first
	Locks, Held, Longest int64  // times in ns, without what reading the clock takes
	Paused               int64  // how often it was held for longer than pause, which is in neither time
}

// pause is for how long a lock is held that is held while the machine runs something else.
const pause = time.Millisecond

var (
	start   = time.Now()
	reading = measureReading()

	mu  sync.Mutex
	all []*Stats
)

func init() {
	expvar.Publish("locks", expvar.Func(func() any {
		mu.Lock()
		defer mu.Unlock()
		return all
	}))
}

// Lock locks the Mutex.
func (m *Mutex) Lock() {
	m.mu.Lock()
	m.begin()
}

// TryLock locks the Mutex unless it is locked.
func (m *Mutex) TryLock() bool {
	locked := m.mu.TryLock()
	if locked {
		m.begin()
	}
	return locked
}

func (m *Mutex) begin() {
	if m.stats == nil {
		m.stats = &Stats{By: caller()}
		mu.Lock()
		all = append(all, m.stats)
		mu.Unlock()
	}
	m.since = time.Since(start)
}

// Unlock unlocks it.
func (m *Mutex) Unlock() {
	held := max(0, time.Since(start)-m.since-reading)
	s := m.stats
	if s.Locks++; held > pause {
		s.Paused++
	} else {
		s.Held += int64(held)
		s.Longest = max(s.Longest, int64(held))
	}
	m.mu.Unlock()
}

// measureReading returns how long it takes to read the clock: each time from lock to unlock has one reading in it.
func measureReading() time.Duration {
	const reads = 100_000
	from := time.Now()
	for range reads {
		_ = time.Since(start)
	}
	return time.Since(from) / reads
}

func caller() string {
	pc, _, _, _ := runtime.Caller(3)
	return filepath.Base(runtime.FuncForPC(pc).Name())
}
