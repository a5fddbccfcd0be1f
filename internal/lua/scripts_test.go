package lua

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	top "github.com/rratelimiter/rratelimiter/lua"
)

func TestLoad(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		files map[string]string
		want  string
		fails []string // what the error tells
	}{
		"in its place": {map[string]string{"a.lua": "one\n--- @include \"b\"\nthree", "include/b.lua": "two\n"}, "one\ntwo\nthree", nil},
		"once, before what asks for them": {
			map[string]string{
				"a.lua": "--- @include \"b\" \"c\"\n--- @include \"d\"\na\n", "include/b.lua": "--- @include \"c\"\nb\n",
				"include/c.lua": "c\n", "include/d.lua": "--- @include \"b\" \"c\"\nd\n",
			},
			"c\nb\nd\na\n", nil,
		},
		"no such script": {nil, "", []string{"script a", "a.lua"}},
		"no such include of an include": {
			map[string]string{"a.lua": "--- @include \"b\"\n", "include/b.lua": "\n\n--- @include \"c\"\n"}, "",
			[]string{"a.lua:1", "include/b.lua:3", "include/c.lua"},
		},
		"no name":   {map[string]string{"a.lua": "--- @include \n"}, "", []string{"a.lua:1", "no name"}},
		"no quotes": {map[string]string{"a.lua": "--- @include b\n", "include/b.lua": ""}, "", []string{"a.lua:1", `@include "name"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := fstest.MapFS{}
			for name, text := range tc.files {
				files[name] = &fstest.MapFile{Data: []byte(text)}
			}
			script, err := load(files, "a")
			if tc.fails != nil {
				require.Error(t, err)
				for _, text := range tc.fails {
					assert.ErrorContains(t, err, text)
				}
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tc.want, script.Source)
		})
	}
}

// Keys come from KEYS, by a literal number among those of a limiter: a cluster finds the node by them. No script assigns to KEYS.
func TestKeysAreLiteral(t *testing.T) {
	t.Parallel()
	keyed := regexp.MustCompile(`\bcall\('([A-Z]+)'(, [^,)]+)?`)
	allowed := regexp.MustCompile(`^, (KEYS\[(10|[1-9]|(\w+\.)*at \+ 1)\]|((l|config)\.)?(value|permits)_key|key|config_key|from|to)$`)
	for _, script := range All() {
		uncommented := regexp.MustCompile(`--[^\n]*`).ReplaceAllString(script.Source, "")
		for _, match := range regexp.MustCompile(`KEYS\[([^\]]*)\]`).FindAllStringSubmatch(uncommented, -1) {
			if script == AcquireMany { // which takes the keys of any number of limiters
				assert.Regexp(t, `^(10|[1-9]|3 \* i( - [12])?)$`, match[1], script.Name)
			} else {
				assert.Regexp(t, `^(10|[1-9]|(\w+\.)*at \+ [1-5])$`, match[1], script.Name)
			}
		}
		for _, match := range keyed.FindAllStringSubmatch(uncommented, -1) {
			if match[1] != "TIME" {
				assert.Regexp(t, allowed, match[2], "%s: %s", script.Name, match[0])
			}
		}
		for _, name := range []string{"value_key", "permits_key", "key"} {
			for _, match := range regexp.MustCompile(`\b`+name+`\b(?:, [\w.]+)* = (.*)`).FindAllStringSubmatch(uncommented, -1) {
				assert.Regexp(t, `^(KEYS\[|(l|config)\.(value|permits)_key\b)`, match[1], "%s: %s", script.Name, match[0])
			}
		}
		assert.Empty(t, regexp.MustCompile(`#KEYS|KEYS[^\[]|KEYS(, \w+|\[[^\]]*\])* = `).FindString(uncommented), script.Name)
	}
}

// include returns a script of one include and the body given.
func include(t *testing.T, name, body string) string {
	t.Helper()
	source, err := compose(top.Files, "include/"+name+".lua", map[string]bool{name: true})
	require.NoError(t, err)
	return source + body
}

// An includeRow is a body behind an include, and what it answers.
type includeRow struct {
	include, body string
	args          []any
	want          string
}

func includeRows() (rows []includeRow) {
	const integer = "local n = integer(ARGV[1]) return n and string.format('%.0f', n) or 'nil'"
	for _, text := range []string{"0", "9", "10", "-10", "999999999999999", "1000000000000000", "9007199254740991", "-9007199254740991"} {
		rows = append(rows, includeRow{"integer", integer, []any{text}, text})
	}
	for _, text := range []string{
		"", "-", "-0", "+1", "01", "1 ", "1\n", "1.0", ".5", "1e3", "0x10", "nan", "inf", "1a", "9007199254740992", "9223372036854775807", "1\x00",
	} {
		rows = append(rows, includeRow{"integer", integer, []any{text}, "nil"})
	}
	const permitsOf = "local n = permits_of(ARGV[1]) return n and string.format('%.0f', n) or 'nil'"
	const id8, id16 = "01234567", "0123456789abcdef"
	for _, head := range []string{
		"\x00\x00\x80\x3f", "\x03abc", "\x08\x00\x00\x00\x00\x00\x00\x00" + id8, // B, one that begins like D, C
		"\x08" + id8, "\x10" + id16, "\x00", "\xff" + strings.Repeat("x", 255), // D1, D2, without an id, with the longest
	} {
		for _, n := range []uint32{0, 0x01020304, 1<<32 - 1} {
			text := string(binary.LittleEndian.AppendUint32([]byte(head), n))
			rows = append(rows, includeRow{"member", permitsOf, []any{text}, fmt.Sprint(n)})
		}
	}
	for _, text := range []string{
		"", "1234567", "123456789", "\x07" + id8 + "\x01\x00\x00\x00", "\x10" + id16 + "\x01\x00\x00", "\x10" + id16 + "\x01\x00\x00\x00\x00",
		"\x09\x00\x00\x00\x00\x00\x00\x00" + id8 + "\x01\x00\x00\x00", "\x08\x00\x00\x00\x00\x00\x00\x01" + id8 + "\x01\x00\x00\x00",
	} {
		rows = append(rows, includeRow{"member", permitsOf, []any{text}, "nil"})
	}
	const corrupt = "return corrupt(2, 'value', 'is no integer: ' .. ARGV[1])"
	return append(rows,
		includeRow{"member", "return with_permits(ARGV[1], tonumber(ARGV[2]))", []any{member(7), 0x01020304}, member(0)[:17] + "\x04\x03\x02\x01"},
		// One line of ASCII, and not a long one.
		includeRow{"corrupt", corrupt, []any{"a\r\nb\x00\xffc%d"}, "CORRUPT 2 value is no integer: a??b??c%d"},
		includeRow{"corrupt", corrupt, []any{strings.Repeat("x", 10_000)}, "CORRUPT 2 value is no integer: " + strings.Repeat("x", 65)})
}

func TestIncludes(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		for _, r := range includeRows() {
			got, err := rdb.Eval(t.Context(), include(t, r.include, r.body), nil, r.args...).Result()
			if err != nil {
				got = err
			}
			assert.Equal(t, r.want, fmt.Sprint(got), "%s: %.60q", r.body, r.args)
		}
		const stub = "local redis = {call = function() return {'1700000000', ARGV[1]} end}\n"
		for micros, want := range map[string]string{"0": "000", "999": "000", "1000": "001", "99999": "099", "999999": "999"} {
			got, err := rdb.Eval(t.Context(), stub+include(t, "clock", "return clock()"), nil, micros).Text()
			require.NoError(t, err)
			assert.Equal(t, "1700000000"+want, got)
		}
	})
}

const hour = int64(3600_000)

// A rig is a limiter that all clients share, whose interval is an hour, for scripts to work with.
type rig struct {
	*testing.T

	rdb  redistest.Client
	keys []string // as redisson.Keys lists them
	rate int64
}

// newRig returns a full limiter.
func newRig(t *testing.T, rdb redistest.Client, rate int64) *rig {
	t.Helper()
	l := &rig{t, rdb, redisson.KeysOf("{"+redistest.Name(t)+"}", "id").List(), rate}
	l.config("rate", rate, "interval", hour, "type", 0)
	require.NoError(t, rdb.Set(t.Context(), l.keys[1], rate, 0).Err())
	return l
}

func (l *rig) config(fields ...any) {
	require.NoError(l, l.rdb.HSet(l.Context(), l.keys[0], fields...).Err())
}

func (l *rig) loses(keys ...string) { require.NoError(l, l.rdb.Del(l.Context(), keys...).Err()) }

// now is the server's, in ms.
func (l *rig) now() int64 { return l.rdb.Time(l.Context()).Val().UnixMilli() }

// A row is a member of the set, and its time.
func row(at int64, member string) redis.Z { return redis.Z{Score: float64(at), Member: member} }

// grants are rows of one permit each.
func grants(n int, layout codec.Layout, at func(i int) int64) (rows []redis.Z) {
	for i := range n {
		rows = append(rows, row(at(i), memberOf(layout, i)))
	}
	return rows
}

// grant puts rows into the set, and takes their permits off the value.
func (l *rig) grant(rows ...redis.Z) {
	sum := int64(0)
	for _, z := range rows {
		sum += permits(l.T, z.Member.(string))
	}
	require.NoError(l, l.rdb.ZAdd(l.Context(), l.keys[3], rows...).Err())
	require.NoError(l, l.rdb.DecrBy(l.Context(), l.keys[1], sum).Err())
}

// release takes permits off a member, to leave so many.
func (l *rig) release(member string, left int64) {
	at, back := l.rdb.ZScore(l.Context(), l.keys[3], member).Val(), permits(l.T, member)
	require.EqualValues(l, 1, l.rdb.ZRem(l.Context(), l.keys[3], member).Val())
	require.NoError(l, l.rdb.IncrBy(l.Context(), l.keys[1], back).Err())
	if left > 0 {
		l.grant(row(int64(at), with(member, left)))
	}
}

// rows are those of the set, the oldest first.
func (l *rig) rows() []redis.Z { return l.rdb.ZRangeWithScores(l.Context(), l.keys[3], 0, -1).Val() }

// value is the text of the free permits.
func (l *rig) value() string { return l.rdb.Get(l.Context(), l.keys[1]).Val() }

// check checks how many permits are in use, and that the others are free.
func (l *rig) check(inUse int64) {
	l.Helper()
	sum := int64(0)
	for _, z := range l.rows() {
		sum += permits(l.T, z.Member.(string))
	}
	assert.Equal(l, inUse, sum, "permits in use")
	if value := l.value(); value != "" {
		assert.Equal(l, fmt.Sprint(l.rate-inUse), value, "free permits")
	}
}

func (l *rig) eval(s *Script, args ...any) any {
	l.Helper()
	answer, err := l.rdb.Eval(l.Context(), s.Source, l.keys, args...).Result()
	require.NoError(l, err)
	return answer
}

// until calls a script until it has done all, and returns how often; its token is an argument.
func (l *rig) until(s *Script, token int, args ...any) (answer any, calls int) {
	l.Helper()
	for calls = 1; ; calls++ {
		require.Less(l, calls, 100)
		answer = l.eval(s, args...)
		again, ok := answer.([]any)
		if !ok || again[0] != "again" {
			return answer, calls
		}
		args[token] = again[1]
	}
}

func permits(t *testing.T, text string) int64 {
	t.Helper()
	m, err := codec.Parse(text)
	require.NoError(t, err)
	return int64(m.Permits)
}

// member packs permits as layout D2.
func member(permits byte) string {
	return "\x10" + strings.Repeat("i", 16) + string([]byte{permits, 0, 0, 0})
}

// other is a member of another attempt than member's.
func other(permits byte) string { return strings.ReplaceAll(member(permits), "i", "j") }

// memberOf returns a member for one permit, with an id of its own.
func memberOf(layout codec.Layout, n int) string {
	size := map[codec.Layout]int{codec.LayoutB: 4, codec.LayoutC: 8, codec.LayoutD1: 8, codec.LayoutD2: 16}[layout]
	m, err := codec.Append(nil, layout, fmt.Appendf(nil, "%0*d", size, n), 1)
	if err != nil {
		panic(err) // the layouts are those above
	}
	return string(m)
}

func with(member string, permits int64) string {
	return string(redisson.WithPermits([]byte(member), permits))
}

// A member with the short id of a refused request may be another program's, but hardly if it is a moment old.
func TestAcquire_OldestMemberWithTheShortIDOfTheRequest(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		l, request := newRig(t, rdb, 1), memberOf(codec.LayoutD1, 7)
		granted := []any{int64(1), int64(1), int64(1), hour, hour, int64(0), int64(0)}
		require.Equal(t, granted, l.eval(Acquire, request, 1, "", "f"))
		require.Equal(t, int64(1), l.eval(Acquire, request, 1), "the same request, which came twice")
		time.Sleep(500 * time.Millisecond)
		left := hour - 500
		require.Equal(t, []any{int64(1), int64(0), int64(0), hour, left, int64(0), int64(0), left}, l.eval(Acquire, request, 1))
	})
}

// The first grant of a full limiter makes the set. If that alone lacks the limiter's time to live, the fast path gives it.
func TestAcquire_GivesNewSetATimeToLive(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		l := newRig(t, rdb, 3)
		for _, key := range l.keys[:2] {
			require.NoError(t, rdb.PExpire(t.Context(), key, time.Hour).Err())
		}
		for range 2 { // the copy of a request takes nothing
			require.Equal(t, int64(1), l.eval(Acquire, member(1)), "the fast path decides")
			assert.Equal(t, time.Hour, rdb.PTTL(t.Context(), l.keys[3]).Val())
			l.check(1)
		}
		require.NoError(t, rdb.PExpire(t.Context(), l.keys[3], 2*time.Hour).Err())
		l.eval(Acquire, other(1))
		assert.Equal(t, time.Hour, rdb.PTTL(t.Context(), l.keys[3]).Val(), "all have one")
	})
}

// A batch is refused at once only if none of it fits, and each when the oldest member runs out.
func TestAcquire_RefusesABatchAtOnce(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		l, ago := newRig(t, rdb, 10), int64(60_000)
		l.grant(row(l.now()-ago, with(memberOf(codec.LayoutD2, 1), 4)))
		batch := func(first, second int) any {
			return l.eval(Acquire, member(1), first+second, "", "", "", "", 0, first, 1, second, 1)
		}
		assert.Equal(t, ago-hour, batch(8, 9))
		assert.EqualValues(t, 3, batch(9, 3).([]any)[2], "the smaller one fits")
		assert.Len(t, batch(4, 8), 9, "the larger one waits longer")
	})
}

// Who gives back learns no error if the limiter has gone.
func TestGiveBack_OfALimiterThatHasGone(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	l := newRig(t, rdb, 3)
	l.loses(l.keys...)
	assert.Equal(t, int64(0), l.eval(GiveBack, member(3), 3, "", 1000, ""))
}

// The list holds the attempts that a repeat decided last, each of them whole: their late copies take nothing.
func TestAcquire_NotesLast31Attempts(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		for layout, noted := range map[codec.Layout]int{codec.LayoutD2: 31, codec.LayoutD1: 46, codec.LayoutC: 32, codec.LayoutB: 66} {
			l := newRig(t, rdb, 1000)
			const attempts = 70
			for i := range attempts {
				l.eval(Acquire, memberOf(layout, i), 1, "", "", 0)
			}
			list := rdb.HGet(t.Context(), l.keys[0], "answered").Val()
			assert.Equal(t, noted, strings.Count(list, ":"), "layout %v", layout)
			assert.Regexp(t, `^(\d{13}:([0-9a-f]{2})+;)+$`, list, "layout %v", layout)
			l.loses(l.keys[1:]...) // so that late copies could be granted
			for i := range attempts {
				err := rdb.Eval(t.Context(), Acquire.Source, l.keys, memberOf(layout, i), 1).Err()
				assert.Equal(t, i >= attempts-noted, redis.HasErrorPrefix(err, "LATE"), "layout %v, attempt %d: %v", layout, i, err)
			}
		}
	})
}

// The list is read even if no permit is free by the value, since what has run out comes back.
func TestAcquire_LateAttemptTakesNothingOfExhaustedLimiter(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		l, late := newRig(t, rdb, 3), other(1)
		l.grant(row(l.now()-2*hour, member(3)))
		l.config("answered", fmt.Sprintf("%d:%x;", l.now(), late[:len(late)-4]))
		err := rdb.Eval(t.Context(), Acquire.Source, []string{l.keys[0], l.keys[1], l.keys[3]}, late).Err()
		assert.True(t, redis.HasErrorPrefix(err, "LATE"), err)
	})
}

// A repeated charge ends though a key of a large limiter is lost. If it was made before, a lost configuration stays lost.
func TestSettle_RepeatedChargeMeetsLostKey(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		for lost, made := range []int{0, 0, 1, 1} {
			l, now := newRig(t, rdb, 1000), time.Now().UnixMilli()
			l.grant(append(grants(600, codec.LayoutD2, func(int) int64 { return now }), []redis.Z{row(now, other(2))}[:made]...)...)
			l.loses(l.keys[lost%2])
			answer, calls := l.until(SettleReservation, 6, member(3), 5, other(2), 0, 0, "60000", "", "1000 3600000 0 0")
			assert.EqualValues(t, -2, answer)
			assert.Less(t, calls, 20)
			l.eval(Acquire, member(1), 1, "1000 3600000 0 0")
			assert.Positive(t, rdb.ZScore(t.Context(), l.keys[3], other(2)).Val())
		}
	})
}

func TestPause_IsOnlyExtended(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		key := redistest.Name(t)
		require.NoError(t, rdb.HSet(t.Context(), "{"+key+"}", "rate", 1).Err())
		for _, c := range []struct{ ms, longer, most int }{
			{60_000, 1, 60_000}, {30_000, 0, 60_000}, {90_000, 1, 90_000}, {-1, 0, 90_000},
		} {
			got, err := rdb.Eval(t.Context(), Pause.Source, []string{key}, c.ms, 429).Result()
			require.NoError(t, err)
			assert.EqualValues(t, c.longer, got, c)
			assert.InDelta(t, c.most, rdb.PTTL(t.Context(), key).Val().Milliseconds(), 10_000)
			assert.Equal(t, "429", rdb.Get(t.Context(), key).Val())
		}
		require.NoError(t, rdb.Persist(t.Context(), key).Err())
		require.NoError(t, rdb.Eval(t.Context(), Pause.Source, []string{key}, 60_000, 503).Err())
		assert.Positive(t, rdb.PTTL(t.Context(), key).Val(), "none is without end")
		require.ErrorContains(t, rdb.Eval(t.Context(), Pause.Source, []string{"{" + key + "}"}, 60_000, 429).Err(), "WRONGTYPE")
	})
}

// Rows of the future, as a clock that goes back leaves them, are dated to now, 128 by each call.
func TestAvailable_DatesRowsOfTheFutureToNow(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		l := newRig(t, rdb, 1000)
		until := l.now() + hour
		l.grant(grants(300, codec.LayoutB, func(int) int64 { return until })...)
		answer, calls := l.until(Available, 0, "", "")
		assert.Equal(t, []any{int64(700), int64(1)}, answer)
		assert.Equal(t, 3, calls)
		assert.Zero(t, l.rdb.ZCount(t.Context(), l.keys[3], fmt.Sprint(until), "+inf").Val())
	})
}

// What an override that has ended would have gone back to counts if it is taken back, a default or not.
func TestUseDefault_OfAnOverrideThatHasEnded(t *testing.T) {
	t.Parallel()
	const fallback = "3 60000 0 90000 1700000000000000"
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		l := newRig(t, rdb, 3)
		l.loses(l.keys...)
		l.eval(Acquire, member(1), 1, fallback, "d")
		for _, want := range []string{fallback, "4 60000 0 0 0"} {
			l.eval(SetRate, 50, 30000, 0, 0, "1", "for 3600000 ", "")
			assert.Equal(t, int64(1), l.eval(UseDefault))
			fields := rdb.HGetAll(t.Context(), l.keys[0]).Val()
			assert.Equal(t, want, fields["default"])
			assert.True(t, strings.HasPrefix(want, fields["rate"]+" "+fields["interval"]+" "))
			assert.NotContains(t, fields, "override")
			assert.Equal(t, int64(0), l.eval(UseDefault), "again")
			l.eval(SetRate, 4, 60000, 0, 0, "1", 0, "")
		}
	})
}

// acquire_all names the damaged key by its number among all keys, and takes the
// default and the time to live of each limiter from its own configuration.
func TestAcquireAllTellsLimitersApart(t *testing.T) {
	t.Parallel()
	for text, damage := range map[string]func(l *rig) error{
		"CORRUPT 8 value":   func(l *rig) error { return l.rdb.Set(l.Context(), l.keys[7], "x", 0).Err() },
		"CORRUPT 10 member": func(l *rig) error { return l.rdb.ZAdd(l.Context(), l.keys[9], row(1, "x")).Err() },
	} {
		rdb, _ := redistest.Mini(t)
		l, second := newRig(t, rdb, 3), newRig(t, rdb, 3)
		l.config("type", 1)
		second.config("type", 1)
		l.keys = append(l.keys, second.keys...)
		require.NoError(t, rdb.PExpire(t.Context(), l.keys[5], time.Minute).Err())
		l.eval(AcquireAll, member(1), 1, "s", "", "", "", "")
		assert.LessOrEqual(t, rdb.PTTL(t.Context(), l.keys[7]).Val(), time.Minute)
		require.NoError(t, rdb.HSet(t.Context(), l.keys[5], "default", "3 3600000 1 0 1").Err())
		got := l.eval(AcquireAll, member(1), 1, "s", "", "", "", "d9 3600000 1 0 2")
		assert.Equal(t, []any{"default", int64(2), int64(3), hour, int64(1), int64(0)}, got)
		require.NoError(t, damage(l))
		err := rdb.Eval(t.Context(), AcquireAll.Source, l.keys, member(1), 1, "s", "", "", "", "").Err()
		assert.True(t, redis.HasErrorPrefix(err, text), err)
	}
}

func TestNamesOfClients(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		key := redistest.Name(t)
		note := func(client string, life int) {
			got, err := rdb.Eval(t.Context(), NoteClient.Source, []string{key}, client, life).Result()
			require.NoError(t, err)
			assert.EqualValues(t, 1, got)
		}
		past := float64(time.Now().Add(-time.Hour).UnixMilli())
		for i := range 300 {
			require.NoError(t, rdb.ZAdd(t.Context(), key, redis.Z{Score: past, Member: fmt.Sprint("old ", i)}).Err())
		}
		note("first", 3_600_000)
		assert.EqualValues(t, 300+1-256, rdb.ZCard(t.Context(), key).Val(), "so many are forgotten a call")
		note("second", 3_600_001)
		assert.Equal(t, []string{"first", "second"}, rdb.ZRange(t.Context(), key, 0, -1).Val())
		assert.InDelta(t, time.Hour, rdb.PTTL(t.Context(), key).Val(), float64(time.Minute))
	})
}

// What scripts answer of a limiter of 10 permits an hour of which nothing is in use.
func TestScripts_AnswerOfAnUnusedLimiter(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		for _, run := range []struct {
			script *Script
			keys   int
			args   []any
			want   any
		}{
			{GiveBack, 5, []any{member(3), 3, "", 1000, ""}, int64(0)},
			{Merge, 5, []any{10, member(5) + member(3) + member(2)}, []any{int64(10), int64(3600000)}},
			{Probe, 1, []any{"SET"}, int64(1)},
		} {
			k := redisson.KeysOf(redistest.Name(t), "id").List()[:run.keys]
			require.NoError(t, rdb.HSet(t.Context(), k[0], "rate", 10, "interval", 3600000, "type", 0).Err())
			got, err := rdb.Eval(t.Context(), run.script.Source, k, run.args...).Result()
			require.NoError(t, err, run.script.Name)
			assert.Equal(t, run.want, got, run.script.Name)
		}
		none := redisson.KeysOf("{"+redistest.Name(t)+"}", "id").List()
		assert.Equal(t, []any{int64(0)}, rdb.Eval(t.Context(), Merge.Source, none, 10, member(5)+member(3)+member(2)).Val())
	})
}
