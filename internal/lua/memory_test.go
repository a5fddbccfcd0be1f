package lua

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// memoryState is what a limiter of 10 permits an hour has before a call.
type memoryState struct {
	value string  // "" for none
	ages  []int64 // in ms, of members of 3 permits each
	lost  bool    // there is no configuration
	ends  bool    // the value counts a window
}

var memoryStates = map[string]memoryState{
	"new":                   {lost: true},
	"known":                 {value: "10"},
	"in use":                {value: "7", ages: []int64{1000}},
	"exhausted":             {value: "1", ages: []int64{1000, 2000, 3000}},
	"leaked":                {value: "1", ages: []int64{1000}},
	"above the rate":        {value: "12", ages: []int64{1000}},
	"run out":               {value: "7", ages: []int64{7200000}},
	"some run out":          {value: "1", ages: []int64{1000, 7200000, 7300000}},
	"ahead":                 {value: "7", ages: []int64{-60000}},
	"window":                {value: "1", ends: true},
	"lost value, in use":    {ages: []int64{1000}},
	"lost value, run out":   {ages: []int64{7200000}},
	"lost config":           {lost: true, value: "7", ages: []int64{1000}},
	"lost config and value": {lost: true, ages: []int64{7200000}},
}

// memoryKind is how a limiter was set up, and the layout of its members.
type memoryKind struct {
	layout          codec.Layout
	perClient, keep bool
}

type memoryCall struct {
	script *Script
	args   []any
	frees  bool
	joint  string // the state of a second limiter, "" for none
	second bool   // that limiter comes first
}

type memoryRun struct {
	memoryCall

	name   string
	unset  bool // a key is lost
	keys   []string
	before []string // what they hold
}

// memoryScene is a server that has memory, or has none left.
type memoryScene struct {
	*testing.T

	rdb redistest.Client
	now int64 // in ms
}

func (s *memoryScene) dump(keys []string) []string {
	pipe, all := s.rdb.Pipeline(), make([]string, len(keys))
	for _, key := range keys {
		pipe.Dump(s.Context(), key)
	}
	dumps, err := pipe.Exec(s.Context())
	if err != nil {
		require.ErrorIs(s, err, redis.Nil)
	}
	for i, dump := range dumps {
		all[i] = dump.(*redis.StringCmd).Val()
	}
	return all
}

func (s *memoryScene) prepare(k memoryKind, st memoryState, keys []string) {
	pipe, ctx := s.rdb.Pipeline(), s.Context()
	value, permits, kind, keep := keys[1], keys[3], 0, 0
	if k.perClient {
		value, permits, kind = keys[2], keys[4], 1
	}
	if k.keep {
		keep = 7000000
	}
	if !st.lost {
		pipe.HSet(ctx, keys[0], "rate", 10, "interval", 3600000, "type", kind, "keepAliveTime", keep)
	}
	if st.value != "" {
		pipe.Set(ctx, value, st.value, 0)
	}
	for i, age := range st.ages {
		pipe.ZAdd(ctx, permits, row(s.now-age, rowOf(k.layout, i)))
	}
	for _, key := range keys {
		if k.keep {
			pipe.PExpire(ctx, key, 5000*time.Second)
		}
	}
	if st.ends {
		pipe.PExpireAt(ctx, value, time.UnixMilli(s.now).Add(1000*time.Second))
	}
	_, err := pipe.Exec(ctx)
	require.NoError(s, err)
}

// rowOf returns a member of 3 permits.
func rowOf(layout codec.Layout, n int) string {
	return memberOf(layout, n)[:len(memberOf(layout, n))-4] + "\x03\x00\x00\x00"
}

func (s *memoryScene) limiters(k memoryKind) memoryGroup {
	keys := func(id string) []string { return redisson.KeysOf(id, "id").List() }
	g := memoryGroup{fmt.Sprintf("%+v", k), keys, map[string]func(keys []string){}, s.memoryCalls(k)}
	for state, st := range memoryStates {
		g.states[state] = func(keys []string) { s.prepare(k, st, keys) }
	}
	return g
}

func (s *memoryScene) runs(g memoryGroup) (runs []*memoryRun) {
	for state, prepare := range g.states {
		for name, call := range g.calls {
			r := &memoryRun{memoryCall: call, name: fmt.Sprintf("%s: %s of %s, %s", call.script.Name, name, state, g.name)}
			r.unset = len(g.keys("")) == 5 && memoryStates[state].value == ""
			id := strconv.Itoa(len(runs))
			keys, other := g.keys(id), g.keys(id+"o")
			prepare(keys)
			if call.joint != "" {
				g.states[call.joint](other)
			}
			switch {
			case call.script == AcquireMany:
				keys = []string{keys[0], keys[1], keys[3]}
			case call.second:
				keys = append(other, keys...)
			case call.joint != "":
				keys = append(keys, other...)
			}
			r.keys, r.before = keys, s.dump(keys)
			runs = append(runs, r)
		}
	}
	return runs
}

// memoryCalls are the calls of all scripts of limiters that may write.
func (s *memoryScene) memoryCalls(k memoryKind) map[string]memoryCall {
	mine, first := rowOf(k.layout, 77), rowOf(k.layout, 0)
	ends := s.now + 1000000
	fallback := fmt.Sprintf("10 3600000 %d 0", map[bool]int{true: 1}[k.perClient])
	calls := map[string]memoryCall{
		"acquire":               {script: Acquire, args: []any{mine, "3", fallback}},
		"acquire figures":       {script: Acquire, args: []any{mine, "3", fallback, "fa", "", "", 0, 3, 1}},
		"acquire singly":        {script: Acquire, args: []any{mine, "3", fallback, "s", "", "", 0, 3, 1}},
		"acquire in a window":   {script: Acquire, args: []any{mine, "3", fallback, "w", "", "", 0, 3, 1}},
		"acquire up to":         {script: Acquire, args: []any{mine, "9", fallback, "u", "", "", 0, 9, 1}},
		"acquire again":         {script: Acquire, args: []any{mine, "3", fallback, "", "1000", "", 0, 3, 1}},
		"acquire what was":      {script: Acquire, args: []any{first, "3", fallback, "", "5000", "", 0, 3, 1}},
		"acquire many":          {script: AcquireMany, args: []any{1, mine, "3"}},
		"available":             {script: Available, args: []any{"", ""}},
		"try set rate":          {script: SetRate, args: []any{10, 3600000, 0, 7000000, 1, "new", ""}},
		"set rate":              {script: SetRate, args: []any{20, 1000, 0, 0, 0, 0, ""}},
		"set rate and keep":     {script: SetRate, args: []any{20, 1000, 0, 7000000, 1, 0, ""}},
		"use default":           {script: UseDefault},
		"migrate":               {script: Migrate, args: []any{mine, ""}},
		"release a part":        {script: Release, args: []any{1, first[1:5], "", "", "call"}, frees: true},
		"release own":           {script: Release, args: []any{4, "none", "", "own", "call"}, frees: true},
		"release all":           {script: Release, args: []any{10, "none", "", "", "call"}, frees: true},
		"give back a part":      {script: GiveBack, args: []any{first, 1, "", 5000, "", "id"}, frees: true},
		"give back":             {script: GiveBack, args: []any{first, 3, "", 5000, "", "id"}, frees: true},
		"give back of a window": {script: GiveBack, args: []any{"", 1, "", ends, "", "id"}, frees: true},
		"renew":                 {script: RenewReservation, args: []any{first, ""}, frees: true},
		"renew, held":           {script: RenewReservation, args: []any{first, "1000"}, frees: true},
		"delete":                {script: Delete, frees: true},
		"reset":                 {script: Reset, args: []any{"1"}, frees: true},
		"rename":                {script: Rename, joint: "known", frees: true},
		"expire":                {script: Expire, args: []any{"PEXPIRE", 100000, ""}, frees: true},
		"clear expire":          {script: Expire, args: []any{"PERSIST", 0, ""}, frees: true},
	}
	others := []string{"known", "new", "exhausted", "some run out", "lost value, in use"}
	for what, args := range map[string][]any{
		"":       {mine, 3, "", "", "", "a" + fallback},
		" held":  {mine, "3h1000", "f", "", "", fallback},
		" again": {mine, 3, "", "1000", "", fallback}, " what was": {first, 3, "", "5000", "", fallback},
	} {
		calls["acquire all"+what] = memoryCall{script: AcquireAll, args: args}
		if k.layout != codec.LayoutD2 {
			continue
		}
		for _, other := range others {
			both := append(slices.Clone(args), fallback)
			calls["acquire all"+what+" before "+other] = memoryCall{script: AcquireAll, args: both, joint: other}
			calls["acquire all"+what+" after "+other] = memoryCall{script: AcquireAll, args: both, joint: other, second: true}
		}
	}
	return calls
}

// memoryGroup is calls, each of which finds each of the states.
type memoryGroup struct {
	name   string
	keys   func(id string) []string
	states map[string]func(keys []string)
	calls  map[string]memoryCall
}

// otherGroups are of the other scripts that may write.
func (s *memoryScene) otherGroups() []memoryGroup {
	ctx, second := s.Context(), s.now/1000
	ends := s.now + 9000000
	calendar := fmt.Sprint(s.now-9000000, ends, ends+9000000)
	log := func(ages ...int64) func(keys []string) {
		return func(keys []string) {
			for i, age := range ages {
				s.rdb.ZAdd(ctx, keys[0], row(s.now-age, fmt.Sprintf("id:%d", i)))
			}
		}
	}
	set := func(values ...any) func(keys []string) {
		return func(keys []string) {
			for i, value := range values {
				s.rdb.Set(ctx, keys[i], value, 0)
				s.rdb.PExpireAt(ctx, keys[i], time.UnixMilli(ends))
			}
		}
	}
	endless := func(keys []string) { s.rdb.Set(ctx, keys[0], 4, 0) }
	logs := map[string]func(keys []string){
		"new": log(), "in use": log(1000), "exhausted": log(1000, 2000, 3000, 4000), "run out": log(7200000, 7200000),
		"some run out": log(1000, 7200000), "ahead": log(-60000, 1000),
	}
	counters := map[string]func(keys []string){"new": set(), "in use": set(4), "exhausted": set(10), "endless": endless}
	buckets := map[string]func(keys []string){
		"new": set(), "in use": set(4, second), "exhausted": set(0, second), "refilled": set(0, second-4000), "half": set(4),
		"ahead": set(4, second+3600),
	}
	one := func(id string) []string { return []string{"{" + id + "}"} }
	two := func(id string) []string { return []string{"{" + id + "}", "{" + id + "}:2"} }
	return []memoryGroup{
		{"logs", one, logs, map[string]memoryCall{
			"take":        {script: SlidingLog, args: []any{4, 3600000, "", "mine", "", 1, 1}},
			"take again":  {script: SlidingLog, args: []any{4, 3600000, "", "mine", "1", 1, 1}},
			"take two":    {script: SlidingLog, args: []any{4, 3600000, "", "mine", "", 1, 2, 3, 1}},
			"give back":   {script: SlidingLogGiveBack, args: []any{"id", 0, 2, 3600000}, frees: true},
			"note client": {script: NoteClient, args: []any{"me", 60000}},
		}},
		{"counters", one, counters, map[string]memoryCall{
			"take":      {script: FixedWindow, args: []any{10, 9000000, 3, 1}},
			"take two":  {script: FixedWindow, args: []any{10, 9000000, 1, 2, 8, 1}},
			"give back": {script: FixedWindowSettle, args: []any{2, ends, 9000000}, frees: true},
			"charge":    {script: FixedWindowSettle, args: []any{-2, ends, 9000000}, frees: true},
			"pause":     {script: Pause, args: []any{9000000, 429}},

			"take, calendar":      {script: FixedWindow, args: []any{10, calendar, 3, 1}},
			"give back, calendar": {script: FixedWindowSettle, args: []any{2, ends, ""}, frees: true},
		}},
		{"buckets", two, buckets, map[string]memoryCall{
			"take":      {script: TokenBucket, args: []any{10, 2, 3600, 0, 18000000, 3, 1}},
			"take two":  {script: TokenBucket, args: []any{10, 2, 3600, 0, 18000000, 1, 2, 8, 1}},
			"give back": {script: TokenBucketGiveBack, args: []any{10, 2, 3600, 2, 4, second, 0, 18000000}, frees: true},
		}},
	}
}

// If memory is full, a script that needs some is refused before it changes anything, whatever is there. One that only frees is
// not refused. Redis looks at memory before a script's first write alone, so that is what must need memory, or free some.
func TestFullMemory(t *testing.T) {
	t.Parallel()
	for _, version := range redistest.Versions() {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()
			rdb := redistest.StartServer(t, version).Client(t, nil)
			s := &memoryScene{t, rdb, rdb.Time(t.Context()).Val().UnixMilli()}
			kinds := []memoryKind{{layout: codec.LayoutD2, keep: true}, {layout: codec.LayoutD2, perClient: true}, {layout: codec.LayoutC}}
			if version != redistest.Redis82 {
				kinds = kinds[:1] // what the scripts call is the same
			}
			for _, kind := range kinds {
				s.check(s.runs(s.limiters(kind)))
			}
			for _, group := range s.otherGroups() {
				s.check(s.runs(group))
			}
		})
	}
}

// check makes the calls, without memory. To make a value that was lost needs some.
func (s *memoryScene) check(runs []*memoryRun) {
	require.NoError(s, s.rdb.ConfigSet(s.Context(), "maxmemory", "1").Err())
	for _, r := range runs {
		err := s.rdb.Eval(s.Context(), r.script.Source, r.keys, r.args...).Err()
		lacks := r.unset && err != nil && strings.Contains(err.Error(), "OOM ") || redis.HasErrorPrefix(err, "NOTINIT")
		if r.frees && !lacks {
			assert.NoError(s, err, r.name)
		} else if !assert.ObjectsAreEqual(r.before, s.dump(r.keys)) {
			assert.Fail(s, "was not refused", "%s: %v", r.name, err)
		}
	}
	require.NoError(s, s.rdb.ConfigSet(s.Context(), "maxmemory", "0").Err())
	for _, r := range runs {
		err := s.rdb.Eval(s.Context(), r.script.Source, r.keys, r.args...).Err()
		require.False(s, redis.HasErrorPrefix(err, "ERR"), "%s: %v", r.name, err)
	}
	require.NoError(s, s.rdb.FlushAll(s.Context()).Err())
}
