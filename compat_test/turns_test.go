package compat_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// TestTurns has Go and Java services work the same limiters by turns, at
// random. After every operation its answer and all that Redis holds must be
// what the model says.
//
// No result depends on how fast the machine is. Intervals are long, time passes
// by moving the state back in time, and no operation comes near the end of
// anything. Where the machine stood still for seconds, so that one did, the
// history goes on from what Redis holds then.
func TestTurns(t *testing.T) {
	t.Parallel()
	driver := sharedDriver(t)
	if *redissonVersion != newestRedisson {
		t.Skip("the model is of Redisson " + newestRedisson)
	}
	w := newWorld(t, driver)
	begin := time.Now()
	for w.operations < *operations {
		w.turn(t)
	}
	w.requireNoOtherKeys(t)
	var counts strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(w.counts)) {
		n := w.counts[kind]
		fmt.Fprintf(&counts, " %s %d+%d", kind, n[false], n[true])
	}
	t.Logf("seed %d: %d operations in %v, %d of no certain answer, %d mismatches; by kind, Go+Java:%s",
		w.seed, w.operations, time.Since(begin).Round(time.Millisecond), w.uncertain, w.mismatches, counts.String())
}

// actor is a service: a client of either library.
type actor struct {
	name string
	id   string
	java *javaClient
	goes *rratelimiter.Client
	held map[string]*rratelimiter.RateLimiter // handles of long standing
}

// limiter is one that all actors share, and what the model takes it to be.
type limiter struct {
	name  string
	state *state
}

type world struct {
	seed     uint64
	rnd      *rand.Rand
	rdb      *redis.Client
	actors   []*actor
	limiters []*limiter
	history  []string

	operations, uncertain, mismatches int
	counts                            map[string]map[bool]int // by kind and whether Java did it
}

func newWorld(t *testing.T, driver *javaDriver) *world {
	t.Helper()
	w := &world{seed: *seed, rdb: redistest.Redis(t), counts: make(map[string]map[bool]int)}
	if w.seed == 0 {
		w.seed = rand.Uint64()
	}
	w.rnd = rand.New(rand.NewPCG(w.seed, 0))
	t.Logf("seed %d", w.seed)

	addGo := func(name string, opts ...rratelimiter.Option) {
		client := rratelimiter.New(w.rdb, opts...)
		t.Cleanup(func() { require.NoError(t, client.Close(context.Background())) })
		w.actors = append(w.actors, &actor{
			name: name, id: idOf(t, w.rdb, client), goes: client,
			held: make(map[string]*rratelimiter.RateLimiter),
		})
	}
	for _, name := range []string{"java1", "java2"} {
		java := driver.open(t, redistest.Shared(t).URL())
		w.actors = append(w.actors, &actor{name: name, id: java.ID, java: java})
	}
	shared := rratelimiter.WithClientID(redistest.Name(t))
	addGo("go1")
	addGo("go2", shared)
	addGo("go3", shared)
	// Services must not do that, but so both languages meet in a client's pair.
	addGo("go4", rratelimiter.WithClientID(w.actors[0].id))
	for range 4 {
		s := &state{pairs: map[string]*pair{"": {}}}
		for _, a := range w.actors {
			s.pairs[a.id] = &pair{}
		}
		w.limiters = append(w.limiters, &limiter{name: redistest.Name(t), state: s})
	}
	return w
}

// idOf returns the id under which a client keeps its own permits.
func idOf(t *testing.T, rdb *redis.Client, client *rratelimiter.Client) string {
	t.Helper()
	limiter := client.RateLimiter(redistest.Name(t))
	require.NoError(t, limiter.SetRate(t.Context(), perClient(rratelimiter.PerHour(1))))
	require.NoError(t, limiter.Acquire(t.Context(), 1))
	prefix := keys.For(limiter.Name(), "").ClientValue
	found, err := rdb.Keys(t.Context(), prefix+"*").Result()
	require.NoError(t, err)
	require.Len(t, found, 1)
	_, err = limiter.Delete(t.Context())
	require.NoError(t, err)
	return strings.TrimPrefix(found[0], prefix)
}

// operation is one turn of an actor.
type operation struct {
	kind string
	text string // with its arguments
	do   func() answer
	// may holds what the operation may do, told on the model; false where the
	// case is not given.
	may       []func(*call) (answer, bool)
	intervals []int64  // that it uses, besides the limiter's
	second    *limiter // that it changes too
	rule      func(*call) string
}

const maxMismatches = 5

// turn lets something happen to one of the limiters.
func (w *world) turn(t *testing.T) {
	t.Helper()
	l := w.limiters[w.rnd.IntN(len(w.limiters))]
	switch n := w.rnd.IntN(1000); {
	case n < 80:
		interval := max(l.state.interval(), 1000)
		w.pass(t, l, []int64{interval / 6, interval / 2, interval + 5000}[w.rnd.IntN(3)])
	case n < 92:
		w.lose(t, l)
	case n < 98:
		w.hasten(t, l)
	default:
		who := w.actors[w.rnd.IntN(len(w.actors))]
		w.operate(t, who, l, w.operation(t.Context(), who, l))
	}
}

// operate has an operation done and compares what came of it.
func (w *world) operate(t *testing.T, who *actor, l *limiter, op *operation) {
	t.Helper()
	involved := []*limiter{l}
	if op.second != nil {
		involved = append(involved, op.second)
	}
	for _, l := range involved {
		w.stepAside(t, l, op.intervals)
	}
	from := time.Now().UnixMilli()
	got := op.do()
	now := span{from, time.Now().UnixMilli()}
	w.note("%s: %s %s: %v", l.name, who.name, op.text, got)
	w.operations++
	if w.counts[op.kind] == nil {
		w.counts[op.kind] = make(map[bool]int)
	}
	w.counts[op.kind][who.java != nil]++

	read := make([]*state, len(involved))
	for i, l := range involved {
		read[i] = w.read(t, l)
	}
	var diffs []string
	certain := true
	for _, may := range op.may {
		c := &call{who: who, now: now}
		wanted := make([]*state, len(involved))
		for i, l := range involved {
			wanted[i] = l.state.clone()
			c.unsure = !wanted[i].expireKeys(now) || c.unsure
		}
		c.state, c.second = wanted[0], wanted[len(wanted)-1]
		want, given := may(c)
		certain = certain && !c.unsure
		if !given {
			continue
		}
		var diff []string
		if !got.same(want) {
			diff = append(diff, fmt.Sprintf("the answer is not %v", want))
		}
		for i := range involved {
			if why := read[i].differs(wanted[i]); why != "" {
				diff = append(diff, fmt.Sprintf("%s\nwanted: %v\nfound:  %v", why, wanted[i], read[i]))
			}
		}
		if len(diff) > 0 {
			diffs = append(diffs, strings.Join(diff, "; "))
			continue
		}
		if op.rule != nil && !strings.HasPrefix(got.text, "error") {
			if why := op.rule(&call{state: read[0], who: who}); why != "" {
				w.mismatch(t, l, fmt.Sprintf("%s\nfound: %v", why, read[0]))
			}
		}
		for i, l := range involved {
			l.state = read[i]
		}
		return
	}
	if certain {
		w.mismatch(t, l, strings.Join(diffs, "\nor "))
	} else {
		w.uncertain++
		w.note("%s: something ended meanwhile: the answer is not certain", l.name)
	}
	for i, l := range involved {
		read[i].inherit(l.state, who)
		l.state = read[i]
	}
}

func (w *world) mismatch(t *testing.T, l *limiter, why string) {
	t.Helper()
	w.mismatches++
	t.Errorf("%s, after %d operations: %s\nbefore: %v\nwhat came before, last of all the operation (-seed %d -ops %d):\n%s",
		l.name, w.operations, why, l.state, w.seed, *operations, strings.Join(w.history, "\n"))
	if w.mismatches == maxMismatches {
		t.FailNow()
	}
}

func (w *world) note(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf(format, args...))
	w.history = w.history[max(0, len(w.history)-20):]
}

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
	config, value, permits := w.keysOf(l, id)
	ctx := t.Context()
	switch w.rnd.IntN(4) {
	case 0:
		w.happen(t, l, fmt.Sprintf("the value of client %q gets lost", id), func(s *state, _ span) bool {
			p := s.pairs[id]
			p.hasValue, p.value, p.valueEnd = false, 0, never
			return true
		}, func() error { return w.rdb.Del(ctx, value).Err() })
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
		w.happen(t, l, "it is one of Redisson 3.37", func(s *state, _ span) bool {
			delete(s.config, "keepAliveTime")
			return true
		}, func() error { return w.rdb.HDel(ctx, config, "keepAliveTime").Err() })
	}
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

func (w *world) keysOf(l *limiter, id string) (config, value, permits string) {
	set := keys.For(l.name, id)
	if id == "" {
		return set.Config, set.Value, set.Permits
	}
	return set.Config, set.ClientValue, set.ClientPermits
}

// read returns what Redis holds of a limiter.
func (w *world) read(t *testing.T, l *limiter) *state {
	t.Helper()
	ctx := t.Context()
	type pairReply struct {
		value            *redis.StringCmd
		rows             *redis.ZSliceCmd
		valueTTL, setTTL *redis.DurationCmd
	}
	pipe := w.rdb.Pipeline()
	config, configTTL := pipe.HGetAll(ctx, l.name), pipe.PTTL(ctx, l.name)
	replies := make(map[string]pairReply)
	for id := range l.state.pairs {
		_, value, permits := w.keysOf(l, id)
		replies[id] = pairReply{
			pipe.Get(ctx, value), pipe.ZRangeWithScores(ctx, permits, 0, -1),
			pipe.PTTL(ctx, value), pipe.PTTL(ctx, permits),
		}
	}
	from := time.Now().UnixMilli()
	if _, err := pipe.Exec(ctx); !errors.Is(err, redis.Nil) {
		require.NoError(t, err)
	}
	now := span{from, time.Now().UnixMilli()}
	end := func(ttl *redis.DurationCmd) span {
		if ttl.Val() < 0 {
			return never
		}
		return now.add(ttl.Val().Milliseconds())
	}

	s := &state{configEnd: end(configTTL), pairs: make(map[string]*pair)}
	if len(config.Val()) > 0 {
		s.config = config.Val()
		delete(s.config, "answered") // of a repeat, where an answer was long in coming
	}
	for id, reply := range replies {
		p := &pair{valueEnd: end(reply.valueTTL), rowsEnd: end(reply.setTTL)}
		if reply.value.Err() == nil {
			p.hasValue = true
			n, err := reply.value.Int64()
			require.NoError(t, err)
			require.Equal(t, strconv.FormatInt(n, 10), reply.value.Val(), "the value's text")
			p.value = n
		}
		for _, z := range reply.rows.Val() {
			member, err := codec.Parse(z.Member.(string))
			require.NoError(t, err)
			require.Equal(t, codec.LayoutD2, member.Layout)
			at := int64(z.Score)
			require.InDelta(t, z.Score, at, 0, "a score of whole milliseconds")
			p.rows = append(p.rows, row{member: z.Member.(string), permits: int64(member.Permits), at: span{at, at}})
		}
		// Calls that meet more rows than one script may touch do more than the
		// model knows.
		require.Less(t, len(p.rows), 200, "rows")
		s.pairs[id] = p
	}
	return s
}

// requireNoOtherKeys checks that the limiters have no key that the model does
// not know of.
func (w *world) requireNoOtherKeys(t *testing.T) {
	t.Helper()
	known := make(map[string]bool)
	for _, l := range w.limiters {
		for id := range l.state.pairs {
			config, value, permits := w.keysOf(l, id)
			known[config], known[value], known[permits] = true, true, true
		}
	}
	for _, l := range w.limiters {
		it := w.rdb.Scan(t.Context(), 0, "*"+l.name+"*", 1000).Iterator()
		for it.Next(t.Context()) {
			require.True(t, known[it.Val()], "key %q", it.Val())
		}
		require.NoError(t, it.Err())
	}
}
