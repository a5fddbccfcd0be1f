package keypart_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter/internal/keypart"
)

func TestGuard(t *testing.T) {
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
		assert.Equal(t, test.want, keypart.Guard(test.key, test.suffix))
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
		key, err := keypart.Join(test.parts, false, same)
		require.NoError(t, err)
		assert.Equal(t, test.want, key)
		key, err = keypart.Join(test.parts, true, same)
		require.NoError(t, err)
		assert.Equal(t, test.tagged, key)
	}
	failed := errors.New("failed")
	_, err := keypart.Join([]string{"a", "b"}, true, func(string) (string, error) { return "", failed })
	assert.Equal(t, failed, err)
}

// Guarded keys are as different as what they are made of, and none is another's
// second key.
func TestGuardedKeysStayApart(t *testing.T) {
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
			return keypart.Guard(prefix+joined, suffix)
		}
		one, other := parts.Draw(t, "one"), parts.Draw(t, "other")
		a, b := key(one), key(other)
		assert.Equal(t, assert.ObjectsAreEqual(one, other), a == b, "%q and %q", a, b)
		assert.NotEqual(t, a+suffix, b)
		assert.NotEqual(t, b+suffix, a)
	})
}
