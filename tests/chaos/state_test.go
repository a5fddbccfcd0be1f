package chaos_test

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/test/model"
)

// state is what Redis holds of a limiter, in the hands of one client where each has its own.
type state struct {
	config, value, permits model.Key

	pair  *model.Pair // of a RateLimiter
	inUse int64       // those included that have run out and were not reclaimed
}

func (s *state) String() string {
	return fmt.Sprintf("config %v\nvalue %v\nset %v: %d permits", s.config, s.value, s.permits, s.inUse)
}

// read returns what Redis holds of the limiter, and removes keys.
func (l *limiter) read(ctx context.Context, rdb redis.Scripter, id string, remove ...any) (*state, error) {
	config, value, permits := l.keys(id)
	keys := []string{value, permits}
	if config != "" {
		keys = append(keys, config)
	}
	now, all, err := model.Look(ctx, rdb, keys, remove...)
	if err != nil {
		return nil, err
	}
	s := &state{value: all[0], permits: all[1]}
	if l.isRate() {
		s.config = all[2]
		if s.pair, err = model.PairOf(s.value, s.permits, now); err == nil {
			s.inUse = s.pair.Grants().InUse()
		}
		return s, err
	}
	s.inUse, err = l.countUse(s)
	return s, err
}

// countUse returns how many permits the state of another limiter says are in use.
func (l *limiter) countUse(s *state) (int64, error) {
	switch {
	case l.kind == bucket && s.permits.There && !s.value.There:
		return l.config.Rate + l.borrow, nil // so it is taken
	case l.kind == bucket && s.value.There:
		tokens, err := s.value.Number()
		return l.config.Rate - tokens, err
	case !s.permits.There:
		return 0, nil
	case l.kind == window:
		return s.value.Number()
	}
	return int64(len(s.permits.Content) / 2), nil
}
