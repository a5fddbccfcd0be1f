package keypart_test

import (
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

// same is the text of a part that is one.
func same(part string) (string, error) { return part, nil }

// Guarded keys are as different as what they are made of, and none is another's second key. A hash tag is one that servers heed.
func TestEscapedKeysStayApart(t *testing.T) {
	t.Parallel()
	letters := rapid.SampledFrom([]string{"a", "_time", "time", "_", "%", ":", "{", "", ":lock", "\xff", strings.Repeat("x", 130)})
	parts := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(letters, 0, 3).Draw(t, "letters"), "")
	}), 1, 3)
	rapid.Check(t, func(t *rapid.T) {
		prefix := rapid.SampledFrom([]string{"p:", "p", "p%", "_"}).Draw(t, "prefix")
		suffix := rapid.SampledFrom([]string{"_time", ":lock"}).Draw(t, "suffix")
		tagged := rapid.Bool().Draw(t, "tagged")
		key := func(parts []string) string {
			joined, err := keypart.Join(parts, tagged, same)
			require.NoError(t, err)
			if tagged {
				assert.Regexp(t, `^\{[^{}]+\}$`, joined)
			}
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
