package compat_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// What happens to a limiter between the turns.

// margin is how far from the end of anything operations keep, in milliseconds;
// what has ended for sure did so longer ago than clocks can differ by.
const (
	margin  = 3000
	settled = 200
)

// stepAside lets time pass until nothing of the limiter ends soon.
func (w *world) stepAside(t *testing.T, l *limiter, intervals []int64) {
	t.Helper()
	intervals = append(intervals, l.state.interval())
	for {
		now := time.Now().UnixMilli()
		ahead := int64(0)
		for _, edge := range l.state.edges(now, intervals...) {
			if edge.from-now < margin && edge.to-now > -settled {
				ahead = max(ahead, edge.to-now+2*settled)
			}
		}
		if ahead == 0 {
			return
		}
		w.pass(t, l, ahead)
	}
}

// moveBack moves all that Redis holds under KEYS back in time.
var moveBack = redis.NewScript(`
for _, key in ipairs(KEYS) do
  if redis.call('TYPE', key).ok == 'zset' then
    local rows = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #rows, 2 do
      redis.call('ZADD', key, 'XX', string.format('%.0f', rows[i + 1] - ARGV[1]), rows[i])
    end
  end
  local ttl = redis.call('PTTL', key)
  if ttl >= 0 and ttl - ARGV[1] <= 0 then
    redis.call('DEL', key)
  elseif ttl >= 0 then
    redis.call('PEXPIRE', key, string.format('%.0f', ttl - ARGV[1]))
  end
end
return 0`)

// pass lets time pass for a limiter.
func (w *world) pass(t *testing.T, l *limiter, ms int64) {
	t.Helper()
	now := time.Now().UnixMilli()
	near := func() (found bool) {
		l.state.eachEnd(func(end *span) {
			found = found || end.from-ms < now+settled && end.to-ms > now-settled
		})
		return found
	}
	for near() {
		ms += settled
	}
	all := []string{l.name}
	for id := range l.state.pairs {
		_, value, permits := w.keysOf(l, id)
		all = append(all, value, permits)
	}
	w.happen(t, l, fmt.Sprintf("%d ms pass", ms), func(s *state, now span) bool { return s.shift(ms, now) }, func() error {
		return moveBack.Run(t.Context(), w.rdb, all, ms).Err()
	})
}

// lose has Redis lose a part of a limiter, as an eviction does; or it becomes
// one that an older Redisson has made.
func (w *world) lose(t *testing.T, l *limiter) {
	t.Helper()
	w.stepAside(t, l, nil)
	ids := slices.Sorted(maps.Keys(l.state.pairs))
	id := ids[w.rnd.IntN(len(ids))]
	config, _, permits := w.keysOf(l, id)
	ctx := t.Context()
	switch w.rnd.IntN(4) {
	case 0:
		w.loseValue(t, l, id)
	case 1:
		w.happen(t, l, fmt.Sprintf("the permits of client %q get lost", id), func(s *state, _ span) bool {
			s.pairs[id].setRows(nil)
			return true
		}, func() error { return w.rdb.Del(ctx, permits).Err() })
	case 2:
		w.happen(t, l, "the configuration gets lost", func(s *state, _ span) bool {
			s.config, s.configEnd = nil, never
			return true
		}, func() error { return w.rdb.Del(ctx, config).Err() })
	case 3:
		w.happen(t, l, "it is one of Redisson before 3.38", func(s *state, _ span) bool {
			delete(s.config, "keepAliveTime")
			return true
		}, func() error { return w.rdb.HDel(ctx, config, "keepAliveTime").Err() })
	}
}

func (w *world) loseValue(t *testing.T, l *limiter, id string) {
	t.Helper()
	_, value, _ := w.keysOf(l, id)
	w.happen(t, l, fmt.Sprintf("the value of client %q gets lost", id), func(s *state, _ span) bool {
		p := s.pairs[id]
		p.delValue()
		return true
	}, func() error { return w.rdb.Del(t.Context(), value).Err() })
}

// hasten dates the newest row in the future, as a peer with a fast clock does.
func (w *world) hasten(t *testing.T, l *limiter) {
	t.Helper()
	const ahead = 30_000
	w.stepAside(t, l, nil)
	for _, id := range slices.Sorted(maps.Keys(l.state.pairs)) {
		p := l.state.pairs[id]
		if len(p.rows) == 0 {
			continue
		}
		i := len(p.rows) - 1
		at := time.Now().UnixMilli() + ahead
		_, _, permits := w.keysOf(l, id)
		w.happen(t, l, fmt.Sprintf("a fast clock dates the newest row of client %q", id), func(s *state, _ span) bool {
			s.pairs[id].rows[i].at = span{at, at}
			return true
		}, func() error {
			return w.rdb.ZAddXX(t.Context(), permits, redis.Z{Score: float64(at), Member: p.rows[i].member}).Err()
		})
		return
	}
}

// happen changes both Redis and the model.
func (w *world) happen(t *testing.T, l *limiter, what string, model func(*state, span) bool, do func() error) {
	t.Helper()
	from := time.Now().UnixMilli()
	require.NoError(t, do())
	now := span{from, time.Now().UnixMilli()}
	w.note("%s: %s", l.name, what)
	read, wanted := w.read(t, l), l.state.clone()
	certain := wanted.expireKeys(now)
	certain = model(wanted, now) && certain
	diff := read.differs(wanted)
	switch {
	case diff == "":
	case certain:
		w.mismatch(t, l, fmt.Sprintf("%s\nwanted: %v\nfound:  %v", diff, wanted, read))
		read.inherit(l.state, nil)
	default:
		w.uncertain++
		read.inherit(l.state, nil)
	}
	l.state = read
}

// miscount leads to what releases that take rows for permits get wrong: a row
// of many permits is in use when more come back than there is room for, since
// the value was lost or the configuration made anew with a lower rate.
func (w *world) miscount(t *testing.T, l *limiter) {
	t.Helper()
	var javas []*actor
	for _, a := range w.actors {
		if a.java != nil && a.redisson.countsRows() {
			javas = append(javas, a)
		}
	}
	if len(javas) == 0 {
		return
	}
	const rate = 20
	java := javas[w.rnd.IntN(len(javas))]
	cfg := rateConfig{kind: strconv.Itoa(w.rnd.IntN(2)), rate: rate, interval: 60_000}
	do := func(who *actor, kind string, n, rate int64) {
		args := w.arguments(l)
		args.permits, args.rate, args.rate.rate = n, cfg, rate
		w.operate(t, who, l, w.operation(t.Context(), kind, who, l, args))
	}
	anyone := func() *actor {
		if cfg.kind == "1" {
			return java
		}
		return w.actors[w.rnd.IntN(len(w.actors))]
	}
	do(java, "delete", 0, 0)
	do(java, "trySetRate", 0, rate)
	do(anyone(), "tryAcquire", 1, 0)
	w.pass(t, l, cfg.interval/2)
	if w.rnd.IntN(2) == 0 {
		do(anyone(), "tryAcquire", rate-1, 0)
		id := ""
		if cfg.kind == "1" {
			id = java.id
		}
		w.loseValue(t, l, id)
		do(java, "availablePermits", 0, 0)
	} else {
		do(anyone(), "tryAcquire", rate/2-1, 0)
		do(java, "unlink", 0, 0)
		do(java, "trySetRate", 0, rate/2)
	}
	w.pass(t, l, cfg.interval/2+5000)
	do(java, "tryAcquire", 1, 0)
}
