package redistest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestMonitorTellsWhatRan(t *testing.T) {
	t.Parallel()
	rdb := redistest.StartRedis(t).Client(t, nil)
	const odd = "two words, \"quoted\",\r\n and \x00\xff"
	var ran []redistest.Ran
	end := redistest.Monitor(t, rdb.Options().Addr, func(r redistest.Ran) { ran = append(ran, r) })
	calls := redistest.ScriptCalls(t, rdb.Options().Addr)
	require.NoError(t, rdb.Set(t.Context(), "key", odd, 0).Err())
	for range 2 {
		require.NoError(t, rdb.Eval(t.Context(), "redis.call('GET', KEYS[1]) return redis.call('DEL', KEYS[1])", []string{"key"}).Err())
	}
	end()
	script := [][]string{{"get", "key"}, {"del", "key"}}
	assert.Equal(t, [][][]string{script, script, nil}, calls())

	var args [][]string
	for _, r := range ran {
		if r.Args[0] == "set" || r.InScript {
			args = append(args, r.Args)
		}
		assert.WithinDuration(t, rdb.Time(t.Context()).Val(), r.At, 10*time.Second)
	}
	assert.Equal(t, [][]string{{"set", "key", odd}, {"get", "key"}, {"del", "key"}, {"get", "key"}, {"del", "key"}}, args)
}
