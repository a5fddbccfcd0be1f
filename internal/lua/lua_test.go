package lua

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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

// ofSeveral reports whether a script takes the keys of any number of limiters.
func ofSeveral(script *Script) bool { return script == AcquireMany }

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
