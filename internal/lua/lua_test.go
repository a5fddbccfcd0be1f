package lua

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	gopher "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"

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
		"no includes":       {map[string]string{"a.lua": "return 1\n"}, "return 1\n", nil},
		"no newline at end": {map[string]string{"a.lua": "return 1"}, "return 1", nil},
		"in its place":      {map[string]string{"a.lua": "one\n--- @include \"b\"\nthree\n", "include/b.lua": "two\n"}, "one\ntwo\nthree\n", nil},
		"once": {
			map[string]string{"a.lua": "--- @include \"b\"\none\n--- @include \"b\"\ntwo\n", "include/b.lua": "b\n"}, "b\none\ntwo\n", nil,
		},
		"nested, before what asks for them": {
			map[string]string{
				"a.lua": "--- @include \"b\"\n--- @include \"c\"\n--- @include \"d\"\na\n", "include/b.lua": "--- @include \"c\"\nb\n",
				"include/c.lua": "c\n", "include/d.lua": "--- @include \"b\"\n--- @include \"c\"\nd\n",
			},
			"c\nb\nd\na\n", nil,
		},
		"several in a line": {
			map[string]string{"a.lua": "--- @include \"b\" \"c\"\n--- @include \"c\" \"d\"\na\n", "include/b.lua": "b\n", "include/c.lua": "c\n", "include/d.lua": "d\n"},
			"b\nc\nd\na\n", nil,
		},
		"in a circle": {
			map[string]string{"a.lua": "--- @include \"b\"\na\n", "include/b.lua": "--- @include \"c\"\nb\n", "include/c.lua": "--- @include \"b\"\nc\n"},
			"c\nb\na\n", nil,
		},
		"comments that only look like it": {
			map[string]string{"a.lua": "-- @include \"b\"\n--- @included\n --- @include \"b\"\n"},
			"-- @include \"b\"\n--- @included\n --- @include \"b\"\n", nil,
		},
		"with a carriage return": {map[string]string{"a.lua": "--- @include \"b\"\r\na\n", "include/b.lua": "b\n"}, "b\na\n", nil},
		"no such script":         {nil, "", []string{"script a", "a.lua"}},
		"no such include":        {map[string]string{"a.lua": "\n--- @include \"b\"\n"}, "", []string{"a.lua:2", "include/b.lua"}},
		"no such include of an include": {
			map[string]string{"a.lua": "--- @include \"b\"\n", "include/b.lua": "\n\n--- @include \"c\"\n"}, "",
			[]string{"a.lua:1", "include/b.lua:3", "include/c.lua"},
		},
		"no quotes":      {map[string]string{"a.lua": "--- @include b\n", "include/b.lua": ""}, "", []string{"a.lua:1", `@include "name"`}},
		"one quote":      {map[string]string{"a.lua": "--- @include \"b\n", "include/b.lua": ""}, "", []string{"a.lua:1"}},
		"quoted twice":   {map[string]string{"a.lua": "--- @include \"\"b\"\"\n", "include/b.lua": ""}, "", []string{"a.lua:1"}},
		"more behind it": {map[string]string{"a.lua": "--- @include \"b\" c\n", "include/b.lua": ""}, "", []string{"a.lua:1"}},
		"no name":        {map[string]string{"a.lua": "--- @include \"\"\n"}, "", []string{"a.lua:1"}},
		"nothing":        {map[string]string{"a.lua": "--- @include \n"}, "", []string{"a.lua:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script, err := load(filesOf(tc.files), "a")
			if tc.fails != nil {
				require.Error(t, err)
				for _, text := range tc.fails {
					assert.ErrorContains(t, err, text)
				}
				return
			}
			require.NoError(t, err)
			assert.Equal(t, "a", script.Name)
			assert.Equal(t, tc.want, script.Source)
			assert.Regexp(t, "^[0-9a-f]{40}$", script.SHA)
		})
	}
}

func filesOf(texts map[string]string) fs.FS {
	files := fstest.MapFS{}
	for name, text := range texts {
		files[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return files
}

func TestAllNamesEachFile(t *testing.T) {
	t.Parallel()
	paths, err := fs.Glob(top.Files, "*.lua")
	require.NoError(t, err)
	var names []string
	for _, script := range All() {
		names = append(names, script.Name+".lua")
	}
	assert.ElementsMatch(t, paths, names)
	slices.Sort(paths)
	assert.Equal(t, paths, names, "in their order")
}

func TestEachIncludeIsUsed(t *testing.T) {
	t.Parallel()
	paths, err := fs.Glob(top.Files, "include/*.lua")
	require.NoError(t, err)
	for _, path := range paths {
		text, err := fs.ReadFile(top.Files, path)
		require.NoError(t, err)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		last := strings.Join(lines[len(lines)-2:], "\n")
		assert.True(t, slices.ContainsFunc(All(), func(s *Script) bool { return strings.Contains(s.Source, last) }), path)
	}
}

// ofSeveral reports whether a script takes the keys of any number of limiters.
func ofSeveral(script *Script) bool { return script == AcquireMany }

// others are the scripts of limiters that are none of Redisson's.
var others = []*Script{FixedWindow, FixedWindowSettle, SlidingLog, SlidingLogGiveBack, TokenBucket, TokenBucketGiveBack}

func TestHeads(t *testing.T) {
	t.Parallel()
	for _, script := range All() {
		head, _, _ := strings.Cut(script.Source, "\n\n")
		assert.Regexp(t, `^-- [A-Z][^\n]+[.,:;]?\n`, head, script.Name)
		switch {
		case ofSeveral(script):
			assert.Regexp(t, `(?m)^-- KEYS, for each limiter\n--   config  value  `, head, script.Name)
		case slices.Contains(others, script):
			assert.Regexp(t, `(?m)^-- KEYS\n--   1 (count|log|thresholds|tokens)\b`, head, script.Name)
		case slices.Contains(ofClients, script):
			assert.Regexp(t, `(?m)^-- KEYS\n--   1 (names of clients$|the pause: )`, head, script.Name)
		case script == Probe, script == Command, script == Delete:
			assert.Regexp(t, `(?m)^-- KEYS\n--   1 (a limiter's|any) key\b`, head, script.Name)
		default:
			assert.Regexp(t, `(?m)^-- KEYS\n--   1 config  2 value  3 client's value  4 permits  5 client's permits$`, head, script.Name)
		}
		assert.Regexp(t, `(?m)^-- ARGV(,.*)?$`, head, script.Name)
		assert.Regexp(t, `(?m)^-- Returns\n--   \S`, head, script.Name)
		for line := range strings.Lines(head) {
			assert.True(t, strings.HasPrefix(line, "--"), "%s: %q", script.Name, line)
		}
		used := regexp.MustCompile(`ARGV\[(\d+)\]`)
		for _, match := range used.FindAllStringSubmatch(script.Source, -1) {
			_, told, _ := strings.Cut(head, "-- ARGV")
			assert.Regexp(t, `[ \n]`+match[1]+`[ ,]`, told, "%s: the head describes ARGV[%s]", script.Name, match[1])
		}
	}
}

// The syntax is Lua 5.1's. Redis refuses to make globals, and miniredis lacks bit, struct and cmsgpack.
// tostring and .. turn large numbers to exponents; what assert and error say, and what pcall catches, reads
// differently on every server: a script of several limiters may only tell that it caught something.
func TestGlobals(t *testing.T) {
	t.Parallel()
	known := []string{"redis", "KEYS", "ARGV", "string", "math", "tonumber", "ipairs", "unpack", "table"}
	for _, script := range All() {
		chunk, err := parse.Parse(strings.NewReader(script.Source), script.Name)
		require.NoError(t, err)
		assert.Less(t, len(script.Source), 64<<10, script.Name)
		proto, err := gopher.Compile(chunk, script.Name)
		require.NoError(t, err)
		read, written := globals(proto)
		assert.Equal(t, slices.Contains(read, "unpack"), slices.Contains(read, "table"), "%s: Lua 5.4 has unpack in table only", script.Name)
		assert.Empty(t, written, "%s makes globals", script.Name)
		if ofSeveral(script) {
			assert.Subset(t, append(known, "pcall"), read, script.Name)
		} else {
			assert.Subset(t, known, read, script.Name)
		}
	}
}

// globals returns the globals that a function and those within it name.
func globals(proto *gopher.FunctionProto) (read, written []string) {
	for _, instruction := range proto.Code {
		switch int(instruction >> 26) {
		case gopher.OP_GETGLOBAL:
			read = append(read, proto.Constants[instruction&0x3ffff].String())
		case gopher.OP_SETGLOBAL:
			written = append(written, proto.Constants[instruction&0x3ffff].String())
		}
	}
	for _, inner := range proto.FunctionPrototypes {
		r, w := globals(inner)
		read, written = append(read, r...), append(written, w...)
	}
	return read, written
}

func TestScripts_UseNothingThatSomeServerLacks(t *testing.T) {
	t.Parallel()
	for _, script := range All() {
		assert.False(t, strings.HasPrefix(script.Source, "#!"), script.Name)
		text := regexp.MustCompile(`--[^\n]*`).ReplaceAllString(script.Source, "")
		for what, pattern := range map[string]string{
			"a word of a later Lua":   `\bgoto\b|::|//|<<|>>`,
			"an error without a code": `error_reply\('[^A-Z]`,
			"random numbers":          `\bmath\.random`,
		} {
			assert.Empty(t, regexp.MustCompile(pattern).FindString(text), "%s: %s", script.Name, what)
		}
	}
}

// Keys come from KEYS, by a literal number among those of a limiter: a cluster finds
// the node by them. No script assigns to KEYS.
func TestKeysAreLiteral(t *testing.T) {
	t.Parallel()
	keyed := regexp.MustCompile(`\bcall\('([A-Z]+)'(, [^,)]+)?`)
	allowed := regexp.MustCompile(`^, (KEYS\[(10|[1-9]|(\w+\.)*at \+ 1)\]|((l|config)\.)?(value|permits)_key|key|config_key|from|to)$`)
	for _, script := range All() {
		uncommented := regexp.MustCompile(`--[^\n]*`).ReplaceAllString(script.Source, "")
		for _, match := range regexp.MustCompile(`KEYS\[([^\]]*)\]`).FindAllStringSubmatch(uncommented, -1) {
			if ofSeveral(script) {
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

// run is a call of a script, and its answer.
type run struct {
	script *Script
	keys   int
	args   []any
	want   any    // on a limiter of 10 permits an hour
	unset  any    // if there is none
	fails  string // the code of the error if there is none
}

func TestEachScriptRuns(t *testing.T) {
	t.Parallel()
	noRate := "NOTINIT"
	acquire := []any{member(3), "3", "", "", "", "", 0, "3", 1}
	runs := []run{
		{Acquire, 5, acquire, []any{int64(10), int64(10), int64(3), int64(3600000), int64(3600000), int64(0), int64(0)}, nil, noRate},
		{AcquireAll, 5, []any{member(3), 3, "", "", "", ""}, int64(3), nil, noRate},
		{AcquireMany, 3, []any{1, member(3), "3"}, []any{int64(0)}, []any{int64(0)}, ""},
		{Available, 5, []any{""}, []any{int64(10), int64(0)}, nil, noRate},
		{Command, 1, []any{"PTTL"}, int64(-1), int64(-2), ""},
		{Command, 1, []any{"TYPE"}, "hash", "none", ""},
		{Config, 5, nil, []any{int64(10), int64(3600000), int64(0), int64(0)}, nil, noRate},
		{Delete, 5, nil, int64(1), int64(0), ""},
		{Delete, 1, nil, int64(1), int64(0), ""},
		{Expire, 5, []any{"PEXPIRE", 1000}, int64(1), int64(0), ""},
		{Expire, 5, []any{"PERSIST", 0}, int64(0), int64(0), ""},
		{Expire, 5, []any{"PEXPIREAT", int64(4102444800000)}, int64(1), int64(0), ""},
		{GiveBack, 5, []any{member(3), 3, "", 1000, ""}, int64(0), int64(0), ""},
		{InUse, 5, []any{""}, []any{"end", ""}, nil, noRate},
		{InUse, 5, []any{"", "iiiiiiii", 0, ""}, []any{"end", ""}, nil, noRate},
		{Merge, 5, []any{10, member(5) + member(3) + member(2)}, []any{int64(10), int64(3600000)}, []any{int64(0)}, ""},
		{Migrate, 5, []any{member(0), ""}, int64(0), nil, noRate},
		{Peek, 5, []any{3, "", "", ""}, []any{int64(10), int64(10), int64(3), int64(3600000), int64(3600000), int64(0), int64(0)}, nil, noRate},
		{Probe, 1, []any{"SET"}, int64(1), int64(1), ""},
		{Release, 5, []any{3, "iiiiiiii", "", "", "call"}, int64(3), nil, noRate},
		{Rename, 10, nil, int64(1), nil, noRate},
		{RenewReservation, 5, []any{member(3), ""}, int64(0), int64(0), ""},
		{Reset, 5, []any{""}, int64(0), nil, noRate},
		{Reset, 5, []any{"3 60000 0 0"}, int64(0), int64(0), ""},
		{SetRate, 5, []any{20, 1000, 0, 0, 0, 0, ""}, int64(1), int64(1), ""},
		{SetRate, 5, []any{20, 1000, 1, 2000, 1, 1, ""}, int64(1), int64(0), ""},
		{SettleReservation, 5, []any{member(3), 5, other(2), 1000, 0, "", "", ""}, int64(-2), int64(0), ""},
		{SettleReservation, 5, []any{member(3), 5, other(2), 1000, 0, "3602000", "", ""}, []any{"unknown"}, int64(0), ""},
		{SetRate, 5, []any{20, 1000, 0, 0, 1, "new", ""}, int64(0), int64(1), ""},
		{UseDefault, 5, nil, int64(1), nil, noRate},
	}
	for _, script := range All() {
		tested := slices.ContainsFunc(runs, func(r run) bool { return r.script == script })
		assert.Equal(t, !slices.Contains(others, script) && !slices.Contains(ofClients, script), tested, script.Name)
	}
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		for _, run := range runs {
			name := redistest.Name(t)
			all := append(redisson.KeysOf(name, "id").List(), redisson.KeysOf(name+"2", "id").List()...)[:run.keys]
			got, err := rdb.Eval(t.Context(), run.script.Source, all, run.args...).Result()
			if run.fails == "" {
				require.NoError(t, err, run.script.Name)
				assert.Equal(t, run.unset, got, run.script.Name)
			} else {
				require.True(t, redis.HasErrorPrefix(err, run.fails), "%s: %v", run.script.Name, err)
			}

			require.NoError(t, rdb.Del(t.Context(), name).Err())
			require.NoError(t, rdb.HSet(t.Context(), name, "rate", 10, "interval", 3600000, "type", 0).Err())
			got, err = rdb.EvalSha(t.Context(), run.script.SHA, all, run.args...).Result()
			require.NoError(t, err, run.script.Name)
			assert.Equal(t, run.want, got, run.script.Name)
			require.NoError(t, rdb.Del(t.Context(), append(all, name+"2")...).Err())
		}
	})
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

func numberRows() (rows []includeRow) {
	const integer = "local n = integer(ARGV[1]) return n and string.format('%.0f', n) or 'nil'"
	for _, text := range []string{
		"0", "1", "9", "10", "-1", "-10", "100000000000000", "999999999999999", "1000000000000000",
		"9007199254740990", "9007199254740991", "-9007199254740991",
	} {
		rows = append(rows, includeRow{"integer", integer, []any{text}, text})
	}
	for _, text := range []string{
		"", " ", "-", "-0", "+1", "00", "01", "-01", "1 ", " 1", "1\n", "1.0", "1.", ".5", "1e3", "1E3", "0x10", "0x", "nan", "inf",
		"-inf", "abc", "1a", "1_000", "1,000", "--1", "1-", "٣", "9007199254740992", "-9007199254740992", "9223372036854775807",
		"99999999999999999999999", "1\x00", "\x001",
	} {
		rows = append(rows, includeRow{"integer", integer, []any{text}, "nil"})
	}
	rows = append(rows,
		includeRow{"integer", "return integer(nil) == nil and 1 or 0", nil, "1"},
		includeRow{"integer", "return integer(redis.call('GET', 'none')) == nil and 1 or 0", nil, "1"})
	for _, text := range []string{"0", "7", "-7", "99999999999999", "100000000000000", "9007199254740991", "-9007199254740991"} {
		rows = append(rows, includeRow{"digits", "return digits(tonumber(ARGV[1]))", []any{text}, text})
	}
	const withPermits = "return with_permits(ARGV[1], tonumber(ARGV[2]))"
	for permits, want := range map[uint32]string{
		0: "\x00\x00\x00\x00", 1: "\x01\x00\x00\x00", 255: "\xff\x00\x00\x00", 256: "\x00\x01\x00\x00", 65536: "\x00\x00\x01\x00",
		0x01020304: "\x04\x03\x02\x01", 1<<32 - 1: "\xff\xff\xff\xff",
	} {
		rows = append(rows, includeRow{"member", withPermits, []any{member(7), permits}, member(0)[:17] + want})
	}
	return rows
}

func memberRows() (rows []includeRow) {
	const permitsOf = "local n = permits_of(ARGV[1]) return n and string.format('%.0f', n) or 'nil'"
	const id8, id16 = "01234567", "0123456789abcdef"
	for _, head := range []string{
		"\x00\x00\x80\x3f", "\x03abc", "\x08\x00\x00\x00\x00\x00\x00\x00" + id8, // B, one that begins like D, C
		"\x08" + id8, "\x10" + id16, "\x00", "\xff" + strings.Repeat("x", 255), // D1, D2, without an id, with the longest
	} {
		for _, n := range []uint32{0, 1, 255, 256, 65535, 65536, 16777216, 1<<31 - 1, 1 << 31, 1<<32 - 1} {
			text := string(binary.LittleEndian.AppendUint32([]byte(head), n))
			rows = append(rows, includeRow{"member", permitsOf, []any{text}, fmt.Sprint(n)})
		}
	}
	for _, text := range []string{
		"", "a", "1234", "12345", "1234567", "123456789", "\x07" + id8 + "\x01\x00\x00\x00", "\x09" + id8 + "\x01\x00\x00\x00",
		"\x10" + id16 + "\x01\x00\x00", "\x10" + id16 + "\x01\x00\x00\x00\x00", "\x09\x00\x00\x00\x00\x00\x00\x00" + id8 + "\x01\x00\x00\x00",
		"\x08\x00\x00\x00\x00\x00\x00\x01" + id8 + "\x01\x00\x00\x00", "3f2b8f4e-8c1b-4c6e-9f4e-3b1d6a0c9f11", strings.Repeat("x", 10_000),
	} {
		rows = append(rows, includeRow{"member", permitsOf, []any{text}, "nil"})
	}
	const sumOf = "local sum, problem = sum_of(ARGV, 4) return problem or sum"
	const corrupt = "return corrupt(2, 'value', 'is no integer: ' .. ARGV[1])"
	return append(rows,
		includeRow{"member", sumOf, []any{member(3), member(4), "\x08\x00\x00\x00\x00\x00\x00\x00" + id8 + "\xff\x00\x00\x00"}, "262"},
		includeRow{"member", sumOf, nil, "0"},
		includeRow{"member", sumOf, []any{member(3), "\x00text\n\xff" + strings.Repeat("x", 100)},
			"CORRUPT 4 member has no known layout: 00746578740aff" + strings.Repeat("78", 18)},
		// One line of ASCII, and not a long one.
		includeRow{"corrupt", corrupt, []any{"a\r\nb\x00\xffc%d"}, "CORRUPT 2 value is no integer: a??b??c%d"},
		includeRow{"corrupt", corrupt, []any{strings.Repeat("x", 10_000)}, "CORRUPT 2 value is no integer: " + strings.Repeat("x", 65)})
}

func TestIncludes(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		for _, r := range append(numberRows(), memberRows()...) {
			got, err := rdb.Eval(t.Context(), include(t, r.include, r.body), nil, r.args...).Result()
			if err != nil {
				got = err
			}
			assert.Equal(t, r.want, fmt.Sprint(got), "%s: %.60q", r.body, r.args)
		}
	})
}

func TestClock(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		script := include(t, "clock", "return clock()")
		before := rdb.Time(t.Context()).Val().UnixMilli()
		now, err := rdb.Eval(t.Context(), script, nil).Int64()
		require.NoError(t, err)
		assert.GreaterOrEqual(t, now, before)
		assert.LessOrEqual(t, now, rdb.Time(t.Context()).Val().UnixMilli())
	})
	for micros, want := range map[string]string{
		"0": "1700000000000", "999": "1700000000000", "1000": "1700000000001", "99999": "1700000000099", "999999": "1700000000999",
	} {
		t.Run(micros, func(t *testing.T) {
			t.Parallel()
			rdb, _ := redistest.Mini(t)
			script := "local redis = {call = function() return {'1700000000', ARGV[1]} end}\n" + include(t, "clock", "return clock()")
			got, err := rdb.Eval(t.Context(), script, nil, micros).Text()
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
}
