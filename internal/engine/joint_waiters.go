package engine

// jointWaiters are the callers that wait for one limiter together with others. Its queue's lock guards
// them.
type jointWaiters map[jointWaiter]struct{}

// jointWaiter wakes one of them: it holds one if permits may have become free since the caller asked.
type jointWaiter chan struct{}

// wake makes all ask again.
func (c jointWaiters) wake() {
	for w := range c {
		select {
		case w <- struct{}{}:
		default:
		}
	}
}
