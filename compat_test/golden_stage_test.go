package compat_test

import (
	"context"
	"encoding/binary"
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
	layout "github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/model"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// actor is a service: a client of either library.
type actor struct {
	model.Client

	name    string
	release *model.Release // of Redisson; nil in Go
	module  *model.Module  // in Go
	java    *javaClient
	goes    *rratelimiter.Client
}

func (a *actor) side() string {
	if a.release != nil {
		return "Java"
	}
	return "Go"
}

func (a *actor) outcomes(c *model.Call, op model.Op) []model.Outcome {
	if c.Who = a.Client; a.release != nil {
		return a.release.Outcomes(c, op)
	}
	return a.module.Outcomes(c, op)
}

// cast is the services that histories tell of: java1 and java2, go1, and go2 that has
// java1's id; services must not do that, but so both languages meet in a client's pair.
type cast []*actor

// newCast returns the services as the models know them: they reach no server.
func newCast(oldest string, javas ...*model.Release) cast {
	var c cast
	module := model.Beside(model.ReleaseOf(oldest))
	for i, release := range javas {
		c = c.with(&actor{name: fmt.Sprint("java", i+1), release: release}, "", release.Layout)
	}
	c = c.with(&actor{name: "go1", module: module}, "", module.Layout)
	return c.with(&actor{name: "go2", module: module}, "java1", module.Layout)
}

func traceCast(version string) cast {
	release := model.ReleaseOf(version)
	return newCast(version, release, release)
}

// withMore adds go3 that has go1's id, and go4.
func (c cast) withMore() cast {
	goes := c.named("go1")
	c = c.with(&actor{name: "go3", module: goes.module}, goes.ID, goes.Layout)
	return c.with(&actor{name: "go4", module: goes.module}, "", goes.Layout)
}

func (c cast) with(a *actor, id string, writes codec.Layout) cast {
	if id == "" {
		id = a.name
	}
	if a.Client = (model.Client{ID: id, Layout: writes}); a.module != nil && markLength[writes] > 0 {
		a.Number = len(c) + 1
	}
	return append(c, a)
}

func (c cast) named(name string) *actor {
	i := slices.IndexFunc(c, func(a *actor) bool { return a.name == name })
	if i < 0 {
		return nil
	}
	return c[i]
}

func (c cast) of(side string) cast {
	return slices.DeleteFunc(slices.Clone(c), func(a *actor) bool { return a.side() != side })
}

// clients returns the ids that pairs are kept by, without that which all share.
func (c cast) clients() []string {
	ids := map[string]bool{}
	for _, a := range c {
		ids[a.ID] = true
	}
	return slices.Sorted(maps.Keys(ids))
}

// markLength is how much of a member tells which Client wrote it.
var markLength = map[codec.Layout]int{codec.LayoutD1: 4, codec.LayoutD2: 8}

// newMember returns the normal member that the service writes.
func (a *actor) newMember(number uint64, permits int64) model.Member {
	tag := ""
	if a.Number > 0 {
		tag = a.name
	}
	return normalMember(a.Layout, tag, a.module != nil && a.Layout == codec.LayoutC, number, permits)
}

// normalMember returns a member of a numbered id that is as long as the layout's
// are. Members that tell who wrote them begin with that one's tag.
func normalMember(layout codec.Layout, tag string, double bool, number uint64, permits int64) model.Member {
	length := map[codec.Layout]int{codec.LayoutB: 4, codec.LayoutC: 8, codec.LayoutD1: 8, codec.LayoutD2: 16}[layout]
	id := make([]byte, length)
	copy(id, tag)
	id[length-3], id[length-2], id[length-1] = byte(number>>16), byte(number>>8), byte(number)
	if double {
		binary.LittleEndian.PutUint32(id[1:], uint32(permits))
	}
	member, err := codec.Append(nil, layout, id, uint32(permits))
	if err != nil {
		panic(err) // the layouts are those above
	}
	return model.Member(member)
}

// numberOf returns the number that a normal member's id ends in.
func numberOf(r model.Row) uint64 {
	id := r.Member.ID()
	n := len(id)
	return uint64(id[n-3])<<16 | uint64(id[n-2])<<8 | uint64(id[n-1])
}

// stage is where steps are played: a server, and clients of it.
type stage struct {
	cast

	rdb   redistest.Client
	ids   map[string]string // in Redis, by those of the cast
	marks map[*actor]string // what the ids of members really begin with, by who wrote them
	names map[string]string // of the limiters in Redis, by those of the cast
	still bool              // the clock stands while a step is played
}

var limiterNames = []string{"a", "b", "c", "d"}

// newStage returns one for the services, of which Java has these clients, or none.
func newStage(t *testing.T, c cast, oldest string, rdb redistest.Client, javas ...*javaClient) *stage {
	t.Helper()
	st := &stage{cast: c, rdb: rdb, ids: map[string]string{"": ""}, marks: map[*actor]string{}, names: map[string]string{}}
	for _, id := range st.clients() {
		st.ids[id] = id
	}
	for i, java := range javas {
		st.cast[i].java = java
		st.ids[st.cast[i].ID] = java.ID
	}
	inOrder := func(a, b *actor) int { return strings.Compare(st.marks[a], st.marks[b]) }
	// Members of one time stand in the order of their bytes: it must be the models'.
	for ok := false; !ok; ok = slices.IsSortedFunc(c.of("Go"), inOrder) {
		for _, a := range c.of("Go") {
			a.goes = newGo(t, rdb, append(sharing(oldest), rratelimiter.WithClientID(st.ids[a.ID]))...).Client
			st.marks[a] = markOf(t, rdb, a)
		}
	}
	tag := "{" + redistest.Name(t) + "}"
	for _, name := range limiterNames {
		st.names[name] = tag + name
	}
	return st
}

// markOf returns what the ids of a Client's members begin with.
func markOf(t *testing.T, rdb redistest.Client, a *actor) string {
	t.Helper()
	n := markLength[a.Layout]
	if n == 0 {
		return ""
	}
	l := a.goes.RateLimiter(redistest.Name(t))
	limitertest.MustTrySetRate(t, l, rratelimiter.PerHour(1))
	limitertest.MustAcquire(t, l, 1)
	rows := limitertest.Must(rdb.ZRange(t.Context(), "{"+l.Name()+"}:permits", 0, -1).Result())(t)
	require.Len(t, rows, 1)
	require.NoError(t, limitertest.Second(l.Delete(t.Context())))
	return rows[0][1 : 1+n]
}

// real returns the member that stands in Redis for a normal one.
func (st *stage) real(r model.Row) string {
	if r.By == 0 {
		return string(r.Member)
	}
	mark := st.marks[st.cast[r.By-1]]
	return string(r.Member[:1]) + mark + string(r.Member[1+len(mark):])
}

// normalize replaces the ids read by the history's. An unknown id was written by this step, and gets a number.
func (st *stage) normalize(s *model.State, known map[string]bool, number uint64) error {
	fresh := 0
	for _, p := range s.Pairs {
		for i := range p.Rows {
			r := &p.Rows[i]
			tag := ""
			for who, mark := range st.marks {
				if mark == "" || string(r.Member[1:1+len(mark)]) != mark {
					continue
				}
				tag, r.By = who.name, who.Number
				padded := make([]byte, len(mark))
				copy(padded, tag)
				r.Member = r.Member[:1] + model.Member(padded) + r.Member[1+len(mark):]
				break
			}
			if reserved := unsettled(r.Member); known[reserved.ID()] {
				r.Member = reserved
			} else if !known[r.Member.ID()] {
				fresh++
				r.Member = normalMember(r.Layout, tag, r.Member.Twice(), number, r.Permits)
			}
		}
	}
	if fresh > 1 {
		return fmt.Errorf("%d members are new, and a history numbers but one", fresh)
	}
	return nil
}

// unsettled returns the member that a reservation had before more was charged: since then a bit of its id is another.
func unsettled(m model.Member) model.Member {
	at := map[int]int{8: 0, 13: 5, 20: 8, 21: 12}[len(m)]
	return m[:at] + model.Member([]byte{m[at] ^ 0x80}) + m[at+1:]
}

// put makes Redis hold that state of a limiter and nothing else, base being its time 0.
func (st *stage) put(ctx context.Context, name string, s *model.State, base int64) error {
	pipe := st.rdb.TxPipeline()
	until := func(key string, end int64) {
		if end != 0 {
			pipe.PExpireAt(ctx, key, time.UnixMilli(base+end))
		}
	}
	config := layout.KeysOf(name, "").Config
	pipe.Del(ctx, config)
	if s.Config != nil {
		pipe.HSet(ctx, config, s.Config)
		until(config, s.ConfigEnd)
	}
	for id, p := range s.Pairs {
		value, permits := pairKeys(name, st.ids[id])
		pipe.Del(ctx, value, permits)
		if p.HasValue {
			pipe.Set(ctx, value, p.Value, 0)
			until(value, p.ValueEnd)
		}
		for _, r := range p.Rows {
			pipe.ZAdd(ctx, permits, redis.Z{Score: float64(base + r.At), Member: st.real(r)})
		}
		until(permits, p.RowsEnd)
	}
	_, err := pipe.Exec(ctx)
	return err
}

func pairKeys(name, id string) (value, permits string) {
	set := layout.KeysOf(name, id)
	if id == "" {
		return set.Value, set.Permits
	}
	return set.ClientValue, set.ClientPermits
}

// read is the reverse of put, except for the ids of members.
func (st *stage) read(t *testing.T, name string) *model.State {
	t.Helper()
	var ids []string
	for _, id := range st.clients() {
		ids = append(ids, st.ids[id])
	}
	read, _, err := model.Read(t.Context(), st.rdb, name, ids...)
	require.NoError(t, err)
	s := *read
	s.Pairs = make(map[string]*model.Pair)
	for id, inRedis := range st.ids {
		s.Pairs[id] = read.Pairs[inRedis]
	}
	return &s
}

const (
	second = 1000
	// goldenTick is what all times in a history are multiples of.
	goldenTick = 5 * second
	// slack is how long a step may take if the clock goes on.
	slack = 900
	// patience is how often a step is played again that took longer.
	patience = 50
)

// play puts the states before a step into Redis, does the step, and returns the result.
func (st *stage) play(t *testing.T, s step, h *history) (outcome, error) {
	t.Helper()
	if who := st.named(s.Who); who.release != nil && who.java == nil {
		return s.models(h)[0], nil // there is no Java to ask
	}
	most, unit := int64(slack), int64(goldenTick)
	if st.still {
		most, unit = 0, 1
	}
	for range patience {
		handle := st.handle(t, s)
		known := make(map[string]bool)
		base := time.Now().UnixMilli()
		for name, state := range h.states {
			require.NoError(t, st.put(t.Context(), st.names[name], state, base))
			for _, r := range rows(state) {
				known[r.Member.ID()] = true
			}
		}
		got := st.do(t.Context(), s, handle, base)
		read := make(map[string]*model.State)
		for _, name := range s.involved() {
			read[name] = st.read(t, st.names[name])
		}
		if time.Now().UnixMilli()-base > most {
			continue
		}
		out, off := outcome{Answer: got.Text}, int64(0)
		for _, ms := range got.Times {
			rounded := model.Round(ms, unit)
			out.Times = append(out.Times, rounded)
			off = max(off, ms-rounded, rounded-ms)
		}
		for i, name := range s.involved() {
			state := read[name]
			if err := st.normalize(state, known, h.last+1); err != nil {
				return outcome{}, err
			}
			off = max(off, state.Round(base, unit))
			if i == 0 {
				out.State = state
			} else {
				out.Target = append(out.Target, state)
			}
		}
		switch {
		case off <= most:
			return out, nil
		case slices.ContainsFunc(s.models(h), outcome.betweenTicks):
			return outcome{}, errBetweenTicks
		}
	}
	return outcome{}, fmt.Errorf("no step in less than %d ms, in %d attempts: %+v", slack, patience, s)
}

func (st *stage) do(ctx context.Context, s step, handle *rratelimiter.RateLimiter, base int64) model.Answer {
	op, who := s.Op, st.named(s.Who)
	op.To = nil
	for _, name := range s.To {
		op.To = append(op.To, st.names[name])
	}
	if op.Row != nil {
		row := *op.Row
		row.Member = model.Member(st.real(row))
		op.Row = &row
	}
	if who.java != nil {
		return javaDo(ctx, who.java, st.names[s.On], op, base)
	}
	return model.Do(ctx, who.goes, handle, op, base)
}

// handle returns the handle of the Go service that does a step. One of long standing has been refused lately, and found no leaked permits.
func (st *stage) handle(t *testing.T, s step) *rratelimiter.RateLimiter {
	t.Helper()
	who := st.named(s.Who)
	if who.goes == nil {
		return nil
	}
	handle := who.goes.RateLimiter(st.names[s.On], rratelimiter.WithExact())
	if s.Held {
		require.NoError(t, handle.SetRate(t.Context(), rratelimiter.PerHour(1)))
		limitertest.MustAcquire(t, handle, 1)
		limitertest.MustRefuse(t, handle, 1)
	}
	return handle
}

// requireNoOtherKeys checks that the limiters have none but the keys that states tell of.
func (st *stage) requireNoOtherKeys(t *testing.T) {
	t.Helper()
	known := make(map[string]bool)
	for _, name := range st.names {
		known[name] = true
		for _, id := range st.ids {
			value, permits := pairKeys(name, id)
			known[value], known[permits] = true, true
		}
	}
	for _, name := range st.names {
		for _, key := range redistest.Keys(t, st.rdb, "*"+name+"*") {
			require.True(t, known[key], "key %q", key)
		}
	}
}
