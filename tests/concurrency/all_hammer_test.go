package concurrency_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Three Clients ask for all of some limiters and for each of them, wait, go away
// and release, and the server tells what came of it.
func TestHammerOfAll(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	rdb := server.Client(t, nil)
	for _, s := range lua.All() {
		require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source).Err())
	}
	cfgs := []rratelimiter.Config{limitertest.Every(100, 50*time.Millisecond), limitertest.Every(400, 250*time.Millisecond), limitertest.Every(1000, 700*time.Millisecond)}
	tag := redistest.Name(t)
	names := make([]string, len(cfgs))
	for i := range names {
		names[i] = fmt.Sprintf("%d{%s}", i, tag)
	}
	stop := trace(t, server)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	end := time.Now().Add(1500 * time.Millisecond)
	var held [3]atomic.Int64
	var all, single, cancelled atomic.Int64
	var clients []*rratelimiter.Client
	var wg sync.WaitGroup
	for number := range uint64(3) {
		client := rratelimiter.New(server.Client(t, nil))
		clients = append(clients, client)
		for worker := range uint64(8) {
			var limiters []*rratelimiter.RateLimiter
			for i, name := range names {
				limiters = append(limiters, client.RateLimiter(name, rratelimiter.WithDefault(cfgs[i])))
			}
			draw := rand.New(rand.NewPCG(seed, number*8+worker))
			wg.Go(func() {
				for time.Now().Before(end) {
					var permits int64
					var ok bool
					var err error
					one := draw.IntN(6)
					if one < len(limiters) {
						permits, ok, err = hammerOnce(t.Context(), limiters[one], draw)
					} else {
						permits, ok, err = hammerAll(t.Context(), client, limiters, draw)
					}
					switch {
					case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
						cancelled.Add(1)
						assert.False(t, ok)
					case errors.Is(err, rratelimiter.ErrPermitsExceedRate):
						assert.False(t, ok)
					case !assert.NoError(t, err):
						return
					}
					if !ok {
						continue
					}
					for i, l := range limiters {
						if one < len(limiters) && one != i {
							continue
						}
						held[i].Add(permits)
						if draw.IntN(4) == 0 {
							assert.NoError(t, l.Release(t.Context(), 1+draw.Int64N(permits)))
						}
					}
					if one < len(limiters) {
						single.Add(1)
					} else {
						all.Add(1)
					}
				}
			})
		}
	}
	wg.Wait()
	for _, client := range clients {
		require.NoError(t, client.Close(t.Context()))
	}

	commands := stop()
	for i, name := range names {
		ledgers, unwanted := replay(t, of(commands, name), cfgs[i])
		require.Len(t, ledgers, 1)
		for _, l := range ledgers {
			assert.Equal(t, held[i].Load(), l.granted-unwanted, "permits of %s that callers were told of", name)
			t.Logf("%s: %d script calls, %d permits granted, %d given back; at most %d in an interval of %d",
				name, l.calls, l.granted, unwanted, l.highest, cfgs[i].Rate)
		}
	}
	t.Logf("%d grants of all, %d of one; %d callers went away", all.Load(), single.Load(), cancelled.Load())
	assert.Positive(t, all.Load())
	assert.Positive(t, single.Load())
	assert.Positive(t, cancelled.Load())
}

// of returns what was done to the limiter of that name.
func of(commands []redistest.Ran, name string) []redistest.Ran {
	return slices.DeleteFunc(slices.Clone(commands), func(c redistest.Ran) bool {
		if !c.InScript {
			return !slices.Contains(c.Args, name)
		}
		return len(c.Args) > 1 && !strings.HasPrefix(c.Args[1]+":", name+":")
	})
}

// hammerAll makes one random request of all.
func hammerAll(ctx context.Context, client *rratelimiter.Client, limiters []*rratelimiter.RateLimiter, draw *rand.Rand) (permits int64, ok bool, err error) {
	permits = 1 + draw.Int64N(4)
	if draw.IntN(10) == 0 {
		permits = 1 + draw.Int64N(60)
	}
	timeout := time.Duration(0)
	switch draw.IntN(4) {
	case 0:
		timeout = time.Duration(draw.IntN(int(200 * time.Millisecond)))
	case 1:
		timeout = time.Second
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(draw.IntN(int(40*time.Millisecond))))
		defer cancel()
	case 2:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(draw.IntN(int(time.Millisecond))))
		defer cancel()
	}
	ok, err = client.TryAcquireAll(ctx, permits, timeout, limiters...)
	time.Sleep(time.Duration(draw.IntN(2)) * time.Millisecond)
	return permits, ok, outOfTime(err)
}
