package httplimit

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// wait is a request of a transport that waits for its permits.
type wait struct {
	*transport

	ctx   context.Context
	n     int64
	start time.Time

	results []result // of the last time that the limiters were asked
	verdict verdict
	asked   bool // at all
}

// obtain returns nil once the request has its permits and no upstream pauses it, or the reason why it
// is not sent.
func (w *wait) obtain() error {
	key := w.results[0].Key
	for {
		if d := w.pauses.left(key); d > 0 && !w.Shadow {
			if more, err := w.sleep(d); err != nil {
				return w.notSent(key, more, true, err)
			}
			continue
		}
		if err := w.ask(); err != nil {
			return w.notSent(key, 0, false, err)
		}
		v := w.verdict
		switch {
		case w.Shadow:
			return nil
		case v.gone:
			return w.notSent(key, 0, false, w.ctx.Err())
		case v.refused:
			refused, d := w.refusal()
			if d == 0 {
				return w.notSent(refused, 0, false, errNever)
			}
			if more, err := w.sleep(d); err != nil {
				return w.notSent(refused, more, false, err)
			}
		case v.closed:
			return w.notSent(key, 0, false, v.failure)
		case w.pauses.left(key) == 0:
			return nil
		default:
			// An upstream paused the key meanwhile. The permits would belong to another moment
			// than the one at which the request leaves.
			w.undo()
		}
	}
}

// ask asks the limiters, or calls the one limiter that waits itself. The error is errMaxWait.
func (w *wait) ask() error {
	if w.asked {
		for i := range w.results {
			r := &w.results[i]
			*r = result{policy: r.policy, Question: r.policy.limit.Question(r.Key)}
			r.Start = w.start
		}
	}
	kept := w.verdict.kept
	w.asked = true
	if w.waiter == nil {
		w.verdict = w.askAll(w.ctx, w.results, w.n)
	} else {
		bounded, cancel := w.ctx, context.CancelFunc(func() {})
		if w.maxWait > 0 {
			bounded, cancel = context.WithDeadlineCause(w.ctx, w.start.Add(w.maxWait), errMaxWait)
		}
		w.results[0].Wait(bounded, w.waiter, w.n)
		late := errors.Is(context.Cause(bounded), errMaxWait)
		cancel()
		if w.verdict = judge(w.results); w.verdict.closed && late {
			w.verdict.failure = nil
			return errMaxWait
		}
	}
	if w.verdict.gone = w.ctx.Err() != nil; w.verdict.gone && !w.Shadow && !w.verdict.refused {
		w.undo()
	}
	if w.verdict.kept == nil {
		w.verdict.kept = kept // for the error handler, which receives only one
	}
	return nil
}

// undo gives back the grants, since the request does not leave now.
func (w *wait) undo() {
	w.verdict.kept = errors.Join(w.verdict.kept, w.giveBack(w.ctx, w.results, w.n))
}

// refusal returns the key for which the request has to wait the longest, and how long: 0 if no
// waiting helps.
func (w *wait) refusal() (key string, d time.Duration) {
	d = newRefusal(w.results, w.n).RetryAfter
	longest := time.Duration(-1)
	for i := range w.results {
		if r := &w.results[i]; r.refused() && r.wait() > longest {
			key, longest = r.Key, r.wait()
		}
	}
	return key, d
}

// sleep waits for d. If the request's time ends before that, it returns an error, at once if it
// knows so in advance, and how much of d is left.
func (w *wait) sleep(d time.Duration) (more time.Duration, err error) {
	if err := w.ctx.Err(); err != nil {
		w.verdict.gone = true
		return d, err
	}
	if end, ok := w.ctx.Deadline(); ok && time.Until(end) <= d {
		return d, context.DeadlineExceeded
	}
	if w.maxWait >= 0 && d > w.maxWait-time.Since(w.start) { // d may be too long for a sum
		return d, errMaxWait
	}
	end := time.Now().Add(d)
	timer := time.NewTimer(max(d, time.Millisecond))
	defer timer.Stop()
	select {
	case <-timer.C:
		return 0, nil
	case <-w.ctx.Done():
		w.verdict.gone = true
		return time.Until(end), w.ctx.Err()
	}
}

func (w *wait) notSent(key string, more time.Duration, paused bool, err error) error {
	return &NotSentError{
		Key: key, Permits: w.n, Waited: time.Since(w.start), RetryAfter: more, Paused: paused, Err: err,
	}
}

// maxPauses is how many paused keys a transport remembers. If there are more, it forgets some.
const maxPauses = 1 << 14

// pauses are the keys that upstreams paused.
type pauses struct {
	mu    sync.Mutex
	until map[string]time.Time
}

// left returns how much longer calls of a key are paused.
func (p *pauses) left(key string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	until, ok := p.until[key]
	if !ok {
		return 0
	}
	d := time.Until(until)
	if d <= 0 {
		delete(p.until, key)
	}
	return max(0, d)
}

// hear pauses a key if the response asks for that.
func (p *pauses) hear(key string, resp *http.Response, most time.Duration) {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return
	}
	d := min(retryAfter(resp.Header), most)
	if d <= 0 {
		return
	}
	until := time.Now().Add(d)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until == nil {
		p.until = make(map[string]time.Time)
	}
	before, known := p.until[key]
	for other := range p.until {
		if known || len(p.until) < maxPauses {
			break
		}
		delete(p.until, other)
	}
	if until.After(before) {
		p.until[key] = until
	}
}

// retryAfter parses Retry-After: 0 if there is none that makes sense. A date is read by the
// upstream's clock, which wrote Date too.
func retryAfter(h http.Header) time.Duration {
	text := strings.Trim(h.Get("Retry-After"), " \t")
	if text != "" && strings.Trim(text, "0123456789") == "" {
		const most = int64(1<<63-1) / int64(time.Second)
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil { // too many digits
			seconds = most
		}
		return time.Duration(min(seconds, most)) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	if sent, err := http.ParseTime(h.Get("Date")); err == nil {
		return at.Sub(sent)
	}
	return time.Until(at)
}
