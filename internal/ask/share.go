package ask

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/limit"
)

// maxLimits is how many keys' limits are remembered at least, if there are more.
const maxLimits = 1 << 14

// share limits in this process, by a share of the limits that the failing limiter has reported.
type share struct {
	part   float64
	window func() time.Duration
	keys   *local.Limiter

	mu       sync.Mutex
	last     int64            // last limit above 0 that was reported, of any key
	now, old map[string]int64 // limits by key; unused ones in old are forgotten
}

func newShare(part float64, window func() time.Duration) *share {
	return &share{part: part, window: window, keys: local.New(nil), now: make(map[string]int64)}
}

// learn records the limit of a key.
func (s *share) learn(key string, most int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if most > 0 {
		s.last = most
	}
	if known, ok := s.now[key]; ok && known == most {
		return
	}
	if len(s.now) >= maxLimits {
		s.old, s.now = s.now, make(map[string]int64)
	}
	s.now[key] = most
}

// of returns the limiter of a key, nil if no limit is known.
func (s *share) of(key string) limit.Limiter {
	s.mu.Lock()
	most, ok := s.now[key]
	if !ok {
		most, ok = s.old[key]
	}
	if !ok {
		most = s.last
	}
	s.mu.Unlock()
	rule := local.Rule{Permits: most, Window: s.window()}
	switch {
	case ok && most == 0:
		return &sharedKey{rule: rule} // no request passes
	case most < 1 || rule.Window <= 0:
		return nil
	}
	return &sharedKey{keys: s.keys, rule: outage.Share(rule, s.part)}
}

// sharedKey limits one key.
type sharedKey struct {
	keys *local.Limiter
	rule local.Rule
}

func (s *sharedKey) Window() time.Duration { return s.rule.Window }

func (s *sharedKey) Take(ctx context.Context, key string, n int64) (limit.Decision, error) {
	d, _, err := s.TakeReturnable(ctx, key, n)
	return d, err
}

func (s *sharedKey) TakeReturnable(_ context.Context, key string, n int64) (limit.Decision, func(context.Context) error, error) {
	if n < 1 {
		return limit.Decision{}, nil, fmt.Errorf("%w: %d", limit.ErrInvalidPermits, n)
	}
	if n > s.rule.Permits {
		// The whole limit may have enough, and the limiter may be back by then.
		return limit.Decision{Limit: s.rule.Permits, RetryAfter: outage.LastPace}, nil, nil
	}
	d, undo := s.keys.Take(key, n, s.rule)
	if undo == nil {
		return d, nil, nil
	}
	return d, func(context.Context) error { undo(); return nil }, nil
}
