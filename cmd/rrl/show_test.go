package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/clients"
	"github.com/rratelimiter/rratelimiter/internal/look"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// member packs a member of the given layout whose id is made of n.
func member(t testing.TB, layout codec.Layout, n byte, permits uint32) string {
	t.Helper()
	idLen := map[codec.Layout]int{codec.LayoutB: 4, codec.LayoutC: 8, codec.LayoutD1: 8, codec.LayoutD2: 16}[layout]
	id := make([]byte, idLen)
	for i := range id {
		id[i] = n
	}
	packed, err := codec.Append(nil, layout, id, permits)
	require.NoError(t, err)
	return string(packed)
}

// written is what a test puts in place of a limiter.
type written struct {
	hash    map[string]string
	value   any
	members []redis.Z
}

func (w written) put(t testing.TB, rdb *redis.Client, name string) {
	t.Helper()
	ctx := t.Context()
	if w.hash != nil {
		require.NoError(t, rdb.HSet(ctx, name, w.hash).Err())
	}
	if w.value != nil {
		require.NoError(t, rdb.Set(ctx, "{"+name+"}:value", w.value, 0).Err())
	}
	if w.members != nil {
		require.NoError(t, rdb.ZAdd(ctx, "{"+name+"}:permits", w.members...).Err())
	}
}

func config(rate, intervalMS int64) map[string]string {
	return map[string]string{
		"rate": strconv.FormatInt(rate, 10), "interval": strconv.FormatInt(intervalMS, 10), "type": "0",
	}
}

// shownBy runs show on the shared server and reads its JSON.
func shownBy(t testing.TB, url string, args ...string) look.Inspection {
	t.Helper()
	got := rrl(t, append([]string{"show", "--json", "--redis", url}, args...)...)
	require.Empty(t, got.stderr)
	var s look.Inspection
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &s), got.stdout)
	code := exitYes
	if s.Broken != "" {
		code = exitNo
	}
	require.Equal(t, code, got.code, "%+v", got)
	return s
}

func kinds(s look.Inspection) []string {
	kinds := []string{}
	for _, a := range s.Anomalies {
		kinds = append(kinds, a.Kind)
	}
	return kinds
}

func TestShowNamesAnomalies(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	rdb := server.Client(t, nil)
	now := float64(time.Now().UnixMilli())
	const hour = 3_600_000
	at := func(packed string, ageMS float64) redis.Z { return redis.Z{Score: now - ageMS, Member: packed} }
	d2, d1 := member(t, codec.LayoutD2, 1, 3), member(t, codec.LayoutD1, 2, 2)
	b, c := member(t, codec.LayoutB, 3, 2), member(t, codec.LayoutC, 4, 2)
	for name, test := range map[string]struct {
		written
		kinds []string
		free  any // nil: can't be told
	}{
		"full":          {written{hash: config(10, hour)}, nil, 10},
		"some in use":   {written{config(10, hour), 7, []redis.Z{at(d2, 10)}}, nil, 7},
		"run out":       {written{config(10, hour), 7, []redis.Z{at(d2, hour+10)}}, nil, 10},
		"a debt":        {written{config(2, hour), -1, []redis.Z{at(d2, 10)}}, nil, 0},
		"one B":         {written{config(10, hour), 8, []redis.Z{at(b, 10)}}, nil, 8},
		"one C":         {written{config(10, hour), 8, []redis.Z{at(c, 10)}}, nil, 8},
		"D1 and D2":     {written{config(10, hour), 5, []redis.Z{at(d2, 10), at(d1, 9)}}, nil, 5},
		"B and D2":      {written{config(10, hour), 5, []redis.Z{at(d2, 10), at(b, 9)}}, []string{"mixed_layouts"}, 5},
		"lost":          {written{config(10, hour), 4, []redis.Z{at(d2, 10)}}, []string{"sum_not_rate"}, 4},
		"too many":      {written{config(10, hour), 9, []redis.Z{at(d2, 10)}}, []string{"sum_not_rate"}, 9},
		"above rate":    {written{config(10, hour), 13, nil}, []string{"value_above_rate", "sum_not_rate"}, 10},
		"set gone":      {written{config(10, hour), 4, nil}, []string{"sum_not_rate"}, 10},
		"value gone":    {written{config(10, hour), nil, []redis.Z{at(d2, 10)}}, []string{"no_value"}, 7},
		"future":        {written{config(10, hour), 7, []redis.Z{at(d2, -60_000)}}, []string{"future_members"}, 7},
		"unknown":       {written{config(10, hour), 7, []redis.Z{at("what is this", 10)}}, []string{"unknown_layout"}, 7},
		"no config":     {written{nil, 7, []redis.Z{at(d2, 10)}}, []string{"no_config"}, nil},
		"no interval":   {written{map[string]string{"rate": "10", "type": "0"}, 7, nil}, []string{"bad_config"}, nil},
		"bad rate":      {written{map[string]string{"rate": "x", "type": "0", "interval": "1"}, 7, nil}, []string{"bad_config"}, nil},
		"bad type":      {written{map[string]string{"rate": "1", "type": "2", "interval": "1"}, 1, nil}, []string{"bad_config"}, nil},
		"bad value":     {written{config(10, hour), "many", []redis.Z{at(d2, 10)}}, []string{"bad_value"}, nil},
		"C read as D":   {written{config(10, hour), int64(-9_999_999_999), []redis.Z{at(c, 10)}}, []string{"sum_not_rate"}, 0},
		"no permits":    {written{config(10, hour), 10, nil}, nil, 10},
		"nothing taken": {written{config(10, hour), 10, []redis.Z{at(member(t, codec.LayoutD2, 9, 0), 10)}}, nil, 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limiter := redistest.Name(t)
			test.put(t, rdb, limiter)
			before := dump(t, rdb, limiter)

			s := shownBy(t, server.URL(), limiter)
			assert.ElementsMatch(t, test.kinds, kinds(s), "%v", s.Anomalies)
			require.Len(t, s.States, 1)
			assert.Equal(t, test.free, told(s.States[0].Free))

			text := rrl(t, "show", limiter, "--redis", server.URL())
			assert.Equal(t, slices.ContainsFunc(test.kinds, func(kind string) bool { return look.ProblemOf(kind).Level == look.Error }), text.code == exitNo)
			for _, a := range s.Anomalies {
				assert.Contains(t, text.stdout, "  - "+a.Text[:10])
			}
			assert.Equal(t, before, dump(t, rdb, limiter), "show must not change anything")
		})
	}
}

// told returns what a field tells, nil where it can't be told.
func told(field *int64) any {
	if field == nil {
		return nil
	}
	return int(*field)
}

// dump returns the limiter's keys as Redis serializes them.
func dump(t testing.TB, rdb *redis.Client, name string) []string {
	t.Helper()
	var all []string
	for _, key := range []string{name, "{" + name + "}:value", "{" + name + "}:permits"} {
		text, err := rdb.Dump(t.Context(), key).Result()
		if !errors.Is(err, redis.Nil) {
			require.NoError(t, err)
		}
		all = append(all, text)
	}
	return all
}

func TestShowOfWrongTypes(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	rdb := server.Client(t, nil)
	name := redistest.Name(t)
	ctx := t.Context()
	require.NoError(t, rdb.Set(ctx, name, "text", 0).Err())
	require.NoError(t, rdb.LPush(ctx, "{"+name+"}:value", "text").Err())
	require.NoError(t, rdb.SAdd(ctx, "{"+name+"}:permits", "text").Err())
	s := shownBy(t, server.URL(), name)
	assert.Equal(t, []string{"wrong_type", "wrong_type", "wrong_type"}, kinds(s))
	got := rrl(t, "show", name, "--redis", server.URL())
	assert.Contains(t, got.stdout, "is a string, not a hash")
	assert.Contains(t, got.stdout, "is a list, not a string")
	assert.Contains(t, got.stdout, "is a set, not a sorted set")
}

func TestShowTellsTTLs(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	rdb := server.Client(t, nil)
	name := redistest.Name(t)
	now := float64(time.Now().UnixMilli())
	written{config(10, 60_000), 7, []redis.Z{{Score: now, Member: member(t, codec.LayoutD2, 1, 3)}}}.put(t, rdb, name)
	require.NoError(t, rdb.PExpire(t.Context(), name, time.Hour).Err())
	require.NoError(t, rdb.PExpire(t.Context(), "{"+name+"}:value", time.Hour).Err())
	s := shownBy(t, server.URL(), name)
	assert.Equal(t, []string{"no_ttl"}, kinds(s))
	require.NotNil(t, s.TTLMS)
	assert.InDelta(t, 3_600_000, *s.TTLMS, 10_000)
	require.NotNil(t, s.States[0].ValueTTLMS)
	assert.Nil(t, s.States[0].PermitsTTLMS)
}

// Redisson before 3.13.3 keeps no set, and ends the value with its window.
func TestShowOfAWindow(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	rdb := server.Client(t, nil)
	name := redistest.Name(t)
	written{hash: config(10, 3_600_000), value: 4}.put(t, rdb, name)
	require.NoError(t, rdb.PExpire(t.Context(), "{"+name+"}:value", 30*time.Minute).Err())
	s := shownBy(t, server.URL(), name)
	assert.Empty(t, s.Anomalies)
	assert.True(t, s.States[0].Window)
	assert.EqualValues(t, 4, *s.States[0].Free)
	assert.Contains(t, rrl(t, "show", name, "--redis", server.URL()).stdout, "before 3.13.3")

	// Later releases beside it make it worse.
	now := float64(time.Now().UnixMilli())
	written{members: []redis.Z{{Score: now, Member: member(t, codec.LayoutD2, 1, 3)}}}.put(t, rdb, name)
	s = shownBy(t, server.URL(), name)
	assert.Equal(t, []string{"window_and_members"}, kinds(s))
	assert.Contains(t, s.Anomalies[0].Text, "rrl migrate")
}

func TestShowOfNothing(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	got := s.rrl("show", "none")
	assert.Equal(t, outcome{exitNo, "none: no such limiter\n", ""}, got)
	got = s.rrl("show", "none", "--json")
	assert.Equal(t, exitNo, got.code)
	assert.Equal(t, false, object(t, got.stdout)["exists"])
}

func TestShowOfALimiterInUse(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	rdb := server.Client(t, nil)
	name := redistest.Name(t)
	client := rratelimiter.New(rdb)
	t.Cleanup(func() { closeClient(t.Context(), client) })
	limiter := client.RateLimiter(name)
	require.NoError(t, limiter.SetRate(t.Context(), rratelimiter.PerHour(100)))
	for n := int64(1); n <= 5; n++ {
		granted, err := limiter.TryAcquire(t.Context(), n, 0)
		require.NoError(t, err)
		require.True(t, granted)
	}
	available, err := limiter.AvailablePermits(t.Context())
	require.NoError(t, err)

	s := shownBy(t, server.URL(), name, "--limit", "2")
	assert.True(t, s.Exists)
	assert.EqualValues(t, 100, *s.Rate)
	assert.EqualValues(t, 3_600_000, *s.IntervalMS)
	assert.Equal(t, "OVERALL", *s.Type)
	assert.Nil(t, s.TTLMS)
	assert.Empty(t, s.Anomalies)
	require.Len(t, s.States, 1)
	st := s.States[0]
	assert.Nil(t, st.ClientID)
	assert.Equal(t, available, *st.Free)
	assert.EqualValues(t, 15, st.InUse)
	assert.EqualValues(t, 5, st.Members)
	require.Len(t, st.Permits, 2, "--limit")
	for i, p := range st.Permits {
		assert.Equal(t, "D2", p.Layout)
		assert.Len(t, p.ID, 32)
		assert.EqualValues(t, i+1, p.Permits, "oldest first")
		assert.Equal(t, int64(3_600_000), p.AgeMS+*p.BackInMS)
	}

	text := rrl(t, "show", name, "--redis", server.URL(), "--limit", "2").stdout
	for _, want := range []string{"100/1h", "OVERALL", "85 of 100", "5 members", "BACK IN", st.Permits[1].ID, "and 3 more"} {
		assert.Contains(t, text, want)
	}
	assert.NotContains(t, text, "not as it should be")
}

func TestShowOfClientsWithPermitsOfTheirOwn(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	require.Zero(t, s.rrl("set-rate", "or*ders", "10/1h", "--type", "per-client").code)
	for i := range 3 {
		id := fmt.Sprintf("client-%d", i)
		require.Zero(t, s.rrl("acquire", "or*ders", "--client-id", id, "-n", strconv.Itoa(i+1)).code)
	}
	require.NoError(t, s.Set("{orders}:value:client-9", "1"), "matches only where the name is taken for a pattern")

	found := shownBy(t, s.url(), "or*ders")
	assert.Empty(t, found.Anomalies)
	assert.Equal(t, 3, found.Clients)
	require.Len(t, found.States, 3)
	for i, st := range found.States {
		assert.Equal(t, fmt.Sprintf("client-%d", i), *st.ClientID)
		assert.EqualValues(t, 10-i-1, *st.Free)
	}

	found = shownBy(t, s.url(), "or*ders", "--client-id", "client-1")
	require.Len(t, found.States, 1)
	assert.EqualValues(t, 8, *found.States[0].Free)

	text := s.rrl("show", "or*ders").stdout
	assert.Contains(t, text, "client client-2")
	assert.Contains(t, text, "7 of 10")

	require.NoError(t, s.Set("{or*ders}:value", "10"))
	assert.Equal(t, []string{"keys_of_other_type"}, kinds(shownBy(t, s.url(), "or*ders")))
}

func TestShowReadsABoundedPartOfALargeSet(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for field, text := range config(10_000, 3_600_000) {
		s.HSet("orders", field, text)
	}
	now := float64(time.Now().UnixMilli())
	for i := range look.MaxMembers + 1 {
		id := fmt.Sprintf("%016d", i)
		packed, err := codec.Append(nil, codec.LayoutD2, []byte(id), 1)
		require.NoError(t, err)
		_, err = s.ZAdd("{orders}:permits", now, string(packed))
		require.NoError(t, err)
	}
	require.NoError(t, s.Set("{orders}:value", strconv.Itoa(10_000-look.MaxMembers-1)))
	found := shownBy(t, s.url(), "orders")
	assert.Equal(t, []string{"not_all_read"}, kinds(found))
	assert.Nil(t, found.States[0].Free)
	assert.EqualValues(t, look.MaxMembers+1, found.States[0].Members)
	assert.Len(t, found.States[0].Permits, 20)
}

func TestShowTellsWhoHasThePermits(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	t.Cleanup(func() { assert.NoError(t, rdb.Close()) })
	now := float64(time.Now().UnixMilli())
	ours := func(n byte, permits uint32) string {
		packed := []byte(member(t, codec.LayoutD2, n, permits))
		clear(packed[9:17]) // its client's count of attempts
		return string(packed)
	}
	written{
		hash: config(100, 3_600_000), value: 100 - 5 - 2 - 3 - 1,
		members: []redis.Z{
			{Score: now, Member: ours(0xa1, 5)}, {Score: now, Member: ours(0xb2, 2)},
			{Score: now, Member: member(t, codec.LayoutD2, 0xc3, 3)}, {Score: now, Member: member(t, codec.LayoutB, 1, 1)},
			{Score: now - 4_000_000, Member: member(t, codec.LayoutD2, 0xd4, 9)}, // has run out
		},
	}.put(t, rdb, "orders")
	require.NoError(t, rdb.ZAdd(t.Context(), clients.Key,
		redis.Z{Score: now + 60_000, Member: `{"name":"orders-7f9c","mark":"a1a1a1a1a1a1a1a1","id":"its-id"}`},
		redis.Z{Score: now - 60_000, Member: `{"name":"long gone","mark":"b2b2b2b2b2b2b2b2","id":"x"}`},
	).Err())

	assert.Equal(t, []clients.Share{
		{Kind: clients.Named, Name: "orders-7f9c", Mark: "a1a1a1a1a1a1a1a1", Permits: 5},
		{Kind: clients.Redisson, Permits: 3},
		{Kind: clients.Unnamed, Mark: "b2b2b2b2b2b2b2b2", Permits: 2},
		{Kind: clients.Unmarked, Permits: 1},
	}, shownBy(t, s.url(), "orders").States[0].Shares)
	text := s.rrl("show", "orders").stdout
	for _, line := range []string{
		`in use +11\n`, `- by orders-7f9c +5\n`, `- by Redisson +3\n`, `- by a client without a name, b2b2b2b2b2b2b2b2 +2\n`,
		`- by clients that leave no mark +1\n`,
	} {
		assert.Regexp(t, line, text)
	}

	perClient := config(10, 3_600_000)
	perClient["type"] = "1"
	require.NoError(t, rdb.HSet(t.Context(), "each", perClient).Err())
	require.NoError(t, rdb.Set(t.Context(), "{each}:value:its-id", 10, 0).Err())
	assert.Equal(t, "orders-7f9c", shownBy(t, s.url(), "each").States[0].ClientName)
	assert.Contains(t, s.rrl("show", "each").stdout, "client its-id, called orders-7f9c\n")
}

func TestShowWithoutTheNames(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	require.NoError(t, s.Set(clients.Key, "somebody's"))
	require.Equal(t, exitYes, s.rrl("try-set-rate", "orders", "10/1h").code)
	require.Equal(t, exitYes, s.rrl("acquire", "orders").code)
	shown := shownBy(t, s.url(), "orders")
	assert.Contains(t, shown.NamesError, clients.Key)
	assert.Empty(t, shown.Anomalies)
	assert.Len(t, shown.States[0].Shares, 1)
	assert.Contains(t, s.rrl("show", "orders").stdout, "what clients are called is not known: key "+clients.Key)
	require.Equal(t, exitNo, s.rrl("show", "nothing").code)
}
