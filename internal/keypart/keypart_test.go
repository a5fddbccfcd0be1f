package keypart_test

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter/internal/keypart"
)

func TestEscapeSuffix(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ key, suffix, want string }{
		{"p:ann", "_time", "p:ann"},
		{"p:ann_time", "_time", "p:ann_time%"},
		{"p:ann_time_time", "_time", "p:ann_time_time%"},
		{"p:_time_", "_time", "p:_time_"},
		{"p:{ann_time}", "_time", "p:{ann_time}"},
		{"_time", "_time", "_time%"},
		{"p:a:lock", ":lock", "p:a:lock%"},
		{"p:ann", "", "p:ann"},
		{"", "_time", ""},
	} {
		assert.Equal(t, test.want, keypart.EscapeSuffix(test.key, test.suffix))
	}
}

// same is the text of a part that is one.
func same(part string) (string, error) { return part, nil }

func TestJoin(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		parts        []string
		want, tagged string
	}{
		{[]string{"ann", "{"}, "ann:%7B", "{ann:%7B}"},
		{[]string{"a:b"}, "a%3Ab", "{a%3Ab}"},
		{[]string{"", ""}, ":", "{:}"},
		{[]string{""}, "", "{%}"},
	} {
		for tagged, want := range map[bool]string{false: test.want, true: test.tagged} {
			key, err := keypart.Join(test.parts, tagged, same)
			require.NoError(t, err)
			assert.Equal(t, want, key)
		}
	}
	failed := errors.New("failed")
	_, err := keypart.Join([]string{"a", "b"}, true, func(string) (string, error) { return "", failed })
	assert.Equal(t, failed, err)
}

// Guarded keys are as different as what they are made of, and none is another's second key.
func TestEscapedKeysStayApart(t *testing.T) {
	t.Parallel()
	letters := rapid.SampledFrom([]string{"a", "_time", "time", "_", "%", ":", "{", "", ":lock", "\xff", strings.Repeat("x", 130)})
	parts := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(letters, 0, 3).Draw(t, "letters"), "")
	}), 1, 3)
	rapid.Check(t, func(t *rapid.T) {
		prefix := rapid.SampledFrom([]string{"p:", "p", "p%", "_"}).Draw(t, "prefix")
		suffix := rapid.SampledFrom([]string{"_time", ":lock"}).Draw(t, "suffix")
		key := func(parts []string) string {
			joined, err := keypart.Join(parts, false, same)
			require.NoError(t, err)
			return keypart.EscapeSuffix(prefix+joined, suffix)
		}
		one, other := parts.Draw(t, "one"), parts.Draw(t, "other")
		a, b := key(one), key(other)
		assert.Equal(t, assert.ObjectsAreEqual(one, other), a == b, "%q and %q", a, b)
		assert.NotEqual(t, a+suffix, b)
		assert.NotEqual(t, b+suffix, a)
	})
}

// An escaped part can be unescaped, so different parts stay different.
func FuzzEscape(f *testing.F) {
	for _, part := range []string{
		"", "ann", "a:b", "{x}", "100%", "%3A", "é ü", "\xff\xfe", "a\u202eb", "%sha256-", "\x00\r\n",
		strings.Repeat("x", 128), strings.Repeat("x", 129), strings.Repeat(":", 43), strings.Repeat("é:", 60),
	} {
		f.Add(part)
	}
	f.Fuzz(func(t *testing.T, part string) {
		got := keypart.Escape(part)
		if len(got) > 128 || strings.ContainsAny(got, ":{} ") || !utf8.ValidString(got) ||
			strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q is written as %q", part, got)
		}
		if _, hash, hashed := strings.Cut(got, "%sha256-"); hashed {
			if len(hash) != 64 || len(part) <= 128/3 {
				t.Errorf("%q is written as %q", part, got)
			}
			return
		}
		if back, err := url.PathUnescape(got); err != nil || back != part {
			t.Errorf("%q is written as %q, which is %q: %v", part, got, back, err)
		}
	})
}

// Parts stay apart, and a tag is one that servers heed.
func FuzzJoin(f *testing.F) {
	f.Add("ann", "/hello", true, "_time")
	f.Add("", "", false, ":lock")
	f.Add("a:b", "{c}", true, "")
	f.Add("%", "ann_time", false, "_time")
	f.Fuzz(func(t *testing.T, one, other string, tagged bool, suffix string) {
		joined, err := keypart.Join([]string{one, other}, tagged, same)
		if err != nil {
			t.Error(err)
		}
		inner := joined
		if tagged {
			inner = strings.TrimSuffix(strings.TrimPrefix(joined, "{"), "}")
		}
		if a, b, _ := strings.Cut(inner, ":"); a != keypart.Escape(one) || b != keypart.Escape(other) || tagged != (inner != joined) {
			t.Errorf("%q and %q are %q", one, other, joined)
		}
		if alone, err := keypart.Join([]string{one}, true, same); err != nil || len(alone) < 3 {
			t.Errorf("%q alone is %q, %v", one, alone, err)
		}
		if escaped := keypart.EscapeSuffix(joined, suffix); suffix != "" && suffix != "%" && strings.HasSuffix(escaped, suffix) && !strings.HasSuffix(suffix, "%") {
			t.Errorf("%q escaped from %q is %q", joined, suffix, escaped)
		}
	})
}
