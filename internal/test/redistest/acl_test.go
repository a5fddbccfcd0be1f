package redistest_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// What the operations need is tested where they are; here, that nothing more is
// given.
func TestLeastCommandsAreThoseOfTheScripts(t *testing.T) {
	t.Parallel()
	called := regexp.MustCompile(`redis\.call\('([A-Z]+)'`)
	// expire.lua is told which of the two to call; slidinglog.Limiter.Thresholds
	// needs no script.
	want := map[string]bool{"eval": true, "evalsha": true, "pexpire": true, "pexpireat": true, "hscan": true}
	for _, script := range lua.All() {
		for _, match := range called.FindAllStringSubmatch(script.Source, -1) {
			want[strings.ToLower(match[1])] = true
		}
	}
	got := map[string]bool{}
	for rule := range strings.FieldsSeq(redistest.LeastCommands) {
		got[strings.TrimPrefix(rule, "+")] = true
	}
	assert.Equal(t, want, got)
}

func TestKeysOf(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "~orders ~{orders}:*", redistest.KeysOf("orders"))
	assert.Equal(t, "~a{b}c ~a{b}c:*", redistest.KeysOf("a{b}c"))
	assert.Equal(t, "~shop:* ~{shop:*", redistest.KeysWithPrefix("shop:"))
}

func TestAddUser(t *testing.T) {
	t.Parallel()
	s := redistest.StartRedis(t)
	rdb := redistest.AddUser(t, s, nil, "+get +set", "~key")
	require.NoError(t, rdb.Set(t.Context(), "key", "value", 0).Err())
	require.ErrorContains(t, rdb.Set(t.Context(), "other", "value", 0).Err(), "NOPERM")
	require.ErrorContains(t, rdb.Del(t.Context(), "key").Err(), "NOPERM")
	t.Run("two users", func(t *testing.T) {
		other := redistest.AddUser(t, s, &redis.Options{Protocol: 2}, "+@all", "~*")
		require.NoError(t, other.Del(t.Context(), "key").Err())
	})
	users, err := s.Client(t, nil).Do(t.Context(), "ACL", "USERS").StringSlice()
	require.NoError(t, err)
	assert.Len(t, users, 2, "the default user and one more")
}
