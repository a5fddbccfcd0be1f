package redisson_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

func TestKeysOfNamesKeysAsRedissonDoes(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"orders": {"orders", "{orders}:value", "{orders}:value:id", "{orders}:permits", "{orders}:permits:id"},
		"a{b}c":  {"a{b}c", "a{b}c:value", "a{b}c:value:id", "a{b}c:permits", "a{b}c:permits:id"},
		"{{a}}":  {"{{a}}", "{{a}}:value", "{{a}}:value:id", "{{a}}:permits", "{{a}}:permits:id"},
		"a{b":    {"a{b", "a{b:value", "a{b:value:id", "a{b:permits", "a{b:permits:id"},
		"a}":     {"a}", "{a}}:value", "{a}}:value:id", "{a}}:permits", "{a}}:permits:id"},
	} {
		assert.Equal(t, want, redisson.KeysOf(name, "id").List(), name)
	}
}

func TestIdentitiesAreAllDifferent(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 3 {
		ids := redisson.NewIdentities(redisson.NewestRules.Layout)
		for range 1000 {
			seen[string(ids.Next(nil, 1))] = true
		}
	}
	assert.Len(t, seen, 3000)
}

func TestOther(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ prefix, name, want string }{
		{"p:", "p:{ann}:value", "p:{ann}"},
		{"p:", "p:{ann}:value:0d1f5e4c-3ae5-4b5e-8f5a-7d3c1c2b9a10", "p:{ann}"},
		{"p:", "p:{ann}:valued:value", "p:{ann}:valued"},
		{"p:", "p:ann:value:x", ""},
		{"p:", "p:ann}:value:x", "p:ann"},
		{"p:", "p:}:value:x", ""},
		{"{shop}:", "{shop}:a:value", "{shop}:a"},
		{"{shop}:", "{shop}:value", ""},
		{"", "ann:value:x", ""},
		{"", "{ann}", "ann"},
		{"", "{ann", "ann:value:..."},
	} {
		assert.Equal(t, tt.want, redisson.Other(tt.prefix, tt.name), "%q of %q", tt.name, tt.prefix)
	}
}

// words make the names and ids that could share keys.
var words = []string{"a", "{", "}", ":", ":value", ":permits"}

// texts returns all texts of that many words at most.
func texts(most int) []string {
	all, last := []string{""}, []string{""}
	for range most {
		var next []string
		for _, text := range last {
			for _, word := range words {
				next = append(next, text+word)
			}
		}
		last = next
		all = append(all, next...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Of short names, those reported to share keys do, and no others.
func TestOtherOfShortNames(t *testing.T) {
	t.Parallel()
	ids := texts(2)[1:]
	for _, prefix := range []string{"", "a", "{", "{a}", "{a}:", "a:{"} {
		owners := map[string][]string{} // by key
		for _, key := range texts(4)[1:] {
			name := prefix + key
			all := map[string]bool{}
			for _, id := range ids {
				for _, k := range redisson.KeysOf(name, id).List() {
					all[k] = true
				}
			}
			for k := range all {
				owners[k] = append(owners[k], name)
			}
		}
		for key, names := range owners {
			names = slices.DeleteFunc(names, func(name string) bool { return redisson.Other(prefix, name) != "" })
			assert.LessOrEqual(t, len(names), 1, "%q is a key of %q", key, names)
		}
		for _, key := range texts(4)[1:] {
			name := prefix + key
			if other := redisson.Other(prefix, name); other != "" && !strings.HasSuffix(other, "...") {
				assert.True(t, share(name, other), "%q is left out for %q", name, other)
				assert.True(t, strings.HasPrefix(other, prefix) && other != prefix, "%q is left out for %q", name, other)
			}
		}
	}
}

// share reports whether two limiters share a key if their clients have the right ids.
func share(name, other string) bool {
	theirs := redisson.KeysOf(other, "")
	for _, key := range redisson.KeysOf(name, "id").List() {
		for _, its := range []string{theirs.Value, theirs.Permits} {
			id, ok := strings.CutPrefix(key, its+":")
			if key == its || ok && id != "" {
				return true
			}
		}
	}
	return false
}

// Clients may choose long keys, so a name is not copied for each of its bytes.
//
//nolint:paralleltest // others' allocations would count
func TestOther_CopiesNoLongName(t *testing.T) {
	for _, name := range []string{"{a}" + strings.Repeat("k", 1<<16), "{" + strings.Repeat("k", 1<<16) + "}", "a:value:" + strings.Repeat(":", 1<<16)} {
		assert.LessOrEqual(t, testing.AllocsPerRun(2, func() { redisson.Other("", name) }), 2.0, name[:9])
	}
}
