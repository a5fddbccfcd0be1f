package dashboard

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/httpjson"
)

// turns spreads over time what single requests ask of Redis, beside the poller: as
// many as like may send them.
type turns struct {
	mu   sync.Mutex
	next time.Time // when the viewers that had a turn have used up their time
}

// wait returns when that many commands may be sent, at perSecond.
func (t *turns) wait(ctx context.Context, commands, perSecond int) error {
	t.mu.Lock()
	now := time.Now()
	if t.next.Before(now) {
		t.next = now
	}
	wait := t.next.Sub(now)
	if wait > timeout {
		t.mu.Unlock()
		return httpjson.Refuse(http.StatusServiceUnavailable, "too much is asked at once: try again later")
	}
	t.next = t.next.Add(time.Duration(commands) * time.Second / time.Duration(perSecond))
	t.mu.Unlock()
	return sleep(ctx, wait)
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// turn waits for one of a request's own.
func (c *call) turn(ctx context.Context, commands int) error {
	return c.busy(c.turns.wait(ctx, commands, c.cfg.Reads/2))
}
