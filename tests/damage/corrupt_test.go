package damage_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/model"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// damaged is a limiter of 10 permits an hour, for tests to break: of its permits 6 are in use, by three members of the last hour.
type damaged struct {
	rdb     redistest.Client
	client  *rratelimiter.Client
	limiter *rratelimiter.RateLimiter
	kind    rratelimiter.RateType
	key     map[string]string // config, and value and permits of the pair in use
	unused  [2]string         // the other pair
}

const damagedClient = "client-id"

func newDamaged(t *testing.T, rdb redistest.Client, kind rratelimiter.RateType) damaged {
	name := redistest.Name(t)
	client, k := limitertest.NewClient(t, rdb, rratelimiter.WithClientID(damagedClient)), redisson.KeysOf(name, damagedClient)
	pairs := [][2]string{{k.Value, k.Permits}, {k.ClientValue, k.ClientPermits}}
	value, permits := pairs[kind][0], pairs[kind][1]
	d := damaged{
		rdb: rdb, client: client, kind: kind, limiter: limitertest.ByDefault(client, name, limitertest.Every(10, time.Hour)),
		key: map[string]string{"config": name, "value": value, "permits": permits}, unused: pairs[1-kind],
	}
	limitertest.MustTrySetRate(t, d.limiter, rratelimiter.Config{Type: kind, Rate: 10, Interval: time.Hour})
	for _, age := range []time.Duration{50 * time.Minute, 30 * time.Minute, 10 * time.Minute} {
		limitertest.AddGrants(t, rdb, permits, age, 1, 2)
	}
	all(run("SET", "value", 4), run("EXPIRE", "config", 30*60), run("EXPIRE", "value", 30*60), run("EXPIRE", "permits", 30*60))(t, d)
	return d
}

// uses are the calls that may come across a damage.
var uses = allUses()

func allUses() map[string]func(context.Context, damaged) error {
	all := map[string]func(context.Context, damaged) error{
		"refused": func(ctx context.Context, d damaged) error {
			granted, err := d.limiter.TryAcquire(ctx, 10, 0)
			if granted {
				return errGranted
			}
			return err
		},
		"no default": func(ctx context.Context, d damaged) error {
			return limitertest.Second(d.client.RateLimiter(d.limiter.Name()).TryAcquire(ctx, 1, 0))
		},
		"Release": func(ctx context.Context, d damaged) error { return d.limiter.Release(ctx, 5) },
		"KeepState": func(ctx context.Context, d damaged) error {
			cfg := rratelimiter.Config{Type: d.kind, Rate: 5, Interval: time.Hour}
			return limitertest.Second(d.limiter.UpdateRate(ctx, cfg, rratelimiter.KeepState()))
		},
		"Settle": func(ctx context.Context, d damaged) error {
			row := &model.Row{Grant: model.Grant{At: -time.Minute.Milliseconds()}, Member: "\x10a member's 16 id\x01\x00\x00\x00"}
			if err := (model.Op{Row: row, Permits: 1, Used: 3}).Settle(ctx, d.limiter); err != nil {
				return fmt.Errorf("%q: %w", d.limiter.Name(), err)
			}
			return nil
		},
	}
	for _, name := range []string{"TryAcquire", "Acquire", "Take", "Peek", "AvailablePermits", "Config", "TrySetRate", "Rename"} {
		all[name] = func(ctx context.Context, d damaged) error { return limitertest.Operations[name](ctx, d.limiter) }
	}
	return all
}

var errGranted = errors.New("10 permits were granted")

var (
	configUses = slices.Collect(maps.Keys(uses))
	valueUses  = []string{"TryAcquire", "refused", "Acquire", "Take", "Peek", "no default", "Release", "AvailablePermits", "KeepState", "Settle"}
	memberUses = []string{"refused", "Release", "AvailablePermits", "KeepState"}
)

// A corruption is what no limiter writes, under a key of one.
type corruption struct {
	do         damage
	key, field string   // that errors name
	mustFail   []string // other uses may
	both       bool     // it is tried with each type of limiter
	stays      bool     // SetRate does not make the limiter whole
}

// A damage changes what Redis holds of a limiter.
type damage func(t *testing.T, d damaged)

// run is the damage of a command: config, value and permits are the keys in use, a duration is the score of a member of that age.
func run(args ...any) damage {
	return func(t *testing.T, d damaged) {
		words := slices.Clone(args)
		for i, arg := range words {
			switch arg := arg.(type) {
			case string:
				words[i] = cmp.Or(d.key[arg], arg)
			case time.Duration:
				words[i] = limitertest.ServerNow(t, d.rdb) - arg.Milliseconds()
			}
		}
		require.NoError(t, d.rdb.Do(t.Context(), words...).Err(), args)
	}
}

// grants is the damage of members of three permits together, as granted that long ago.
func grants(age time.Duration) damage {
	return func(t *testing.T, d damaged) { limitertest.AddGrants(t, d.rdb, d.key["permits"], age, 3, 1) }
}

func all(damages ...damage) damage {
	return func(t *testing.T, d damaged) {
		for _, do := range damages {
			do(t, d)
		}
	}
}

// ofType makes a key one of the wrong type.
func ofType(key, kind string) damage {
	return all(run("DEL", key), run(map[string][]any{
		"string": {"SET", key, 5}, "hash": {"HSET", key, "a", 1}, "list": {"RPUSH", key, "a"}, "set": {"SADD", key, "a"}, "zset": {"ZADD", key, 0, "a"},
	}[kind]...), run("EXPIRE", key, 30*60))
}

// noNumbers is text that some language takes for an integer, or none does.
var noNumbers = []string{
	"abc", "1e3", "0x10", "", "5.5", " 5", "5 ", "007", "+5", "-0", "nan", "5\x00", "٥", "9007199254740992", "99999999999999999999",
}

// noOverrides do not say what comes back: such a one would hold for ever.
var noOverrides = []string{
	"", "abc", "5", " 9000000000000 20 3600000 0", "9000000000000 20 3600000 0 7", "-9000000000000 20 3600000 0", "9e3 20 3600000 0",
	"9007199254740992 20 3600000 0", "9000000000000 x 3600000 0", "1 020 3600000 0", "1 20 03600000 0", "1 20 3600000 99999999999999999999",
	"1\x00 20 3600000 0",
}

// noMembers have the layout of no Redisson release.
var noMembers = map[string]string{
	"text": "a", "empty": "", "B and more": "123456789", "D of another length": "\x10abcdefghijklmno\x01\x00\x00\x00",
	"C of another length": "\x09\x00\x00\x00\x00\x00\x00\x0012345678\x01\x00\x00\x00", "a UUID": "3f2b8f4e-8c1b-4c6e-9f4e-3b1d6a0c9f11",
	"no bytes of ASCII": "\xff\xfe\x00\r\n%s", "long": strings.Repeat("x", 10_000),
}

// ages are those of members in a set, the oldest first.
var ages = map[string]time.Duration{
	"oldest, run out": 90 * time.Minute, "oldest": 55 * time.Minute, "middle": 20 * time.Minute,
	"newest": time.Minute, "dated in the future": -time.Minute,
}

// besides are what a corrupt member stands beside: no change may start until all is known to be in order.
var besides = map[string]damage{
	"members that have run out": grants(2 * time.Hour),
	"members of the future":     grants(-time.Hour),
	"both":                      all(grants(2*time.Hour), grants(-time.Hour)),
	"a value above the rate":    all(grants(time.Minute), run("SET", "value", 11, "KEEPTTL")),
	"no value":                  run("DEL", "value"),
	"leaked permits":            run("DECRBY", "value", 3),
	"a keep-alive time":         run("HSET", "config", "keepAliveTime", 5*3600*1000),
	"a value without TTL":       run("PERSIST", "value"),
}

// corruptions are all there are; with -short the first of each kind.
func corruptions() map[string]corruption {
	found := map[string]corruption{}
	for key, c := range map[string]struct{ kinds, mustFail []string }{
		"config":  {[]string{"string", "list", "set", "zset"}, configUses},
		"value":   {[]string{"hash", "list", "set", "zset"}, valueUses},
		"permits": {[]string{"string", "hash", "list", "set"}, valueUses},
	} {
		for _, kind := range some(c.kinds) {
			found[key+" is a "+kind] = corruption{do: ofType(key, kind), key: key, field: key, mustFail: c.mustFail, both: true, stays: key == "config"}
		}
	}
	for i, text := range some(noNumbers) {
		found["value="+text] = corruption{do: run("SET", "value", text, "KEEPTTL"), key: "value", field: "value", mustFail: valueUses, both: i == 0}
	}
	for where, age := range ages {
		for _, what := range some(slices.Sorted(maps.Keys(noMembers))) {
			c := corruption{do: run("ZADD", "permits", age, noMembers[what]), key: "permits", field: "member", mustFail: memberUses}
			if age < 10*time.Minute {
				c.mustFail = append([]string{"Take"}, memberUses...)
			}
			found[what+"/"+where] = c
		}
	}
	for what, more := range besides {
		do := all(run("ZADD", "permits", 20*time.Minute, "of no layout"), more)
		found["a member beside "+what] = corruption{do: do, key: "permits", field: "member", mustFail: memberUses, both: true}
	}
	maps.Copy(found, corruptConfigs())
	return found
}

func corruptConfigs() map[string]corruption {
	found := map[string]corruption{}
	add := func(name, field string, do damage) {
		found[name] = corruption{do: do, key: "config", field: field, mustFail: configUses}
	}
	for field, texts := range map[string][]string{
		"rate": noNumbers, "interval": append([]string{"-1"}, noNumbers...), "keepAliveTime": noNumbers,
		"type": {"2", "", "00", "01", "OVERALL", " 0", "-1"},
	} {
		for _, text := range some(texts) {
			add(field+"="+text, field, run("HSET", "config", field, text))
		}
	}
	for _, text := range some(noOverrides) {
		add("override="+text, "override", run("HSET", "config", "interval", "03600000", "override", text))
	}
	fields := []any{"rate", "interval", "type", "keepAliveTime"}
	for subset := range 1<<len(fields) - 2 {
		missing := slices.DeleteFunc(slices.Clone(fields), func(field any) bool { return (subset+1)&(1<<slices.Index(fields, field)) != 0 })
		if !slices.Equal(missing, fields[3:]) { // without that it is a whole one, of older Redissons
			add(fmt.Sprint("without ", missing), missing[0].(string), run(append([]any{"HDEL", "config"}, missing...)...))
		}
	}
	return found
}

// What can't be read fails each use that comes across it, and names the key and the field. One that fails has changed nothing. Delete and,
// but for a key that holds no configuration at all, SetRate make the limiter whole.
func TestCorrupt(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, corruptions(), func(t *testing.T, c corruption) {
		if c.both {
			limitertest.BothTypes(t, c.check)
		} else {
			c.check(t, rratelimiter.Overall)
		}
	})
}

func (c corruption) check(t *testing.T, kind rratelimiter.RateType) {
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		corrupted := func() damaged {
			d := newDamaged(t, rdb, kind)
			c.do(t, d)
			return d
		}
		for use := range uses {
			c.checkUse(t, corrupted(), use)
		}
		d := corrupted()
		require.NoError(t, limitertest.Second(d.limiter.Delete(t.Context())))
		assert.Empty(t, limitertest.ReadState(t, rdb, d.limiter.Name()))
		assert.Equal(t, 10, limitertest.Grants(t, d.limiter, 11))
		d = corrupted()
		err := d.limiter.SetRate(t.Context(), rratelimiter.Config{Type: kind, Rate: 8, Interval: time.Hour})
		if c.stays {
			require.ErrorIs(t, err, rratelimiter.ErrCorrupt)
			return
		}
		require.NoError(t, err)
		assert.Equal(t, 8, limitertest.Grants(t, d.limiter, 11))
	})
}

func (c corruption) checkUse(t *testing.T, d damaged, use string) {
	t.Helper()
	name := d.limiter.Name()
	state, ttl := limitertest.ReadState(t, d.rdb, name), limitertest.TTLs(t, d.rdb, name)
	err := uses[use](t.Context(), d)
	if err == nil || errors.Is(err, errGranted) {
		require.False(t, err == nil && slices.Contains(c.mustFail, use), "%s did not notice that %s is corrupt", use, c.field)
		return
	}
	require.ErrorIs(t, err, rratelimiter.ErrCorrupt, use)
	for _, text := range []string{strconv.Quote(d.key[c.key]), c.field, strconv.Quote(name)} {
		assert.ErrorContains(t, err, text, use)
	}
	assert.Equal(t, state, limitertest.ReadState(t, d.rdb, name), "%s failed and changed something", use)
	for key, after := range limitertest.TTLs(t, d.rdb, name) {
		assert.InDelta(t, ttl[key], after, float64(time.Minute), "%s failed and changed the time to live of %s", use, key)
	}
}

func TestCorruptAHashOfSomethingElse(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		for use, call := range uses {
			if use == "KeepState" {
				continue // sets the rate unconditionally
			}
			d := newDamaged(t, rdb, rratelimiter.Overall)
			all(run("DEL", "config"), run("DEL", "value"), run("DEL", "permits"), run("HSET", "config", "name", "Ada"))(t, d)
			limitertest.RequireUntouched(t, rdb, d.limiter.Name(), func() { require.Error(t, call(t.Context(), d), use) })
		}
	})
}

func TestCorruptPairThatIsNotInUse(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
			for use, call := range uses {
				d := newDamaged(t, rdb, kind)
				all(run("SET", d.unused[0], "abc"), run("RPUSH", d.unused[1], "a"))(t, d)
				require.NoError(t, call(t.Context(), d), use)
			}
		})
	})
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

// some returns a test's first case with -short, else all.
func some[T any](all []T) []T {
	if testing.Short() {
		return all[:1]
	}
	return all
}

func TestMembers_OfAllLayoutsSideBySide(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		d := newDamaged(t, rdb, rratelimiter.Overall)
		all(run("DEL", "permits"), run("EXPIRE", "config", 60*60))(t, d) // no wait is longer than the limiter lives
		for i, layout := range []codec.Layout{codec.LayoutB, codec.LayoutC, codec.LayoutD1, codec.LayoutD2} {
			run("ZADD", "permits", time.Duration(50-10*i)*time.Minute, limitertest.NewMember(t, layout, uint32(i+1)))(t, d)
		}
		run("SET", "value", 0, "EX", 60*60)(t, d)
		for permits, wait := range map[int64]int{1: 10, 2: 20, 3: 20, 4: 30, 6: 30, 7: 40, 10: 40} {
			decision := limitertest.Take(t, d.limiter, permits)
			assert.False(t, decision.Granted)
			assert.InDelta(t, wait, decision.RetryAfter.Minutes(), 1, "%d permits", permits)
		}
	})
}
