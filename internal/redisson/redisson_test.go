package redisson_test

import (
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

func TestOther(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ prefix, name, want string }{
		{"p:", "p:{ann}:value", "p:{ann}"}, {"p:", "p:{ann}:value:0d1f5e4c-3ae5-4b5e-8f5a-7d3c1c2b9a10", "p:{ann}"},
		{"p:", "p:{ann}:valued:value", "p:{ann}:valued"}, {"p:", "p:ann:value:x", ""}, {"p:", "p:ann}:value:x", "p:ann"},
		{"p:", "p:ann}:permits:x", "p:ann"}, {"", "{{a}}:value", "{{a}}"}, {"", "a{:value", "a{"}, {"p:", "p:}:value:x", ""},
		{"{shop}:", "{shop}:a:value", "{shop}:a"}, {"{shop}:", "{shop}:value", ""}, {"", "ann:value:x", ""}, {"", "{ann}", "ann"},
		{"", "{ann", "ann:value:..."},
	} {
		assert.Equal(t, tt.want, redisson.Other(tt.prefix, tt.name), "%q of %q", tt.name, tt.prefix)
	}
}

// Clients may choose long keys, so a name is not copied for each of its bytes.
//
//nolint:paralleltest // others' allocations would count
func TestOther_CopiesNoLongName(t *testing.T) {
	for _, name := range []string{"{a}" + strings.Repeat("k", 1<<16), "{" + strings.Repeat("k", 1<<16) + "}", "a:value:" + strings.Repeat(":", 1<<16)} {
		assert.LessOrEqual(t, testing.AllocsPerRun(2, func() { redisson.Other("", name) }), 2.0, name[:9])
	}
}
