package damage_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/model"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// damaged is a limiter of 10 permits an hour, for tests to break: of its
// permits 6 are in use, by three members of the last hour.
type damaged struct {
	rdb     redistest.Client
	client  *rratelimiter.Client
	limiter *rratelimiter.RateLimiter
	kind    rratelimiter.RateType
	keys    redisson.Keys
	value   string // the key of the value in use
	permits string // the key of the set in use
}

const damagedClient = "client-id"

func newDamaged(t *testing.T, rdb redistest.Client, kind rratelimiter.RateType) damaged {
	name := redistest.Name(t)
	client := limitertest.NewClient(t, rdb, rratelimiter.WithClientID(damagedClient))
	d := damaged{rdb: rdb, client: client, kind: kind, keys: redisson.KeysOf(name, damagedClient)}
	d.limiter = d.client.RateLimiter(name, rratelimiter.WithDefault(limitertest.Every(10, time.Hour)))
	d.value, d.permits = d.keys.Value, d.keys.Permits
	if kind == rratelimiter.PerClient {
		d.value, d.permits = d.keys.ClientValue, d.keys.ClientPermits
	}
	limitertest.MustTrySetRate(t, d.limiter, rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Hour})
	for _, age := range []time.Duration{50 * time.Minute, 30 * time.Minute, 10 * time.Minute} {
		limitertest.AddGrants(t, rdb, d.permits, age, 1, 2)
	}
	require.NoError(t, rdb.Set(t.Context(), d.value, 4, 0).Err())
	for _, key := range []string{name, d.value, d.permits} {
		require.NoError(t, rdb.Expire(t.Context(), key, 30*time.Minute).Err())
	}
	return d
}

// uses are the calls that may come across a damage.
var uses = map[string]func(context.Context, damaged) error{
	"TryAcquire": operation("TryAcquire"),
	"refused": func(ctx context.Context, d damaged) error {
		granted, err := d.limiter.TryAcquire(ctx, 10, 0)
		if granted {
			return errGranted
		}
		return err
	},
	"Acquire": operation("Acquire"),
	"Take":    operation("Take"),
	"Peek":    operation("Peek"),
	"no default": func(ctx context.Context, d damaged) error {
		return limitertest.Second(d.client.RateLimiter(d.limiter.Name()).TryAcquire(ctx, 1, 0))
	},
	"Release":          func(ctx context.Context, d damaged) error { return d.limiter.Release(ctx, 5) },
	"AvailablePermits": operation("AvailablePermits"),
	"Config":           operation("Config"),
	"TrySetRate":       operation("TrySetRate"),
	"KeepState": func(ctx context.Context, d damaged) error {
		cfg := rratelimiter.Config{Type: d.kind, Rate: 5, Interval: time.Hour}
		return limitertest.Second(d.limiter.UpdateRate(ctx, cfg, rratelimiter.KeepState()))
	},
	"Rename": operation("Rename"),
	"Settle": func(ctx context.Context, d damaged) error {
		row := &model.Row{Grant: model.Grant{At: -time.Minute.Milliseconds()}, Member: "\x10a member's 16 id\x01\x00\x00\x00"}
		if err := (model.Op{Row: row, Permits: 1, Used: 3}).Settle(ctx, d.limiter); err != nil {
			return fmt.Errorf("%q: %w", d.limiter.Name(), err)
		}
		return nil
	},
}

func operation(name string) func(context.Context, damaged) error {
	return func(ctx context.Context, d damaged) error { return limitertest.Operations[name](ctx, d.limiter) }
}

var errGranted = errors.New("10 permits were granted")

var (
	configUses = slices.Collect(maps.Keys(uses))
	valueUses  = []string{"TryAcquire", "refused", "Acquire", "Take", "Peek", "no default", "Release", "AvailablePermits", "KeepState", "Settle"}
	memberUses = []string{"refused", "Release", "AvailablePermits", "KeepState"}
)

// requireCorrupt damages a limiter for each use in turn. Those named must fail and name the key
// and the field; others may do so. One that fails has changed nothing. Delete and, if cures is
// set, SetRate make the limiter whole.
func requireCorrupt(
	t *testing.T, kind rratelimiter.RateType, mustFail []string, cures bool, damage func(t *testing.T, d damaged) (key, field string),
) {
	t.Helper()
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		for use := range uses {
			d := newDamaged(t, rdb, kind)
			key, field := damage(t, d)
			requireUnchangedByFailure(t, d, use, key, field, slices.Contains(mustFail, use))
		}

		d := newDamaged(t, rdb, kind)
		damage(t, d)
		require.NoError(t, limitertest.Second(d.limiter.Delete(t.Context())))
		assert.Empty(t, limitertest.ReadState(t, rdb, d.limiter.Name()))
		assert.Equal(t, 10, limitertest.Grants(t, d.limiter, 11))

		d = newDamaged(t, rdb, kind)
		damage(t, d)
		err := d.limiter.SetRate(t.Context(), rratelimiter.Config{Type: kind, Rate: 8, Interval: time.Hour})
		if !cures {
			require.ErrorIs(t, err, rratelimiter.ErrCorrupt)
			return
		}
		require.NoError(t, err)
		assert.Equal(t, 8, limitertest.Grants(t, d.limiter, 11))
	})
}

func requireUnchangedByFailure(t *testing.T, d damaged, use, key, field string, mustFail bool) {
	t.Helper()
	name := d.limiter.Name()
	state, ttl := limitertest.ReadState(t, d.rdb, name), limitertest.TTLs(t, d.rdb, name)
	err := uses[use](t.Context(), d)
	if err == nil || errors.Is(err, errGranted) {
		require.False(t, mustFail && err == nil, "%s did not notice that %s of %q is corrupt", use, field, key)
		return
	}
	require.ErrorIs(t, err, rratelimiter.ErrCorrupt, use)
	assert.Contains(t, err.Error(), strconv.Quote(key), use)
	assert.Contains(t, err.Error(), field, use)
	assert.Contains(t, err.Error(), strconv.Quote(name), use)
	assert.Equal(t, state, limitertest.ReadState(t, d.rdb, name), "%s failed and changed something", use)
	for key, after := range limitertest.TTLs(t, d.rdb, name) {
		assert.InDelta(t, ttl[key], after, float64(time.Minute), "%s failed and changed the time to live of %s", use, key)
	}
}

// ofType makes key one of the wrong type.
func ofType(t *testing.T, rdb redistest.Client, key, kind string) {
	ctx := t.Context()
	require.NoError(t, rdb.Del(ctx, key).Err())
	require.NoError(t, rdb.Do(ctx, map[string][]any{
		"string": {"SET", key, 5}, "hash": {"HSET", key, "a", 1},
		"list": {"RPUSH", key, "a"}, "set": {"SADD", key, "a"}, "zset": {"ZADD", key, 0, "a"},
	}[kind]...).Err())
	require.NoError(t, rdb.Expire(ctx, key, 30*time.Minute).Err())
}

func TestCorruptTypes(t *testing.T) {
	t.Parallel()
	for field, tc := range map[string]struct {
		kinds    []string
		mustFail []string
		key      func(damaged) string
	}{
		"config":  {[]string{"string", "list", "set", "zset"}, configUses, func(d damaged) string { return d.keys.Config }},
		"value":   {[]string{"hash", "list", "set", "zset"}, valueUses, func(d damaged) string { return d.value }},
		"permits": {[]string{"string", "hash", "list", "set"}, valueUses, func(d damaged) string { return d.permits }},
	} {
		for _, kind := range some(tc.kinds) {
			t.Run(field+" is a "+kind, func(t *testing.T) {
				t.Parallel()
				limitertest.BothTypes(t, func(t *testing.T, rateType rratelimiter.RateType) {
					requireCorrupt(t, rateType, tc.mustFail, field != "config", func(t *testing.T, d damaged) (string, string) {
						ofType(t, d.rdb, tc.key(d), kind)
						return tc.key(d), field
					})
				})
			})
		}
	}
}

// noNumbers is text that some language takes for an integer, or none does.
var noNumbers = []string{
	"abc", "1e3", "0x10", "", "5.5", " 5", "5 ", "007", "+5", "-0", "nan", "5\x00", "٥", "9007199254740992", "99999999999999999999",
}

func TestCorruptConfigFields(t *testing.T) {
	t.Parallel()
	texts := map[string][]string{
		"rate": noNumbers, "interval": append([]string{"-1"}, noNumbers...), "keepAliveTime": noNumbers,
		"type": {"2", "", "00", "01", "OVERALL", " 0", "-1"},
	}
	for field, texts := range texts {
		for _, text := range some(texts) {
			t.Run(field+"="+text, func(t *testing.T) {
				t.Parallel()
				requireCorrupt(t, rratelimiter.Overall, configUses, true, func(t *testing.T, d damaged) (string, string) {
					require.NoError(t, d.rdb.HSet(t.Context(), d.keys.Config, field, text).Err())
					return d.keys.Config, field
				})
			})
		}
	}
}

// An override that does not say what comes back holds for no one: it would for ever.
func TestCorruptOverride(t *testing.T) {
	t.Parallel()
	whole := "9000000000000 20 3600000 0"
	for _, text := range some([]string{
		"", "abc", "5", " " + whole, whole + " 7", "-" + whole, "9e3 20 3600000 0", "9007199254740992 20 3600000 0",
		"9000000000000 x 3600000 0", "1 020 3600000 0", "1 20 03600000 0", "1 20 3600000 99999999999999999999", "1\x00 20 3600000 0",
	}) {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			requireCorrupt(t, rratelimiter.Overall, configUses, true, func(t *testing.T, d damaged) (string, string) {
				require.NoError(t, d.rdb.HSet(t.Context(), d.keys.Config, "interval", "03600000", "override", text).Err())
				return d.keys.Config, "override"
			})
		})
	}
}

func TestCorruptHalfAConfig(t *testing.T) {
	t.Parallel()
	fields := []string{"rate", "interval", "type", "keepAliveTime"}
	for subset := range 1<<len(fields) - 2 {
		missing := slices.DeleteFunc(slices.Clone(fields), func(field string) bool { return (subset+1)&(1<<slices.Index(fields, field)) != 0 })
		if slices.Equal(missing, fields[3:]) {
			continue // a whole one, of older Redissons
		}
		t.Run("without "+strings.Join(missing, " "), func(t *testing.T) {
			t.Parallel()
			requireCorrupt(t, rratelimiter.Overall, configUses, true, func(t *testing.T, d damaged) (string, string) {
				require.NoError(t, d.rdb.HDel(t.Context(), d.keys.Config, missing...).Err())
				return d.keys.Config, missing[0]
			})
		})
	}
}

func TestCorruptAHashOfSomethingElse(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		for use, call := range uses {
			d := newDamaged(t, rdb, rratelimiter.Overall)
			require.NoError(t, rdb.Del(t.Context(), d.keys.Config, d.value, d.permits).Err())
			require.NoError(t, rdb.HSet(t.Context(), d.keys.Config, "name", "Ada").Err())
			if use == "KeepState" {
				continue // sets the rate unconditionally
			}
			limitertest.RequireUntouched(t, rdb, d.limiter.Name(), func() { require.Error(t, call(t.Context(), d), use) })
		}
	})
}

func TestCorruptValue(t *testing.T) {
	t.Parallel()
	value := func(t *testing.T, kind rratelimiter.RateType, text string) {
		t.Helper()
		requireCorrupt(t, kind, valueUses, true, func(t *testing.T, d damaged) (string, string) {
			require.NoError(t, d.rdb.Set(t.Context(), d.value, text, redis.KeepTTL).Err())
			return d.value, "value"
		})
	}
	for _, text := range some(noNumbers) {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			value(t, rratelimiter.Overall, text)
		})
	}
	t.Run("of one client", func(t *testing.T) {
		t.Parallel()
		value(t, rratelimiter.PerClient, "abc")
	})
}

func TestCorruptPairThatIsNotInUse(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
			for use, call := range uses {
				d := newDamaged(t, rdb, kind)
				value, permits := d.keys.ClientValue, d.keys.ClientPermits
				if kind == rratelimiter.PerClient {
					value, permits = d.keys.Value, d.keys.Permits
				}
				require.NoError(t, rdb.Set(t.Context(), value, "abc", 0).Err())
				ofType(t, rdb, permits, "list")
				require.NoError(t, call(t.Context(), d), use)
			}
		})
	})
}

// Java counts milliseconds in 64 bits, a time.Duration holds 292 years.
func TestCorruptNumbersThatNoDurationHolds(t *testing.T) {
	t.Parallel()
	const long = 292 * 365 * 24 * time.Hour
	for _, ms := range []string{"9223372036855", "18446744073710", "9007199254740991"} {
		t.Run(ms, func(t *testing.T) {
			t.Parallel()
			redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
				l := limitertest.NewHandle(t, rdb)
				require.NoError(t, rdb.HSet(t.Context(), l.Name(), "rate", 10, "interval", ms, "type", 0).Err())
				limitertest.MustAcquire(t, l, 10)
				assert.GreaterOrEqual(t, limitertest.ConfigOf(t, l).Interval, long)
				d := limitertest.Take(t, l, 1)
				assert.GreaterOrEqual(t, d.RetryAfter, long)
				assert.GreaterOrEqual(t, d.ResetAfter, long)

				sent := limitertest.CountCommands(rdb)
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
				require.ErrorIs(t, l.Acquire(ctx, 1), context.DeadlineExceeded)
				assert.LessOrEqual(t, sent.Scripts(), 3, "it asks again in centuries")
			})
			t.Run("time to live", func(t *testing.T) {
				t.Parallel()
				rdb := redistest.CurrentClient(t)
				l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Hour))
				require.NoError(t, rdb.Do(t.Context(), "PEXPIRE", l.Name(), ms).Err())
				ttl, _, err := l.TTL(t.Context())
				require.NoError(t, err)
				assert.GreaterOrEqual(t, ttl, long)
			})
		})
	}
}

func TestCorruptConfigsOfOtherReleases(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		for _, more := range [][]any{nil, {"keepAliveTime", 0}, {"keepAliveTime", 7_200_000}, {"keepAliveTime", -1}, {"burst", "x"}} {
			l := limitertest.NewHandle(t, rdb)
			fields := append([]any{"rate", "10", "interval", "3600000", "type", "0"}, more...)
			require.NoError(t, rdb.HSet(t.Context(), l.Name(), fields...).Err())
			assert.Equal(t, 10, limitertest.Grants(t, l, 12))
			assert.EqualValues(t, 0, limitertest.Available(t, l))
			require.NoError(t, l.Release(t.Context(), 10))
			assert.EqualValues(t, 10, limitertest.Available(t, l))
			assert.EqualValues(t, 10, limitertest.ConfigOf(t, l).Rate)
		}
	})
}

// noMembers have the layout of no Redisson release.
var noMembers = map[string]string{
	"text": "a", "empty": "", "B and more": "123456789", "D of another length": "\x10abcdefghijklmno\x01\x00\x00\x00",
	"C of another length": "\x09\x00\x00\x00\x00\x00\x00\x0012345678\x01\x00\x00\x00", "a UUID": "3f2b8f4e-8c1b-4c6e-9f4e-3b1d6a0c9f11",
	"no bytes of ASCII": "\xff\xfe\x00\r\n%s", "long": strings.Repeat("x", 10_000),
}

func TestCorruptMembers(t *testing.T) {
	t.Parallel()
	ages := map[string]time.Duration{
		"oldest, run out": 90 * time.Minute, "oldest": 55 * time.Minute, "middle": 20 * time.Minute,
		"newest": time.Minute, "dated in the future": -time.Minute,
	}
	for where, age := range ages {
		for _, what := range some(slices.Sorted(maps.Keys(noMembers))) {
			member := noMembers[what]
			t.Run(what+"/"+where, func(t *testing.T) {
				t.Parallel()
				mustFail := memberUses
				if age < 10*time.Minute {
					mustFail = append([]string{"Take"}, memberUses...)
				}
				requireCorrupt(t, rratelimiter.Overall, mustFail, true, func(t *testing.T, d damaged) (string, string) {
					addMember(t, d, age, member)
					return d.permits, "member"
				})
			})
		}
	}
}

func addMember(t *testing.T, d damaged, age time.Duration, member string) {
	score := float64(limitertest.ServerNow(t, d.rdb) - age.Milliseconds())
	require.NoError(t, d.rdb.ZAdd(t.Context(), d.permits, redis.Z{Score: score, Member: member}).Err())
}

// No change to the state may start until all of it is known to be in order.
func TestCorruptMembersChangeNothing(t *testing.T) {
	t.Parallel()
	for what, more := range map[string]func(*testing.T, damaged){
		"members that have run out": func(t *testing.T, d damaged) { limitertest.AddGrants(t, d.rdb, d.permits, 2*time.Hour, 3, 1) },
		"members of the future":     func(t *testing.T, d damaged) { limitertest.AddGrants(t, d.rdb, d.permits, -time.Hour, 3, 1) },
		"both": func(t *testing.T, d damaged) {
			limitertest.AddGrants(t, d.rdb, d.permits, 2*time.Hour, 3, 1)
			limitertest.AddGrants(t, d.rdb, d.permits, -time.Hour, 3, 1)
		},
		"a value above the rate": func(t *testing.T, d damaged) {
			limitertest.AddGrants(t, d.rdb, d.permits, time.Minute, 1, 2)
			require.NoError(t, d.rdb.Set(t.Context(), d.value, 11, redis.KeepTTL).Err())
		},
		"no value":       func(t *testing.T, d damaged) { require.NoError(t, d.rdb.Del(t.Context(), d.value).Err()) },
		"leaked permits": func(t *testing.T, d damaged) { require.NoError(t, d.rdb.DecrBy(t.Context(), d.value, 3).Err()) },
		"a keep-alive time": func(t *testing.T, d damaged) {
			require.NoError(t, d.rdb.HSet(t.Context(), d.keys.Config, "keepAliveTime", 5*3600*1000).Err())
		},
		"a value without TTL": func(t *testing.T, d damaged) { require.NoError(t, d.rdb.Persist(t.Context(), d.value).Err()) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
				requireCorrupt(t, kind, memberUses, true, func(t *testing.T, d damaged) (string, string) {
					addMember(t, d, 20*time.Minute, "of no layout")
					more(t, d)
					return d.permits, "member"
				})
			})
		})
	}
}

func TestMembers_OfAllLayoutsSideBySide(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		d := newDamaged(t, rdb, rratelimiter.Overall)
		require.NoError(t, rdb.Del(t.Context(), d.permits).Err())
		require.NoError(t, rdb.Expire(t.Context(), d.keys.Config, time.Hour).Err(), "no wait is longer than the limiter lives")
		for i, layout := range []codec.Layout{codec.LayoutB, codec.LayoutC, codec.LayoutD1, codec.LayoutD2} {
			addMember(t, d, time.Duration(50-10*i)*time.Minute, limitertest.NewMember(t, layout, uint32(i+1)))
		}
		require.NoError(t, rdb.Set(t.Context(), d.value, 0, time.Hour).Err())
		for permits, wait := range map[int64]int{1: 10, 2: 20, 3: 20, 4: 30, 6: 30, 7: 40, 10: 40} {
			decision := limitertest.Take(t, d.limiter, permits)
			assert.False(t, decision.Granted)
			assert.InDelta(t, wait, decision.RetryAfter.Minutes(), 1, "%d permits", permits)
		}
	})
}

// some returns a test's first case with -short, else all.
func some[T any](all []T) []T {
	if testing.Short() {
		return all[:1]
	}
	return all
}
