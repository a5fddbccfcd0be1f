package lua

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// ofClients are the scripts that have nothing to do with limiters.
var ofClients = []*Script{Clients, NoteClient}

func TestWhatIsNotedOfClients(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		key := redistest.Name(t)
		eval := func(script *Script, args ...any) any {
			got, err := rdb.Eval(t.Context(), script.Source, []string{key}, args...).Result()
			require.NoError(t, err)
			return got
		}
		assert.Equal(t, []any{"end", ""}, eval(Clients, ""))
		past := float64(time.Now().Add(-time.Hour).UnixMilli())
		for i := range 300 {
			require.NoError(t, rdb.ZAdd(t.Context(), key, redis.Z{Score: past, Member: fmt.Sprint("old ", i)}).Err())
		}
		assert.Equal(t, []any{"end", ""}, eval(Clients, ""), "they are no longer known")
		assert.EqualValues(t, 1, eval(NoteClient, "first", 3_600_000))
		assert.EqualValues(t, 300+1-256, rdb.ZCard(t.Context(), key).Val(), "so many are forgotten a call")
		assert.EqualValues(t, 1, eval(NoteClient, "second", 3_600_001))
		assert.EqualValues(t, 2, rdb.ZCard(t.Context(), key).Val())
		assert.Equal(t, []any{"end", "", "first", "second"}, eval(Clients, ""))
		assert.InDelta(t, time.Hour, rdb.PTTL(t.Context(), key).Val(), float64(time.Minute))

		seen := map[any]int{}
		for i := range 1200 {
			eval(NoteClient, fmt.Sprint("client ", i), 3_600_000+i)
		}
		token, pages := any(""), 0
		for more := true; more; pages++ {
			page, _ := eval(Clients, token).([]any)
			require.LessOrEqual(t, len(page), 2+512)
			more, token = page[0] == "again", page[1]
			for _, one := range page[2:] {
				seen[one]++
			}
			eval(NoteClient, "first", 3_700_000) // others take its place
			eval(NoteClient, "client 600", 3_700_000)
		}
		assert.Equal(t, 3, pages)
		assert.True(t, len(seen) == 1202, "%d are told", len(seen)) //nolint:testifylint // Len would print them all

		require.NoError(t, rdb.Del(t.Context(), key).Err())
		at := float64(time.Now().Add(time.Hour).UnixMilli())
		for i := range 600 {
			require.NoError(t, rdb.ZAdd(t.Context(), key, redis.Z{Score: at, Member: fmt.Sprint("tied ", i)}).Err())
		}
		token = ""
		for pages = 0; token != "" || pages == 0; pages++ {
			page, _ := eval(Clients, token).([]any)
			token = page[1]
		}
		assert.Equal(t, 3, pages, "those that share a millisecond end too")
		require.NoError(t, rdb.Del(t.Context(), key).Err())
	})
}
