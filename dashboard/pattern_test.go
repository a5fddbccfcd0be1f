package dashboard

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestPatterns(t *testing.T) {
	t.Parallel()
	for pattern, names := range map[string]struct{ match, other []string }{
		"":       {[]string{"any"}, nil},
		"*":      {[]string{"any"}, nil},
		"api:*":  {[]string{"api:", "api:\n"}, []string{"api", "xapi:a", "API:a", "\napi:"}},
		"*:a":    {[]string{"x:a:a"}, []string{"x:a:b"}},
		"a?c":    {[]string{"abc"}, []string{"ac"}},
		"[ab]x":  {[]string{"bx"}, nil},
		"[^ab]x": {nil, []string{"bx"}},
		"[a-c]":  {[]string{"b"}, []string{"d"}},
		"[c-a]":  {[]string{"b"}, nil},
		`\*`:     {[]string{"*"}, []string{"a"}},
		`[\]]`:   {[]string{"]"}, nil},
		"[a":     {[]string{"a"}, nil},
		"a*b*c":  {[]string{"a.b.b.c"}, []string{"a.c.b"}},
		`a\`:     {[]string{`a\`}, nil},
		"*\x00*": {[]string{"a\x00\nb"}, nil},
	} {
		for _, name := range append(names.match, names.other...) {
			assert.Equal(t, slices.Contains(names.match, name), matches(pattern, name), "%q %q", pattern, name)
		}
	}
}

// A pattern must not match what Redis' own does not: the list goes by that.
func TestPatternsAreRedis(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartRedis(t).Client(t, nil)
	text := func(letters string, most int) string {
		all := make([]byte, 1+rand.IntN(most))
		for i := range all {
			all[i] = letters[rand.IntN(len(letters))]
		}
		return string(all)
	}
	for range 200 {
		require.NoError(t, rdb.Set(t.Context(), text("abc-*]\\\x00", 5), 1, 0).Err())
	}
	names, err := rdb.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	for range 3000 {
		pattern := text(`abc**??[[]]^-\`, 7)
		want, err := rdb.Keys(t.Context(), pattern).Result()
		require.NoError(t, err)
		got := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !matches(pattern, name) })
		require.ElementsMatch(t, want, got, "%q", pattern)
	}
}
