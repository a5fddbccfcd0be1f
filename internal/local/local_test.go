package local_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/local"
)

// keys is how many keys have a window of their own.
const keys = 1 << 15

func TestLimiter_KeysThatAreFreeAgainMakeRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := local.New()
		granted := func(key string, window time.Duration) bool {
			d, _, _ := l.Take(key, 1, 1, local.Rule{Permits: 1, Window: window})
			return d.Granted
		}
		require.True(t, granted("long", time.Hour))
		for round := range 3 {
			for i := range keys - 1 {
				require.True(t, granted(fmt.Sprint(round, " ", i), time.Second), "it has a window of its own")
			}
			time.Sleep(time.Second)
		}
		assert.False(t, granted("long", time.Hour), "it holds something, though it was asked first")
		l = local.New()
		for i := range keys {
			_, _, giveBack := l.Take(i, 1, 1, local.Rule{Permits: 1, Window: time.Hour})
			giveBack()
		}
		for i := range keys {
			require.True(t, granted(fmt.Sprint(-i), time.Hour), "what was given back makes room, too")
		}
	})
}

// No key gets more than its limit, whatever rules the keys have with which it shares a window.
func TestLimiter_SharedWindowKeepsEachKeysLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := local.New()
		for i := range keys {
			l.Take(i, 1, 1, local.Rule{Permits: 1, Window: 24 * time.Hour})
		}
		long := local.Rule{Permits: 5, Window: time.Hour}
		got := map[int]int64{}
		for start := time.Now(); time.Since(start) < time.Hour; time.Sleep(10 * time.Second) {
			for range 300 {
				others := []local.Rule{{Permits: 50, Window: time.Second}, {Permits: 50, Window: time.Hour, Until: time.Now().Add(time.Second)}}
				l.Take(fmt.Sprint("other", rand.N(1<<20)), 1, 2, others[rand.N(2)])
			}
			key := rand.N(50)
			_, taken, _ := l.Take(fmt.Sprint("long", key), 1, 3, long)
			got[key] += taken
		}
		for key, taken := range got {
			require.LessOrEqual(t, taken, long.Permits, key)
		}
	})
}
