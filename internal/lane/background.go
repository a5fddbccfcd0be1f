package lane

import (
	"context"
	"time"
)

// maxJobs is how many background jobs of a lane run at the same time.
const maxJobs = 8

// job is work that no caller waits for on its own goroutine.
type job struct {
	run   func(ctx context.Context)
	until time.Time
}

// Go runs f in the background, where few such jobs run at the same time. ctx ends
// a call's time after Go was called, also where f's turn comes later; f has to
// see to it that it ends then.
func (l *Lane) Go(f func(ctx context.Context)) {
	j := job{f, time.Now().Add(l.conn.Timeout())}
	l.mu.Lock()
	l.jobs = append(l.jobs, j)
	start := l.running < maxJobs
	if start {
		l.running++
	}
	l.mu.Unlock()
	if start {
		go l.runJobs()
	}
}

func (l *Lane) runJobs() {
	for {
		l.mu.Lock()
		if len(l.jobs) == 0 {
			l.running--
			l.mu.Unlock()
			return
		}
		j := l.jobs[0]
		l.jobs = dropped(l.jobs, 1)
		l.mu.Unlock()
		ctx, cancel := context.WithDeadline(context.Background(), j.until)
		j.run(ctx)
		cancel()
	}
}
