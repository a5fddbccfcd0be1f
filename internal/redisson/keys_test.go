package redisson_test

import (
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
