package servers_test

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// failovers is how many each scenario has: RRL_FAILOVERS, as the tables in
// docs/servers.md were made, or few.
func failovers(t *testing.T) int {
	t.Helper()
	n := 2
	if text := os.Getenv("RRL_FAILOVERS"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	return n
}

// load is callers who take one permit each of a limiter that nobody else takes of, so
// that each grant can be looked for.
type load struct {
	keyed *rratelimiter.KeyedLimiter
	gate  sync.RWMutex // held to stop the callers
	wg    sync.WaitGroup
	ended chan struct{}

	mu      sync.Mutex
	next    int
	granted []string // since the last look
	failed  map[string]int
	total   int
}

func startLoad(t *testing.T, rdb redis.UniversalClient, opts ...rratelimiter.Option) *load {
	t.Helper()
	l := &load{
		keyed: limitertest.NewClient(t, rdb, opts...).Keyed("load:", limitertest.Every(1, time.Hour)),
		ended: make(chan struct{}), failed: map[string]int{},
	}
	for range 8 {
		l.wg.Go(func() {
			for {
				select {
				case <-l.ended:
					return
				case <-time.After(time.Millisecond):
					l.call(t)
				}
			}
		})
	}
	t.Cleanup(l.end)
	return l
}

func (l *load) call(t *testing.T) {
	l.gate.RLock()
	defer l.gate.RUnlock()
	l.mu.Lock()
	l.next++
	key := strconv.Itoa(l.next)
	l.mu.Unlock()
	ok, err := l.keyed.TryAcquire(t.Context(), key, 1, 0)
	l.mu.Lock()
	defer l.mu.Unlock()
	if ok {
		l.granted = append(l.granted, key)
		l.total++
	} else if assert.Error(t, err) {
		l.failed[kindOf(err)]++
	}
}

func (l *load) end() {
	select {
	case <-l.ended:
	default:
		close(l.ended)
	}
	l.wg.Wait()
}

// awaitGrants waits for so many from now on.
func (l *load) awaitGrants(t *testing.T, n int) {
	t.Helper()
	l.mu.Lock()
	want := l.total + n
	l.mu.Unlock()
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.total >= want
	}, 60*time.Second, time.Millisecond)
}

// lost stops the callers and returns how many grants since the last look the server
// does not know, all of which it would grant again.
func (l *load) lost(t *testing.T, rdb redis.UniversalClient) (lost int) {
	t.Helper()
	l.gate.Lock()
	defer l.gate.Unlock()
	pipe := rdb.Pipeline()
	var found []*redis.IntCmd
	for _, key := range l.granted {
		found = append(found, pipe.Exists(t.Context(), redisson.KeysOf("load:"+key, "").Permits))
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	for _, cmd := range found {
		if cmd.Val() == 0 {
			lost++
		}
	}
	l.granted = nil
	require.NoError(t, rdb.FlushAll(t.Context()).Err())
	return lost
}

// eachWay runs a scenario without and with WithReplicas, and notes what it lost.
func eachWay(t *testing.T, scenario string, run func(t *testing.T, opts ...rratelimiter.Option) (lost []int, l []*load)) {
	t.Helper()
	for name, opts := range map[string][]rratelimiter.Option{
		"plain": nil, "WithReplicas(1, 100ms)": {rratelimiter.WithReplicas(1, 100*time.Millisecond)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lost, loads := run(t, opts...)
			sum, most, total, failed := 0, 0, 0, map[string]int{}
			for _, n := range lost {
				sum, most = sum+n, max(most, n)
			}
			for _, l := range loads {
				total += l.total
				for kind, n := range l.failed {
					failed[kind] += n
				}
			}
			if len(opts) > 0 {
				assert.Zero(t, sum)
			}
			t.Logf("each: %v; errors: %v", lost, failed)
			noteResult(t, "durable", scenario, name, len(lost), sum, most, total, fmt.Sprint(failed))
		})
	}
}

// Masters are replaced again and again, without their consent, while callers take
// permits.
func TestDurableGrantsOverSentinelFailovers(t *testing.T) {
	t.Parallel()
	eachWay(t, "SENTINEL FAILOVER under load", func(t *testing.T, opts ...rratelimiter.Option) (lost []int, _ []*load) {
		t.Helper()
		s := redistest.StartSentinel(t, 1, downAfter)
		rdb := s.Client(t, &redis.FailoverOptions{ReadTimeout: time.Second})
		l := startLoad(t, rdb, opts...)
		for range failovers(t) {
			l.awaitGrants(t, 1000)
			master := s.Failover(t)
			l.awaitGrants(t, 100)
			lost = append(lost, l.lost(t, master.Client(t, nil)))
		}
		l.end()
		return lost, []*load{l}
	})
}

// The network between master and replica parts, and some time later the master dies.
func TestDurableGrantsWhereTheReplicaIsBehind(t *testing.T) {
	t.Parallel()
	eachWay(t, "network parted for 0.3 s, then master killed", func(t *testing.T, opts ...rratelimiter.Option) (lost []int, loads []*load) {
		t.Helper()
		for range failovers(t) {
			r := startReplica(t)
			l := startLoad(t, r.client(t), opts...)
			l.awaitGrants(t, 200)
			close(r.silent)
			time.Sleep(300 * time.Millisecond)
			l.gate.Lock() // no call meets the new master before it is one
			r.takeOver(t)
			l.gate.Unlock()
			l.end()
			lost, loads = append(lost, l.lost(t, r.server.Client(t, nil))), append(loads, l)
			r.server.Kill()
		}
		return lost, loads
	})
}
