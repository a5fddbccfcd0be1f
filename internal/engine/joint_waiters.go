package engine

import (
	"sync"
	"time"
)

// jointWaiters are the callers that wait for one limiter together with others. Its queue's lock guards
// it.
type jointWaiters struct {
	waiting map[*jointWaiter]bool // true in the first of a caller's queues
}

// jointWaiter is one of them.
type jointWaiter struct {
	woken chan struct{} // holds one if permits may have become free since it asked

	mu     sync.Mutex // locked after a queue's
	asleep time.Time  // until when it waits to ask again; zero: it does not, or was woken
}

// wake makes all ask again.
func (c *jointWaiters) wake() {
	for w := range c.waiting {
		w.wake()
	}
}

func (w *jointWaiter) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asleep = time.Time{}
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// sleepUntil records that the caller waits, unless it has been woken already.
func (w *jointWaiter) sleepUntil(until time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.woken) == 0 {
		w.asleep = until
	}
}

func (w *jointWaiter) sleepsUntil() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asleep
}
