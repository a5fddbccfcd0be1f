package concurrency_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// newFamily returns limiters of these rates; those of the zero Config have none.
func newFamily(t testing.TB, rdb rratelimiter.Redis, cfgs ...rratelimiter.Config) *limitertest.Family {
	t.Helper()
	return limitertest.NewFamilyOf(t, limitertest.NewClient(t, rdb), cfgs...)
}

var allTests = limitertest.Tests[redistest.Client]{
	"takes from each": func(t *testing.T, rdb redistest.Client) {
		f := newFamily(t, rdb, limitertest.Every(10, time.Hour), limitertest.Every(5, time.Hour), limitertest.PerClient(7, time.Hour))
		assert.True(t, f.Try(t, 2))
		assert.Equal(t, []int64{8, 3, 5}, f.Free(t))
		assert.True(t, f.Try(t, 3))
		assert.Equal(t, []int64{5, 0, 2}, f.Free(t))
		assert.False(t, f.Try(t, 1))
		assert.Equal(t, []int64{5, 0, 2}, f.Free(t))

		require.NoError(t, f.Limiters[1].Release(t.Context(), 3))
		assert.False(t, f.Try(t, 3), "the last has 2")
		assert.Equal(t, []int64{5, 3, 2}, f.Free(t))
		assert.True(t, f.Try(t, 2))
		assert.Equal(t, []int64{3, 1, 0}, f.Free(t))
		f.CheckSums(t, rdb, 10, 5, 7)
	},
	// Whichever refuses, the others are as they were.
	"a refusal of one takes from none": func(t *testing.T, rdb redistest.Client) {
		for refuses := range 4 {
			f := newFamily(t, rdb,
				limitertest.Every(10, time.Hour), limitertest.Every(1000, time.Hour), limitertest.PerClient(10, time.Hour),
				limitertest.Every(10, time.Hour))
			require.True(t, f.Try(t, 3))
			l := f.Limiters[refuses]
			limitertest.MustAcquire(t, l, limitertest.Available(t, l)-1)
			before := f.State(t, rdb)
			assert.False(t, f.Try(t, 2))
			assert.Equal(t, before, f.State(t, rdb))
			assert.True(t, f.Try(t, 1))
		}
	},
	// Names that share a tag with a name that has none are in its slot.
	"a name is its own tag": func(t *testing.T, rdb redistest.Client) {
		client, name := limitertest.NewClient(t, rdb), redistest.Name(t)
		both := named(client, name, "{"+name+"}:day")
		assert.True(t, limitertest.TryAll(t, client, 2, both...))
		assert.EqualValues(t, 8, limitertest.Available(t, both[0]))
		assert.EqualValues(t, 8, limitertest.Available(t, both[1]))
	},
	"TryAcquireAll sets up defaults": func(t *testing.T, rdb redistest.Client) {
		client := limitertest.NewClient(t, rdb)
		f := limitertest.NewFamilyOf(t, client, limitertest.Every(10, time.Hour))
		want := []rratelimiter.Config{
			limitertest.Every(10, time.Hour), {Rate: 4, Interval: time.Minute, KeepAlive: time.Hour}, limitertest.PerClient(3, time.Minute),
		}
		f.Limiters = append(f.Limiters, limitertest.ByDefault(client, f.Tag+":keep", want[1]), limitertest.ByDefault(client, f.Tag+":own", want[2]))
		sent := limitertest.CountCommands(rdb)
		assert.True(t, f.Try(t, 2))
		assert.LessOrEqual(t, sent.Scripts(), 2, "one call; another if the server did not know the script")
		for i, l := range f.Limiters {
			assert.Equal(t, want[i], limitertest.ConfigOf(t, l))
		}
		assert.Equal(t, []int64{8, 2, 1}, f.Free(t))
		for key, ttl := range limitertest.TTLs(t, rdb, f.Limiters[1].Name()) {
			assert.InDelta(t, time.Hour, ttl, float64(10*time.Second), key)
		}

		late := limitertest.ByDefault(client, f.Tag+":late", limitertest.Every(4, time.Minute))
		f.Limiters = append(f.Limiters, late)
		assert.False(t, f.Try(t, 2), "the PerClient one has 1")
		assert.Equal(t, limitertest.Every(4, time.Minute), limitertest.ConfigOf(t, late), "a refusal is an answer")
	},
	// Each layout is written as TryAcquire writes it, and read whatever it is.
	"each layout": func(t *testing.T, rdb redistest.Client) {
		var members []codec.Layout
		f := newFamily(t, rdb, limitertest.Every(100, time.Hour), limitertest.Every(50, time.Hour))
		for name, layout := range map[string]codec.Layout{
			"D2 merged": codec.LayoutD2, "D2": codec.LayoutD2, "D1": codec.LayoutD1, "C": codec.LayoutC, "B": codec.LayoutB,
		} {
			old := f.SeenBy(limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(limitertest.MembersOf[name])))
			assert.True(t, old.Try(t, 3), name)
			assert.True(t, old.Try(t, 4), name)
			members = append(members, layout, layout)
		}
		for _, l := range f.Limiters {
			var found []codec.Layout
			for _, text := range rdb.ZRange(t.Context(), limitertest.KeysOf(l).Permits, 0, -1).Val() {
				member, err := codec.Parse(text)
				require.NoError(t, err)
				found = append(found, member.Layout)
			}
			assert.ElementsMatch(t, members, found)
		}
		assert.Equal(t, []int64{65, 15}, f.Free(t))
		for name := range limitertest.MembersOf {
			old := f.SeenBy(limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion(limitertest.MembersOf[name])))
			assert.False(t, old.Try(t, 16), name)
			assert.True(t, old.Try(t, 3), name)
		}
		assert.False(t, f.Try(t, 1))
		f.CheckSums(t, rdb, 100, 50)
	},
	// An error names the limiter that is wrong; nothing is taken from any, nor set up.
	"names the limiter at fault": func(t *testing.T, rdb redistest.Client) {
		for name, tt := range map[string]struct {
			damage string
			want   error
			says   string
		}{
			"no rate":              {"DEL config", rratelimiter.ErrNotInitialized, "TrySetRate"},
			"a lower rate":         {"HSET config rate 2; DEL value permits", rratelimiter.ErrPermitsExceedRate, "3 permits of 2"},
			"half a config":        {"HDEL config interval", rratelimiter.ErrCorrupt, "interval"},
			"a rate that is none":  {"HSET config rate many", rratelimiter.ErrCorrupt, "rate"},
			"a value that is none": {"SET value few", rratelimiter.ErrCorrupt, ":value"},
			"a member of none":     {"DEL value permits; ZADD permits now x", rratelimiter.ErrCorrupt, ":permits"},
			"a list for a hash":    {"DEL config; LPUSH config x", rratelimiter.ErrCorrupt, "list"},
			"a string for a set":   {"DEL value permits; SET permits x", rratelimiter.ErrCorrupt, ":permits"},
		} {
			for place := range 3 {
				f := newFamily(t, rdb, slices.Repeat([]rratelimiter.Config{limitertest.Every(10, time.Hour)}, 3)...)
				require.True(t, f.Try(t, 1))
				at := f.Limiters[place]
				limitertest.Damage(t, rdb, at, tt.damage)
				fresh := limitertest.ByDefault(f.Client, f.Tag+":fresh", limitertest.Every(10, time.Hour))
				before := f.State(t, rdb)
				for _, timeout := range []time.Duration{0, time.Hour} {
					ok, err := f.Client.TryAcquireAll(t.Context(), timeout, limitertest.Claims(3, append([]*rratelimiter.RateLimiter{fresh}, f.Limiters...)...)...)
					require.ErrorIs(t, err, tt.want, "%s, limiter %d", name, place)
					assert.False(t, ok)
					assert.ErrorContains(t, err, fmt.Sprintf("TryAcquireAll %q", at.Name()), name)
					assert.ErrorContains(t, err, tt.says, name)
				}
				assert.Equal(t, before, f.State(t, rdb), name)
				assert.Empty(t, limitertest.ReadState(t, rdb, fresh.Name()), name)
			}
		}
	},
	"repairs what was lost": func(t *testing.T, rdb redistest.Client) {
		for name, tt := range map[string]struct {
			damage string
			older  time.Duration // all that is in use is dated back so far
			free   int64         // of 10, 6 of which were taken
		}{
			"value lost":           {damage: "DEL value", free: 4},
			"set lost":             {damage: "DEL permits", free: 10},
			"both lost":            {damage: "DEL value permits", free: 10},
			"permits leaked":       {damage: "DECRBY value 4", free: 4},
			"value above the rate": {damage: "INCRBY value 50", free: 10},
			"all has run out":      {older: 2 * time.Hour, free: 10},
			"dated in the future":  {older: -2 * time.Hour, free: 4},
		} {
			for place := range 2 {
				f := newFamily(t, rdb, limitertest.Every(10, time.Hour), limitertest.Every(10, time.Hour))
				require.True(t, f.Try(t, 6))
				require.NoError(t, f.Limiters[1-place].Release(t.Context(), 6))
				k := limitertest.KeysOf(f.Limiters[place])
				for _, member := range rdb.ZRange(t.Context(), k.Permits, 0, -1).Val() {
					require.NoError(t, rdb.ZIncrBy(t.Context(), k.Permits, -float64(tt.older.Milliseconds()), member).Err())
				}
				if tt.damage != "" {
					limitertest.Damage(t, rdb, f.Limiters[place], tt.damage)
				}
				got := int64(0)
				if name == "set lost" {
					require.True(t, f.Try(t, 1))
					f.CheckSums(t, rdb, 10, 10)
					got++
				}
				for range 11 {
					if f.Try(t, 1) {
						got++
					}
				}
				assert.Equal(t, tt.free, got, name)
				value, _ := limitertest.StoredValue(t, rdb, k.Value)
				assert.Zero(t, value, name)
				assert.Equal(t, got, limitertest.InUse(t, rdb, limitertest.KeysOf(f.Limiters[1-place]).Permits), name)
			}
		}
	},
}

func TestTryAcquireAll(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, allTests, func(t *testing.T, test func(t *testing.T, rdb redistest.Client)) { redistest.Everywhere(t, test) })
}

// named returns a Client's limiters of those names, which have a default.
func named(c *rratelimiter.Client, names ...string) (all []*rratelimiter.RateLimiter) {
	for _, name := range names {
		all = append(all, limitertest.ByDefault(c, name, limitertest.Every(10, time.Hour)))
	}
	return all
}

func TestTryAcquireAllRefusesBadArguments(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		invalid, unsupported, badPermits := rratelimiter.ErrInvalidConfig, rratelimiter.ErrUnsupported, rratelimiter.ErrInvalidPermits
		client, other := limitertest.NewClient(t, rdb), limitertest.NewClient(t, rdb)
		mapped := limitertest.NewClient(t, rdb, rratelimiter.WithNameMapper(strings.ToUpper))
		old := limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion("3.13.2"))
		bad := rratelimiter.New(rdb, limitertest.Patient(), rratelimiter.WithClientID(""))
		var many []string
		for i := range rratelimiter.MaxLimiters + 1 {
			many = append(many, fmt.Sprintf("{x}%d", i))
		}
		a := named(client, "{x}a")
		ab := named(client, "{x}a", "{x}b")
		noRate := limitertest.ByDefault(client, "{x}b", rratelimiter.PerHour(0))
		type limiters = []*rratelimiter.RateLimiter
		for name, tt := range map[string]struct {
			client   *rratelimiter.Client
			permits  int64
			limiters limiters
			want     error
			says     []string
		}{
			"none":               {client, 1, nil, invalid, []string{"0 limiters"}},
			"too many":           {client, 1, named(client, many...), invalid, []string{"33 limiters", "32"}},
			"nil":                {client, 1, append(a, nil), invalid, []string{"limiter 2 of 2 is nil"}},
			"only nil":           {client, 1, limiters{nil}, invalid, []string{"limiter 1 of 1 is nil"}},
			"another Client's":   {client, 1, append(a, named(other, "{x}b")...), invalid, []string{`"{x}b"`, "another Client"}},
			"no Client's":        {client, 1, limiters{{}}, invalid, []string{"another Client"}},
			"twice":              {client, 1, append(ab, a...), invalid, []string{`"{x}a"`, "twice"}},
			"twice by the map":   {mapped, 1, named(mapped, "{x}a", "{x}A"), invalid, []string{`"{x}A"`, "twice"}},
			"a key of another's": {client, 1, named(client, "{x}a", "{x}a:value"), invalid, []string{`"{x}a"`, `"{x}a:value"`}},
			"no tag":             {client, 1, named(client, "second", "hour"), unsupported, []string{`"second"`, `"hour"`, `"{shop}:second"`}},
			"other tags":         {client, 1, append(ab, named(client, "{y}c")...), unsupported, []string{`"{x}a"`, `"{y}c"`, "hash tag"}},
			"mapped apart":       {mapped, 1, named(mapped, "{x}a", "b"), unsupported, []string{`"{X}A"`, `"B"`}},
			"keys apart":         {client, 1, named(client, "a{b", "{b}c"), unsupported, []string{`"a{b"`, "hash tag"}},
			"no permits":         {client, 0, ab, badPermits, []string{"0 is not between"}},
			"fewer":              {client, -1, ab, badPermits, nil},
			"too many permits":   {client, rratelimiter.MaxPermits + 1, ab, badPermits, nil},
			"bad Client":         {bad, 1, named(bad, "{x}a", "{x}b"), invalid, []string{"WithClientID"}},
			"bad default":        {client, 1, append(a, noRate), invalid, []string{`"{x}b"`, "WithDefault"}},
			"no name":            {client, 1, append(a, client.RateLimiter("")), invalid, []string{"empty"}},
			"old windows":        {old, 1, named(old, "{x}a", "{x}b"), unsupported, []string{"record of each grant", "3.13.2"}},
		} {
			sent := limitertest.CountCommands(rdb)
			for _, timeout := range []time.Duration{0, time.Hour} {
				ok, err := tt.client.TryAcquireAll(t.Context(), timeout, limitertest.Claims(tt.permits, tt.limiters...)...)
				require.ErrorIs(t, err, tt.want, name)
				assert.False(t, ok)
				for _, text := range append(tt.says, "TryAcquireAll") {
					assert.ErrorContains(t, err, text, name)
				}
			}
			assert.Zero(t, sent.Total(), name)
		}
	})
}

func TestTryAcquireAllOnSeveralServers(t *testing.T) {
	t.Parallel()
	servers := map[string]func(t *testing.T) redistest.Client{
		"cluster": func(t *testing.T) redistest.Client { return redistest.StartCluster(t, 3, 0).Client(t, nil) },
		"ring":    func(t *testing.T) redistest.Client { return redistest.StartRing(t, 3).Client(t, nil) },
	}
	limitertest.Each(t, servers, func(t *testing.T, connect func(t *testing.T) redistest.Client) {
		client := limitertest.NewClient(t, connect(t))
		for range 20 {
			f := limitertest.NewFamilyOf(t, client, limitertest.Every(10, time.Hour), limitertest.Every(2, time.Hour), limitertest.Every(5, time.Hour))
			assert.True(t, f.Try(t, 2))
			assert.False(t, f.Try(t, 1))
			assert.Equal(t, []int64{8, 0, 3}, f.Free(t))
			ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
			_, err := client.TryAcquireAll(ctx, time.Hour, limitertest.Claims(2, f.Limiters...)...)
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
			_, err = client.TryAcquireAll(t.Context(), 0, f.Limiters[0].Claim(1), client.RateLimiter("elsewhere").Claim(1))
			require.ErrorIs(t, err, rratelimiter.ErrUnsupported)
		}
	})
}

// A familyTest is a test of limiters of those rates, an hour.
type familyTest struct {
	rates []int64
	run   func(t *testing.T, s *limitertest.FamilyScene, f *limitertest.Family)
}

var allEndings = map[string]familyTest{
	"cancelled while it waits": {[]int64{2, 1}, func(t *testing.T, s *limitertest.FamilyScene, f *limitertest.Family) {
		require.True(t, f.SeenBy(s.Rival).Try(t, 1))
		ask := func(ctx context.Context) (bool, error) {
			return s.Client.TryAcquireAll(ctx, forever, limitertest.Claims(1, f.Limiters...)...)
		}
		leave := s.Leaver(t, ask)
		s.Until(300 * ms)
		leave()
		before := s.Sent.Total()
		require.ErrorIs(t, limitertest.Second(ask(limitertest.EndedContext(t))), context.Canceled)
		s.Until(forever)
		assert.Equal(t, before, s.Sent.Total())
		s.CheckAll(t, f, []int64{2, 1}, []int64{1, 1})
	}},
	// What a caller that has gone was granted goes back to all limiters and serves waiters of any.
	"cancelled in flight gives back": {[]int64{3, 9, 5}, func(t *testing.T, s *limitertest.FamilyScene, f *limitertest.Family) {
		letGo := s.Hold(t, lua.AcquireAll, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 200*ms)
		defer cancel()
		gone := s.TryAll(ctx, f, 3, forever)
		s.CheckAll(t, f, []int64{3, 9, 5}, []int64{3, 3, 3})
		one := s.Go(func() (bool, error) { return f.Limiters[0].TryAcquire(t.Context(), 1, forever) })
		both := s.TryAll(t.Context(), &limitertest.Family{Client: f.Client, Limiters: f.Limiters[:2]}, 2, forever)
		s.Until(500 * ms)
		gone.RequireEnd(t, context.DeadlineExceeded, 200*ms)
		letGo()
		limitertest.CheckOutcome(t, "true at 500ms", one, both)
		s.CheckAll(t, f, []int64{3, 9, 5}, []int64{3, 2, 0})
	}},
	"Close waits for it": {[]int64{5, 9}, func(t *testing.T, s *limitertest.FamilyScene, f *limitertest.Family) {
		held := make(chan struct{})
		s.Proxy.OnCommand(limitertest.OnEach(lua.AcquireAll.SHA, redistest.Pass.When(held)))
		ctx, cancel := context.WithCancel(t.Context())
		kept := s.TryAll(t.Context(), f, 2, 0)
		gone := s.TryAll(ctx, f, 1, 0)
		refused := s.TryAll(t.Context(), f, 4, forever)
		s.Until(100 * ms)
		closed := s.Close(t.Context())
		cancel()
		s.Until(200 * ms)
		assert.Equal(t, "waits", closed.Outcome())
		close(held)
		synctest.Wait()
		assert.Equal(t, "true at 200ms", kept.Outcome())
		gone.RequireEnd(t, context.Canceled, 100*ms)
		refused.RequireEnd(t, rratelimiter.ErrClosed, 200*ms)
		assert.Equal(t, "true at 200ms", closed.Outcome())
		s.CheckAll(t, f, []int64{5, 9}, []int64{2, 2})
	}},
}

func TestTryAcquireAll_Ends(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, allEndings, func(t *testing.T, test familyTest) {
		var cfgs []rratelimiter.Config
		for _, rate := range test.rates {
			cfgs = append(cfgs, limitertest.Every(rate, time.Hour))
		}
		s, f := limitertest.NewFamilyScene(t, cfgs...)
		test.run(t, s, f)
	})
}

var allInTime = limitertest.Tests[redistest.Client]{
	// For Redissons that must not find many, nothing that has run out stays.
	"sweeps for old Redissons": func(t *testing.T, rdb redistest.Client) {
		f := limitertest.NewFamilyOf(t, limitertest.NewClient(t, rdb, rratelimiter.WithRedissonVersion("3.15.5")),
			limitertest.Every(1000, time.Minute), limitertest.Every(1000, time.Hour))
		for range 40 {
			require.True(t, f.Try(t, 1))
		}
		time.Sleep(30 * time.Second)
		require.True(t, f.Try(t, 1))
		time.Sleep(30 * time.Second)
		require.True(t, f.Try(t, 1))
		assert.EqualValues(t, 2, rdb.ZCard(t.Context(), limitertest.KeysOf(f.Limiters[0]).Permits).Val())
		assert.EqualValues(t, 42, rdb.ZCard(t.Context(), limitertest.KeysOf(f.Limiters[1]).Permits).Val())
	},
	// Members that have run out stay few though there is always enough.
	"leaves few that have run out": func(t *testing.T, rdb redistest.Client) {
		f := newFamily(t, rdb, limitertest.Every(1000, time.Second), limitertest.Every(100000, time.Hour))
		for range 200 {
			require.True(t, f.Try(t, 1))
			time.Sleep(10 * time.Millisecond)
		}
		assert.LessOrEqual(t, rdb.ZCard(t.Context(), limitertest.KeysOf(f.Limiters[0]).Permits).Val(), int64(100+32))
		f.CheckSums(t, rdb, 1000, 100000)
	},
	// No call fills a window of Redisson before 3.13.3 or moves its end.
	"beside a window": func(t *testing.T, rdb redistest.Client) {
		f := newFamily(t, rdb, limitertest.Every(10, time.Minute), limitertest.Every(100, time.Hour))
		require.True(t, limitertest.AsRedisson3123(t, rdb, f.Limiters[0], 7))
		time.Sleep(20 * time.Second)
		assert.True(t, f.Try(t, 2))
		assert.False(t, f.Try(t, 2))
		assert.Equal(t, 40*time.Second, rdb.PTTL(t.Context(), limitertest.KeysOf(f.Limiters[0]).Value).Val())
		start := time.Now()
		require.NoError(t, limitertest.Granted(f.Client.TryAcquireAll(t.Context(), time.Hour, limitertest.Claims(2, f.Limiters...)...)))
		assert.InDelta(t, 40*time.Second, time.Since(start), float64(2*time.Millisecond))
	},
	"keeps times to live": func(t *testing.T, rdb redistest.Client) {
		f := newFamily(t, rdb, limitertest.Every(10, time.Minute),
			rratelimiter.Config{Rate: 1, Interval: time.Minute, KeepAlive: 10 * time.Minute}, limitertest.PerClient(10, time.Minute))
		require.NoError(t, limitertest.Second(f.Limiters[0].Expire(t.Context(), time.Hour)))
		for _, granted := range []bool{true, false} {
			assert.Equal(t, granted, f.Try(t, 1))
			for i, life := range []time.Duration{time.Hour, 10 * time.Minute, time.Minute} {
				for key, ttl := range limitertest.TTLs(t, rdb, f.Limiters[i].Name()) {
					want := life
					if i == 2 && key == f.Limiters[i].Name() {
						want = -1
					}
					assert.Equal(t, want, ttl, "%s, granted %v", key, granted)
				}
			}
			require.NoError(t, limitertest.Second(f.Limiters[0].Expire(t.Context(), time.Hour)))
			time.Sleep(time.Second)
			require.NoError(t, limitertest.Second(f.Limiters[0].Expire(t.Context(), time.Hour)))
		}
	},
	// Unneeded notes of attempts go, as with TryAcquire.
	"forgets old notes": func(t *testing.T, rdb redistest.Client) {
		f := newFamily(t, rdb, limitertest.Every(10, time.Hour), limitertest.Every(10, time.Hour))
		note := fmt.Sprintf("%d:00;", time.Now().UnixMilli())
		for _, l := range f.Limiters {
			require.NoError(t, rdb.HSet(t.Context(), l.Name(), "answered", note).Err())
		}
		for _, noted := range []bool{true, false} {
			assert.True(t, f.Try(t, 1))
			for _, l := range f.Limiters {
				exists, err := rdb.HExists(t.Context(), l.Name(), "answered").Result()
				require.NoError(t, err)
				assert.Equal(t, noted, exists)
			}
			time.Sleep(2 * time.Minute)
		}
	},
	"of one is TryAcquire": func(t *testing.T, rdb redistest.Client) {
		client := limitertest.NewClient(t, rdb)
		for _, name := range []string{"orders", "a{b}c", "foo}bar"} {
			l := limitertest.ByDefault(client, name, limitertest.Every(3, time.Second))
			for i := range 5 {
				assert.Equal(t, i < 3, limitertest.TryAll(t, client, 1, l), name)
			}
			start := time.Now()
			require.NoError(t, limitertest.Granted(client.TryAcquireAll(t.Context(), 2*time.Second, l.Claim(2))))
			assert.Equal(t, time.Second, time.Since(start))
			_, err := client.TryAcquireAll(t.Context(), 0, l.Claim(4))
			require.ErrorIs(t, err, rratelimiter.ErrPermitsExceedRate)
			assert.ErrorContains(t, err, "TryAcquireAll \""+name+"\"")
			assert.NotContains(t, err.Error(), "TryAcquire \"")
		}
	},
	// What a lost limiter of that name left behind does not go before its time.
	"sets up beside what is left": func(t *testing.T, rdb redistest.Client) {
		f := newFamily(t, rdb, limitertest.Every(100, time.Hour), limitertest.Every(10, time.Hour))
		require.NoError(t, limitertest.Second(f.Limiters[1].Expire(t.Context(), time.Minute)))
		require.True(t, f.Try(t, 4))
		require.NoError(t, rdb.Del(t.Context(), f.Limiters[1].Name()).Err())
		f = f.SeenBy(f.Client, rratelimiter.WithDefault(limitertest.Every(10, time.Hour)))
		assert.True(t, f.Try(t, 4))
		time.Sleep(2 * time.Minute)
		assert.False(t, f.Try(t, 3))
		assert.True(t, f.Try(t, 2))
		assert.EqualValues(t, -1, rdb.PTTL(t.Context(), limitertest.KeysOf(f.Limiters[1]).Permits).Val())
	},
}

func TestTryAcquireAll_InVirtualTime(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, allInTime, func(t *testing.T, rdb redistest.Client, test func(t *testing.T, rdb redistest.Client)) { test(t, rdb) })
}

// Permits taken between the calls of one decision are missing in it.
func TestTryAcquireAllSeesPermitsTakenMeanwhile(t *testing.T) {
	t.Parallel()
	// Taken of the first of 1000, from which 600 are wanted.
	limitertest.Virtual(t, map[string]int64{"too many": 401, "as many as it can bear": 400}, func(t *testing.T, rdb redistest.Client, taken int64) {
		f := newFamily(t, rdb, limitertest.Every(1000, time.Hour), limitertest.Every(1000, time.Hour))
		others := f.SeenBy(limitertest.NewClient(t, rdb))
		limitertest.PileUp(t, rdb, f.Limiters[1], map[time.Duration]int{2 * time.Hour: 800, time.Minute: 200}, 0)
		require.NoError(t, rdb.ScriptLoad(t.Context(), lua.AcquireAll.Source).Err())
		calls := 0
		rdb.AddHook(limitertest.BeforeScript(lua.AcquireAll, func() {
			if calls++; calls == 2 {
				limitertest.MustAcquire(t, others.Limiters[0], taken)
			}
		}))
		assert.Equal(t, taken == 400, f.Try(t, 600))
		assert.GreaterOrEqual(t, calls, 2)
		f.CheckSums(t, rdb, 1000, 1000)
		free := []int64{1000 - taken, 800}
		if taken == 400 {
			free = []int64{0, 200}
		}
		assert.Equal(t, free, f.Free(t))
	})
}

// One limiter is brought up to date before another turns out to be damaged.
func TestTryAcquireAll_ErrorLeavesTimeToLive(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t).Client(t, nil)
	f := newFamily(t, rdb, limitertest.Every(10, time.Hour), limitertest.Every(10, time.Hour))
	require.True(t, f.Try(t, 1))
	value := limitertest.KeysOf(f.Limiters[0]).Value
	require.NoError(t, limitertest.Second(f.Limiters[0].Expire(t.Context(), time.Minute)))
	limitertest.Damage(t, rdb, f.Limiters[0], "DEL value")
	limitertest.Damage(t, rdb, f.Limiters[1], "ZADD permits 1 junk")
	require.ErrorIs(t, limitertest.Second(f.Client.TryAcquireAll(t.Context(), 0, limitertest.Claims(10, f.Limiters...)...)), rratelimiter.ErrCorrupt)
	if rdb.Exists(t.Context(), value).Val() == 1 {
		assert.Positive(t, rdb.PTTL(t.Context(), value).Val())
	}
}
