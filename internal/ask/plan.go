package ask

import (
	"fmt"
	"reflect"
	"sync"

	"github.com/rratelimiter/rratelimiter/limit"
)

// plans are the Limits of the limiters that requests have chosen.
type plans struct {
	mu       sync.Mutex
	now, old map[limit.Limiter]*Limit // unused ones in old are forgotten
}

// maxPlans is how many of them are remembered at least, if there are more.
const maxPlans = 1000

// For returns the Limit of the limiter that a request has chosen, which has all but the limiter in common with l;
// l itself if that is nil.
func (l *Limit) For(limiter limit.Limiter) (*Limit, error) {
	v := reflect.ValueOf(limiter)
	switch {
	case limiter == nil || v.Kind() == reflect.Pointer && v.IsNil():
		return l, nil
	case !v.Comparable():
		return l.with(limiter)
	case limiter == l.limiter:
		return l, nil
	}
	p := &l.plans
	p.mu.Lock()
	defer p.mu.Unlock()
	if chosen := p.now[limiter]; chosen != nil {
		return chosen, nil
	}
	chosen := p.old[limiter]
	if chosen == nil {
		var err error
		if chosen, err = l.with(limiter); err != nil {
			return nil, err
		}
	}
	if p.now == nil || len(p.now) >= maxPlans {
		p.old, p.now = p.now, make(map[limit.Limiter]*Limit)
	}
	p.now[limiter] = chosen
	return chosen, nil
}

// with returns the Limit with another limiter.
func (l *Limit) with(limiter limit.Limiter) (*Limit, error) {
	chosen, err := l.options.Limit(l.Name, l.prefix, limiter, l.own, l.length)
	if err != nil {
		return nil, fmt.Errorf("%w: the limiter of a plan: %w", limit.ErrInvalidConfig, err)
	}
	chosen.settled = l.settled
	return chosen, nil
}
