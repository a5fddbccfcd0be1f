package chaos_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/model"
)

// checkState checks what Redis holds of a limiter at any moment, since each script is
// one: the value is the rate at most, value and permits in use are the rate together, and
// what must have a time to live has one.
//
// Where Redis lost keys the sum is not looked at. A client's own pair follows a new rate,
// or a new end, only when that client comes by: there the sum is not looked at once the
// rate has changed, and the end only by whether there is one.
func (r *round) checkState(p *pool, s *state) {
	if !p.isRate() {
		r.checkKeyLives(p, s)
		return
	}
	if !s.config.There {
		return
	}
	rate, err := s.config.Field("rate")
	if err != nil {
		r.violatePool(p, "state", "%v\n%v", err, s)
		return
	}
	if !r.mixed(p) {
		r.checkSum(p, s, rate)
	}
	if !r.javaIDs[p.id] {
		r.checkLives(p, s)
	}
}

func (r *round) checkSum(p *pool, s *state, rate int64) {
	exact := !p.ownType(s)
	if p.kind == perClient && (p.wild || r.rateChanged(p.limiter)) {
		rate, exact = r.highest(p.limiter), false
	}
	if why := s.pair.Broken(rate, exact); why != "" && !r.damaged(p.limiter) {
		r.violatePool(p, "sum", "%s\n%v", why, s)
	}
}

// ownType tells whether a limiter is of the other type at the moment, so that nobody looks
// at this pair.
func (p *pool) ownType(s *state) bool {
	kind, err := s.config.Field("type")
	return err != nil || (kind == 1) != (p.kind == perClient)
}

// checkLives: a time to live of the config is one of value and set too, and none is none;
// a client's own pair always has one. A server that was stopped between two commands of
// a script, before Redis 7.2, counts the times to live from different moments.
func (r *round) checkLives(p *pool, s *state) {
	for _, k := range []model.Key{s.value, s.permits} {
		if !k.There {
			continue
		}
		switch {
		case p.kind == perClient:
			if k.TTL < 0 {
				r.violatePool(p, "lives", "a client's own pair lives for ever\n%v", s)
			}
		case r.damaged(p.limiter):
		case (s.config.TTL < 0) != (k.TTL < 0), s.config.TTL >= 0 && (s.config.TTL-k.TTL).Abs() > time.Second:
			r.violatePool(p, "lives", "its keys end at different times\n%v", s)
		}
	}
}

// checkKeyLives checks that the keys of the other limiters end, no later than their rule
// can need, unless the clock was set.
func (r *round) checkKeyLives(p *pool, s *state) {
	longest := p.config.Interval
	if p.kind == bucket {
		longest *= time.Duration((p.config.Rate+p.borrow)/p.refill + 2)
	}
	for _, k := range []model.Key{s.value, s.permits} {
		if k.There && (k.TTL < 0 || k.TTL > longest+time.Second && r.mood != stepping) {
			r.violatePool(p, "lives", "a key lives for %v, of %v at most\n%v", k.TTL, longest, s)
		}
	}
}

// watch looks at what Redis holds of the limiters while all goes on.
func (r *round) watch() {
	for {
		for _, l := range r.limiters {
			select {
			case <-r.over.Done():
				return
			case <-time.After(10 * time.Millisecond):
			}
			// Of those whose pairs clients have for themselves, at the end only.
			if l.kind == perClient {
				continue
			}
			ctx, cancel := context.WithTimeout(r.over, time.Second)
			s, err := l.read(ctx, r.admin, "")
			cancel()
			switch {
			case err == nil:
				r.checkNow(l, s)
			case s != nil:
				r.violate("state", l.name, "%v\n%v", err, s)
			}
		}
	}
}

// checkNow is checkState beside calls and faults that go on, whose records are not whole.
func (r *round) checkNow(l *limiter, s *state) {
	if r.mood == losing || r.damaged(l) || !l.isRate() || !s.config.There {
		return
	}
	p := &pool{limiter: l}
	if rate, err := s.config.Field("rate"); err == nil && l.redisson == "" {
		r.checkSum(p, s, rate)
	}
	r.checkLives(p, s)
}

// checkConnections waits until the servers have no connection of the round's Clients.
func (r *round) checkConnections() {
	const patience = time.Minute
	for _, s := range r.arena.masters(r.t) {
		rdb := s.Client(r.t, &redis.Options{MaxRetries: -1})
		var left []string
		for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
			list, err := rdb.ClientList(r.t.Context()).Result()
			require.NoError(r.t, err)
			left = nil
			for line := range strings.Lines(list) {
				if strings.Contains(line, "name="+roundConnection) {
					left = append(left, line)
				}
			}
			if len(left) == 0 {
				break
			}
		}
		if len(left) > 0 {
			r.violate("leftovers", "", "connections that stay: %v", left)
		}
	}
}

// checkGoroutines waits until there are no more goroutines than before the round.
func checkGoroutines(t *testing.T, p *plan, before int) {
	t.Helper()
	if err := awaitGoroutines(before); err != nil {
		t.Errorf("-seed %d -round %d: %v", p.seed, p.number, err)
	}
}

func awaitGoroutines(before int) error {
	for until := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			stacks := make([]byte, 1<<20)
			return fmt.Errorf("%d goroutines, and %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
	}
	return nil
}

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
