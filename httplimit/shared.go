package httplimit

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/sharedpause"
	"github.com/rratelimiter/rratelimiter/limit"
)

// readEvery is how old what a transport knows of other programs' pauses may be when a request is sent: with the time that
// writing and reading take it holds within a second.
const readEvery = 900 * time.Millisecond

// shared is what a transport has of the pauses that all programs share.
type shared struct {
	sharedpause.Pauses

	timeout time.Duration
	silent  atomic.Bool // Redis did not answer the last time, so no request waits for it
}

// read reads how much longer a key is paused.
func (s *shared) read(key string) time.Duration {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	left, err := s.Left(ctx, key)
	s.silent.Store(err != nil)
	return left
}

// write lets other programs know of a pause. It returns once they can, unless Redis is known not to answer.
func (s *shared) write(ctx context.Context, key string, until time.Time, resp *http.Response) {
	ctx, why := context.WithoutCancel(ctx), strconv.Itoa(resp.StatusCode)
	if s.silent.Load() {
		go s.extend(ctx, key, until, why, time.Second)
		return
	}
	s.extend(ctx, key, until, why, time.Second)
}

// extend writes a pause. If that fails it is repeated, after so long at first and then after longer, until the pause is over.
func (s *shared) extend(ctx context.Context, key string, until time.Time, why string, again time.Duration) {
	calling, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := s.Extend(calling, key, until, why)
	s.silent.Store(err != nil)
	if err != nil && !errors.Is(err, limit.ErrClosed) && time.Until(until) > again {
		time.AfterFunc(again, func() { s.extend(ctx, key, until, why, min(2*again, time.Minute)) })
	}
}

// refresh begins to read what other programs have heard of the key, unless that is known. It returns a channel that is
// closed once it is; nil if the request need not wait for that.
func (p *pause) refresh() <-chan struct{} {
	a := p.all
	if a.shared == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.reading == nil {
		now := time.Now()
		if now.Before(p.fresh) {
			return nil
		}
		p.fresh, p.reading = now.Add(readEvery), make(chan struct{})
		p.users++
		go p.read(p.reading)
	}
	if a.shared.silent.Load() {
		return nil
	}
	return p.reading
}

// read is a user of the pause while it reads.
func (p *pause) read(done chan struct{}) {
	a := p.all
	if left := min(a.shared.read(p.key), a.most); left > 0 {
		a.extend(p.key, time.Now().Add(left))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p.reading = nil
	close(done)
	p.leaveLocked()
}

// awaitShared returns once it is known what other programs have heard, or with the error of the request's context.
func (w *wait) awaitShared() error {
	reading := w.pause.refresh()
	if reading == nil {
		return nil
	}
	select {
	case <-reading:
		return nil
	case <-w.ctx.Done():
		w.verdict.Gone = true
		return w.ctx.Err()
	}
}
