package script_test

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A script that is to be called once more has its time from then on, and its
// token in each attempt.
func TestCalledOnceMore(t *testing.T) {
	t.Parallel()
	pages := newScript(`local n = redis.call('INCR', KEYS[1])
if n == 6 then return {ARGV[1], ARGV[2]} end
return {'again', 'token' .. n, n}`)
	virtual(t, func(attempt int) error {
		if attempt > 2 { // not for the first, nor for its EVAL
			time.Sleep(900 * time.Millisecond)
		}
		return nil
	}, func(t *testing.T, rdb *redis.Client, _ *wire) {
		var rest []any
		call := script.Call{
			Script: pages, Keys: script.KeysOf("key"), Args: script.Paged{"first"},
			Continued: func(all []any) error { rest = append(rest, all...); return nil },
		}
		reply, err := newConn(rdb).Run(t.Context(), &call)
		require.NoError(t, err)
		assert.Equal(t, []any{"first", "token5"}, reply)
		assert.Equal(t, []any{int64(1), int64(2), int64(3), int64(4), int64(5)}, rest)
	})
	virtual(t, nil, func(t *testing.T, rdb *redis.Client, w *wire) {
		enough := errors.New("enough")
		call := script.Call{
			Script: pages, Keys: script.KeysOf("key"), Args: script.Paged{"first"},
			Continued: func([]any) error { return enough },
		}
		_, err := newConn(rdb).Run(t.Context(), &call)
		require.ErrorIs(t, err, enough)
		assert.Len(t, w.sent(), 2)
	})
}

// The token says which attempt it was that may have run.
func TestARepeatedTokenIsTold(t *testing.T) {
	t.Parallel()
	pages := newScript(`if redis.call('INCR', KEYS[1]) == 1 then return {'again', 'more'} end
return 'done'`)
	var tokens []string
	var repeated []bool
	virtual(t, func(attempt int) error {
		if attempt == 3 || attempt == 1 {
			return io.EOF
		}
		return nil
	}, func(t *testing.T, rdb *redis.Client, _ *wire) {
		require.NoError(t, rdb.ScriptLoad(t.Context(), pages.Source).Err())
		call := script.Call{Script: pages, Keys: script.KeysOf("key"), Repeat: true}
		call.Args = script.ArgumentsFunc(func(all []any, a script.Attempt) []any {
			tokens, repeated = append(tokens, a.Token), append(repeated, a.Repeated)
			return all
		})
		reply, err := newConn(rdb).Run(t.Context(), &call)
		require.NoError(t, err)
		assert.Equal(t, "done", reply)
		assert.Equal(t, []string{"", "", "more", "more"}, tokens)
		assert.Equal(t, []bool{false, true, false, true}, repeated)
	})
}
