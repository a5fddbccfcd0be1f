package dashboard

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestPatterns(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern, name string
		want          bool
	}{
		{"", "any", true}, {"*", "any", true}, {"api:*", "api:", true}, {"api:*", "api", false}, {"api:*", "xapi:a", false}, {"api:*", "API:a", false},
		{"*:a", "x:a:a", true}, {"*:a", "x:a:b", false}, {"a?c", "abc", true}, {"a?c", "ac", false}, {"[ab]x", "bx", true}, {"[^ab]x", "bx", false},
		{"[a-c]", "b", true}, {"[c-a]", "b", true}, {"[a-c]", "d", false}, {`\*`, "*", true}, {`\*`, "a", false}, {`[\]]`, "]", true}, {"[a", "a", true},
		{"a*b*c", "a.b.b.c", true}, {"a*b*c", "a.c.b", false}, {`a\`, `a\`, true}, {"*\x00*", "a\x00\nb", true}, {"api:*", "api:\n", true}, {"api:*", "\napi:", false},
	} {
		assert.Equal(t, tt.want, matches(tt.pattern, tt.name), "%q %q", tt.pattern, tt.name)
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
		var want, got []string
		want, err := rdb.Keys(t.Context(), pattern).Result()
		require.NoError(t, err)
		for _, name := range names {
			if matches(pattern, name) {
				got = append(got, name)
			}
		}
		require.ElementsMatch(t, want, got, "%q", pattern)
	}
}
