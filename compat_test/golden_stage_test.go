package compat_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// cast is the services that traces tell of: java1 and java2, go1, and go2 that
// has java1's id.
type cast struct{ actors []*actor }

// newCast returns the services as the models know them: they reach no server.
func newCast(version string) *cast {
	release, module := redissonOf(version), moduleFor(version)
	c := &cast{[]*actor{
		{name: "java1", id: "java1", layout: release.layout, redisson: release},
		{name: "java2", id: "java2", layout: release.layout, redisson: release},
		{name: "go1", id: "go1", layout: module.layout, module: module},
		{name: "go2", id: "java1", layout: module.layout, module: module},
	}}
	for _, a := range c.actors {
		if a.module != nil {
			a.goes, a.held = rratelimiter.New(nil), make(map[string]*rratelimiter.RateLimiter)
		}
	}
	return c
}

func (c *cast) named(name string) *actor {
	i := slices.IndexFunc(c.actors, func(a *actor) bool { return a.name == name })
	if i < 0 {
		return nil
	}
	return c.actors[i]
}

// clients returns the ids that pairs are kept by.
func (c *cast) clients() []string {
	ids := map[string]bool{"": true}
	for _, a := range c.actors {
		ids[a.id] = true
	}
	return slices.Sorted(maps.Keys(ids))
}

// owner returns who wrote a normal member, nil where it does not tell.
func (c *cast) owner(m codec.Member) *actor {
	if m.Layout < codec.LayoutD1 {
		return nil
	}
	tag, _, _ := strings.Cut(string(m.ID), "\x00")
	return c.named(tag)
}

// markLength is how much of a member tells which Client wrote it.
var markLength = map[codec.Layout]int{codec.LayoutD1: 4, codec.LayoutD2: 8}

// stage is where steps are played: a server, and clients of it.
type stage struct {
	*cast
	rdb      *redis.Client
	ids      map[string]string   // in Redis, by those of the cast
	marks    map[string]string   // what the ids of members really begin with, by who wrote them
	limiters map[string]*limiter // by the names in the trace; their states hold no more than what keys there are
	still    bool                // the clock stands while a step is played
}

// limiterNames are those of traces.
var limiterNames = []string{"a", "b"}

// newStage returns one for the release; javas are two clients of it, or none.
func newStage(t *testing.T, version string, rdb *redis.Client, javas ...*javaClient) *stage {
	t.Helper()
	st := &stage{
		cast: newCast(version), rdb: rdb,
		ids: make(map[string]string), marks: make(map[string]string), limiters: make(map[string]*limiter),
	}
	for _, id := range st.clients() {
		st.ids[id] = id
	}
	for i, java := range javas {
		st.actors[i].java = java
		st.ids[st.actors[i].id] = java.ID
	}
	var goes []*actor
	for _, a := range st.actors {
		if a.module != nil {
			goes = append(goes, a)
		}
	}
	inOrder := func(a, b *actor) int { return strings.Compare(st.marks[a.name], st.marks[b.name]) }
	// Members of one time stand in the order of their bytes: it has to be that of
	// the trace.
	for ok := false; !ok; ok = slices.IsSortedFunc(goes, inOrder) {
		for _, a := range goes {
			a.goes = newGo(t, rdb, append(sharing(version), rratelimiter.WithClientID(st.ids[a.id]))...).Client
			st.marks[a.name] = markOf(t, rdb, a)
		}
	}
	for _, name := range limiterNames {
		pairs := make(map[string]*pair)
		for _, id := range st.ids {
			pairs[id] = &pair{}
		}
		st.limiters[name] = &limiter{name: redistest.Name(t) + name, state: &state{pairs: pairs}}
	}
	return st
}

// markOf returns what the ids of a Client's members begin with.
func markOf(t *testing.T, rdb *redis.Client, a *actor) string {
	t.Helper()
	n := markLength[a.layout]
	if n == 0 {
		return ""
	}
	l := a.goes.RateLimiter(redistest.Name(t))
	require.NoError(t, l.SetRate(t.Context(), rratelimiter.PerHour(1)))
	require.NoError(t, l.Acquire(t.Context(), 1))
	rows, err := rdb.ZRange(t.Context(), "{"+l.Name()+"}:permits", 0, -1).Result()
	require.NoError(t, err)
	require.Len(t, rows, 1)
	_, err = l.Delete(t.Context())
	require.NoError(t, err)
	return rows[0][1 : 1+n]
}

// real returns the member that stands in Redis for a normal one.
func (st *stage) real(r row) string {
	if r.owner == nil {
		return r.member
	}
	mark := st.marks[r.owner.name]
	return r.member[:1] + mark + r.member[1+len(mark):]
}

// normalize gives what was read the ids of the trace. What none of the known ids
// is was written by this step, and is numbered.
func (st *stage) normalize(s *state, known map[string]bool, number uint64) error {
	fresh := 0
	for _, p := range s.pairs {
		for i := range p.rows {
			r := &p.rows[i]
			tag := ""
			for name, mark := range st.marks {
				if mark != "" && r.member[1:1+len(mark)] == mark {
					tag = name
				}
			}
			if tag != "" {
				padded := make([]byte, markLength[r.layout])
				copy(padded, tag)
				r.member = r.member[:1] + string(padded) + r.member[1+len(padded):]
			}
			if !known[idPart(r.member)] {
				fresh++
				r.member = normalMember(r.layout, tag, twice(r.member), number, r.permits)
			}
		}
	}
	if fresh > 1 {
		return fmt.Errorf("%d members are new, and a trace numbers but one", fresh)
	}
	return nil
}

// keysOf returns the keys of a limiter.
func (st *stage) keysOf(l *limiter, id string) (config, value, permits string) {
	return (&world{}).keysOf(l, st.ids[id])
}

// put has Redis hold that state of a limiter and nothing else.
func (st *stage) put(ctx context.Context, l *limiter, s *state) error {
	pipe := st.rdb.TxPipeline()
	until := func(key string, end span) {
		if end != never {
			pipe.PExpireAt(ctx, key, time.UnixMilli(end.from))
		}
	}
	config, _, _ := st.keysOf(l, "")
	pipe.Del(ctx, config)
	if s.config != nil {
		pipe.HSet(ctx, config, s.config)
		until(config, s.configEnd)
	}
	for id, p := range s.pairs {
		_, value, permits := st.keysOf(l, id)
		pipe.Del(ctx, value, permits)
		if p.hasValue {
			pipe.Set(ctx, value, p.value, 0)
			until(value, p.valueEnd)
		}
		for _, r := range p.rows {
			pipe.ZAdd(ctx, permits, redis.Z{Score: float64(r.at.from), Member: st.real(r)})
		}
		until(permits, p.rowsEnd)
	}
	_, err := pipe.Exec(ctx)
	return err
}

// read is the reverse of put, but for the ids of members.
func (st *stage) read(t *testing.T, l *limiter) *state {
	t.Helper()
	s := (&world{rdb: st.rdb}).read(t, l)
	pairs := make(map[string]*pair)
	for id, inRedis := range st.ids {
		pairs[id] = s.pairs[inRedis]
	}
	s.pairs = pairs
	return s
}

const (
	// slack is how long a step may take where the clock goes on.
	slack = 400
	// patience is how often a step is played again that took longer.
	patience = 50
)

// play puts the states before a step into Redis, has it done, and tells what
// came of it. number is for the member that it may write.
func (st *stage) play(t *testing.T, s step, before map[string]snapshot, number uint64) (outcome, error) {
	t.Helper()
	for range patience {
		st.hold(t, s)
		b := beat{base: time.Now().UnixMilli()}
		if !st.still {
			b.slack = slack
		}
		known := make(map[string]bool)
		for _, name := range limiterNames {
			state, err := b.state(before[name], st.cast)
			require.NoError(t, err)
			require.NoError(t, st.put(t.Context(), st.limiters[name], state))
			for _, id := range before[name].ids() {
				known[id] = true
			}
		}
		got := st.operation(t.Context(), s, b).do()
		read := make(map[string]*state)
		for _, name := range s.involved() {
			read[name] = st.read(t, st.limiters[name])
		}
		if time.Now().UnixMilli()-b.base > b.slack {
			continue
		}
		for _, state := range read {
			if err := st.normalize(state, known, number); err != nil {
				return outcome{}, err
			}
		}
		out, err := b.outcome(got, func(name string) *state { return read[name] }, s)
		if st.still || !errors.Is(err, errOffBeat) {
			return out, err
		}
	}
	return outcome{}, fmt.Errorf("no step in less than %d ms, in %d attempts", slack, patience)
}

// hold gives the service that the step is of a handle of long standing, if it
// needs one: such a one has been refused lately, and found no leaked permits.
func (st *stage) hold(t *testing.T, s step) {
	t.Helper()
	if !s.Held {
		return
	}
	who, l := st.named(s.Who), st.limiters[s.On]
	handle := who.goes.RateLimiter(l.name)
	require.NoError(t, handle.SetRate(t.Context(), rratelimiter.PerHour(1)))
	for _, granted := range []bool{true, false} {
		ok, err := handle.TryAcquire(t.Context(), 1, 0)
		require.NoError(t, err)
		require.Equal(t, granted, ok)
	}
	who.held[l.name] = handle
}

// operation returns what the step does on the stage.
func (st *stage) operation(ctx context.Context, s step, b beat) *operation {
	return s.operation(ctx, st.named(s.Who), st.limiters[s.On], st.limiters[s.To], b)
}

// requireNoOtherKeys checks that the limiters have none but the keys that
// snapshots tell of.
func (st *stage) requireNoOtherKeys(t *testing.T) {
	t.Helper()
	w := &world{rdb: st.rdb}
	for _, name := range limiterNames {
		w.limiters = append(w.limiters, st.limiters[name])
	}
	w.requireNoOtherKeys(t)
}
