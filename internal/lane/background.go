package lane

import (
	"context"
	"time"
)

const (
	// maxJobs is how many background jobs of a lane run at the same time.
	maxJobs = 8

	// maxOwed is how many do at most while the server owes answers to some.
	maxOwed = 64
)

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
	} else {
		l.watchJobs()
	}
	l.mu.Unlock()
	if start {
		go l.runJobs()
	}
}

// watchJobs looks, a pace from now, whether jobs wait behind some that have no answer.
// l.mu is held.
func (l *Lane) watchJobs() {
	if !l.watched {
		l.watched = true
		time.AfterFunc(l.conn.ProbePace(), l.probe)
	}
}

// probe has one more job show whether the server answers, where those that run get no
// answer: they may wait on connections of before. Where it answers, the others follow.
func (l *Lane) probe() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watched = false
	if len(l.jobs) == 0 {
		return
	}
	if l.running < maxOwed && time.Since(l.moved) >= l.conn.ProbePace() && l.conn.Owes(l.master) {
		l.running++
		go l.runJobs()
	}
	l.watchJobs()
}

func (l *Lane) runJobs() {
	for {
		l.mu.Lock()
		l.moved = time.Now()
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
