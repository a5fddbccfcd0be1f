package faults_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// programVariable has the words of a program that handles requests in flight until its standard input ends: the address
// of Redis, the program's name, and the prefix of its keys.
const programVariable = "RRL_TEST_IN_FLIGHT"

const (
	places  = 20
	workers = 8 // of each program
)

func TestMain(m *testing.M) {
	if words := strings.Fields(os.Getenv(programVariable)); len(words) == 3 {
		handleInFlight(words[0], words[1], words[2])
		return
	}
	limitertest.Main(m)
}

// enters counts a request in at its handler, and notes how many there have been at the same time at most.
var enters = redis.NewScript(`
redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
redis.call('HINCRBY', KEYS[2], 'handled', 1)
local sum = 0
for _, n in ipairs(redis.call('HVALS', KEYS[1])) do
  sum = sum + n
end
if sum > tonumber(redis.call('HGET', KEYS[2], 'most') or '0') then
  redis.call('HSET', KEYS[2], 'most', sum)
end`)

func handleInFlight(addr, name, prefix string) {
	rdb := redis.NewClient(&redis.Options{Addr: addr, ClientName: name, ReadTimeout: time.Minute})
	client := rratelimiter.New(rdb, limitertest.Patient())
	limits := httplimit.New(httplimit.Policy{Limiter: client.Keyed(prefix, rratelimiter.PerHour(places)), InFlight: true},
		httplimit.WithTimeout(time.Minute), httplimit.WithKey(httplimit.Path()), httplimit.WithErrorHandler(func(*http.Request, error) {})) // callers that have gone
	ctx, stop := context.WithCancel(context.Background())
	handler := limits.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if err := enters.Run(ctx, rdb, []string{prefix + "busy", prefix + "seen"}, name).Err(); !errors.Is(err, redis.Nil) {
			return
		}
		defer rdb.HIncrBy(context.WithoutCancel(ctx), prefix+"busy", name, -1)
		time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
		if rand.IntN(20) == 0 {
			panic(http.ErrAbortHandler)
		}
	}))
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				func() {
					defer func() { _ = recover() }()
					// One request of a program, at a time, may be on its way without a caller: the
					// next of its worker waits.
					leaves := time.Minute
					if worker == 0 && n%2 == 0 {
						leaves = time.Duration(1+rand.IntN(5000)) * time.Microsecond
					}
					requested, leave := context.WithTimeout(context.Background(), leaves)
					defer leave()
					w := httptest.NewRecorder()
					handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody).WithContext(requested))
					if w.Code == http.StatusTooManyRequests {
						rdb.HIncrBy(ctx, prefix+"seen", "refused", 1)
					}
				}()
			}
		})
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	stop()
	all.Wait()
	_ = client.Close(context.Background())
}

// fleet is programs that handle requests in flight.
type fleet struct {
	*testing.T

	rdb      redistest.Client
	prefix   string // of all keys
	programs map[string]program
}

type program struct {
	*exec.Cmd

	in io.Closer
}

func (f *fleet) start(name string) {
	self, err := os.Executable()
	require.NoError(f, err)
	cmd := exec.CommandContext(f.Context(), self)
	cmd.Env = append(os.Environ(), programVariable+"="+strings.Join([]string{redistest.Shared(f).Addr(), f.prefix + name, f.prefix}, " "))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(f, err)
	require.NoError(f, cmd.Start())
	f.programs[name] = program{cmd, in}
}

// kill kills a program, and returns how many requests were at its handler when all that it had sent was done.
func (f *fleet) kill(name string) (held int64) {
	require.NoError(f, f.programs[name].Process.Kill())
	_ = f.programs[name].Wait()
	delete(f.programs, name)
	require.Eventually(f, func() bool {
		return !strings.Contains(f.rdb.ClientList(f.Context()).Val(), "name="+f.prefix+name+" ")
	}, time.Minute, 5*time.Millisecond)
	held, _ = f.rdb.HGet(f.Context(), f.prefix+"busy", f.prefix+name).Int64()
	require.NoError(f, f.rdb.HDel(f.Context(), f.prefix+"busy", f.prefix+name).Err())
	return held
}

// stop ends all programs in good order.
func (f *fleet) stop() {
	for name, p := range f.programs {
		require.NoError(f, p.in.Close())
		require.NoError(f, p.Wait(), name)
		delete(f.programs, name)
	}
}

func (f *fleet) seen(what string) int64 {
	n, _ := f.rdb.HGet(f.Context(), f.prefix+"seen", what).Int64()
	return n
}

// work waits until some more requests were handled.
func (f *fleet) work() {
	before := f.seen("handled")
	require.Eventually(f, func() bool { return f.seen("handled")-before >= 300 }, time.Minute, 5*time.Millisecond)
}

// Never more requests are in flight than there are places, in all programs together, though some are killed. What these held
// stays taken until an interval is over, and nothing else.
func TestInFlight_ProgramsAreKilled(t *testing.T) {
	t.Parallel()
	f := &fleet{t, redistest.Redis(t), redistest.Name(t) + ":", map[string]program{}}
	l := limitertest.NewClient(t, f.rdb).RateLimiter(f.prefix + "http:/")
	for _, name := range []string{"a", "b", "c"} {
		f.start(name)
	}
	held := int64(0)
	for _, name := range []string{"a", "b"} {
		f.work()
		held += f.kill(name)
		f.start(name + "2")
	}
	f.work()
	f.stop()
	taken := places - limitertest.Available(t, l)
	assert.GreaterOrEqual(t, taken, held, "what was in flight stays taken")
	assert.LessOrEqual(t, taken, int64(2*(workers+1)), "and what was on its way")
	f.start("d")
	f.work()
	f.stop()
	assert.Equal(t, taken, places-limitertest.Available(t, l), "all else came back")
	assert.LessOrEqual(t, f.seen("most"), int64(places), "in flight at the same time")
	assert.Positive(t, f.seen("refused"))
	require.NoError(t, limitertest.Second(l.UpdateRate(t.Context(), rratelimiter.Config{Rate: places, Interval: time.Millisecond}, rratelimiter.KeepState())))
	require.Eventually(t, func() bool { return limitertest.Available(t, l) == places }, time.Minute, time.Millisecond)
}
