package main

import "time"

// limiter is a Redis with one limiter: a sliding log, whose calls go one after another.
type limiter struct {
	rate     int64
	interval time.Duration
	cost     time.Duration // of a call

	log   []*grant // the oldest first
	inUse int64
	most  int64 // of inUse, ever
	busy  time.Duration
	calls int64
}

// grant is a member of the log.
type grant struct {
	at      time.Duration
	permits int64
}

// work returns when a call that comes now is done.
func (s *limiter) work(now time.Duration) time.Duration {
	s.busy = max(s.busy, now) + s.cost
	s.calls++
	return s.busy
}

// clock is what Redis dates grants with.
func clock(now time.Duration) time.Duration { return now.Truncate(time.Millisecond) }

// settle reclaims what has run out.
func (s *limiter) settle(now time.Duration) {
	i := 0
	for ; i < len(s.log) && s.log[i].at+s.interval <= clock(now); i++ {
		s.inUse -= s.log[i].permits
		s.log[i].permits = 0
	}
	s.log = s.log[i:]
}

// answer is the answer to a call for permits.
type answer struct {
	callers, ahead int64 // granted
	free           int64 // after it
	wait, reset    time.Duration
	grant          *grant
}

// acquire decides a call for this many single permits and this many ahead.
func (s *limiter) acquire(now time.Duration, callers, ahead int64) (a answer) {
	s.settle(now)
	a.callers = min(callers, s.rate-s.inUse)
	a.ahead = min(ahead, s.rate-s.inUse-a.callers)
	if taken := a.callers + a.ahead; taken > 0 {
		s.inUse += taken
		s.most = max(s.most, s.inUse)
		a.grant = &grant{clock(now), taken}
		s.log = append(s.log, a.grant)
	}
	a.free = s.rate - s.inUse
	if a.free == 0 {
		a.reset = s.log[len(s.log)-1].at + s.interval - clock(now)
		for _, g := range s.log {
			if g.permits > 0 {
				a.wait = g.at + s.interval - clock(now)
				break
			}
		}
	}
	return a
}

// giveBack takes permits off a grant.
func (s *limiter) giveBack(now time.Duration, g *grant, permits int64) {
	s.settle(now)
	permits = min(permits, g.permits)
	g.permits -= permits
	s.inUse -= permits
}
