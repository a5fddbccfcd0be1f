package lane_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

func newScript(source string) *lua.Script {
	return &lua.Script{Name: "test", Source: source, SHA: redis.NewScript(source).Hash()}
}

// incr counts how often it has run, and answers that.
var incr = newScript("return redis.call('INCR', KEYS[1])")

// flights counts the scripts of each round trip, and does to it what the fields
// say.
type flights struct {
	trip   time.Duration
	hold   chan struct{}         // closed to let go; nil for none
	fails  error                 // of the pipeline itself
	panics func(scripts int) any // nil for no panic

	mu    sync.Mutex
	went  []int // the scripts of each
	now   int   // under way
	peak  int   // the most that were under way
	stuck bool  // no answer comes
}

func (f *flights) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *flights) send(cmds []redis.Cmder, next func() error) error {
	n := 0
	for _, cmd := range cmds {
		if strings.HasPrefix(cmd.Name(), "eval") {
			n++
		}
	}
	if n == 0 {
		return next()
	}
	f.mu.Lock()
	f.went = append(f.went, n)
	f.now++
	f.peak = max(f.peak, f.now)
	stuck, trip := f.stuck, f.trip
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.now--
	}()
	if panics := f.panics; panics != nil {
		time.Sleep(trip)
		if value := panics(n); value != nil {
			panic(value)
		}
		return next()
	}
	switch {
	case stuck:
		time.Sleep(3 * time.Second) // as long as go-redis waits by default
		for _, cmd := range cmds {
			cmd.SetErr(context.DeadlineExceeded)
		}
		return context.DeadlineExceeded
	case f.hold != nil:
		<-f.hold
	}
	time.Sleep(trip)
	return next()
}

func (f *flights) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return f.send([]redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

func (f *flights) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return f.send(cmds, func() error {
			if f.fails != nil {
				return f.fails
			}
			return next(ctx, cmds)
		})
	}
}

// forget begins the counting anew.
func (f *flights) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.went, f.peak = nil, f.now
}

// sizes returns the scripts of each round trip.
func (f *flights) sizes() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.went)
}

// most returns how many round trips were under way at the same time.
func (f *flights) most() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.peak
}

// takes has round trips take that long.
func (f *flights) takes(trip time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trip = trip
}

func (f *flights) hang(stuck bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stuck = stuck
}

// lanesOn returns the Lanes to a miniredis that knows incr, by a pool of that
// size.
func lanesOn(t *testing.T, f *flights, pool int) (*lane.Lanes, *redis.Client) {
	t.Helper()
	direct, m := redistest.Mini(t)
	require.NoError(t, direct.ScriptLoad(t.Context(), incr.Source).Err())
	rdb := redistest.MiniClient(t, m, &redis.Options{PoolSize: pool, MaxConcurrentDials: 1})
	rdb.AddHook(f)
	lanes := lane.New(script.NewConn(rdb, script.DefaultTimeout), nil)
	t.Cleanup(lanes.Close)
	return lanes, direct
}

// ask is a call and whoever waits for it.
type ask struct {
	call  *lane.Call
	done  chan struct{}
	reply any
	err   error
}

func newAsk(key string, call script.Call) *ask {
	a := &ask{done: make(chan struct{})}
	if call.Script == nil {
		call.Script = incr
	}
	if call.Args == nil {
		call.Args = script.Constant{}
	}
	call.Keys = script.KeysOf(key)
	a.call = &lane.Call{Call: call, Owner: a}
	return a
}

func (a *ask) Finished(c *lane.Call) bool {
	a.reply, a.err = c.Outcome()
	close(a.done)
	return false
}

func (a *ask) Board(time.Time) (c *lane.Call, more bool) { return a.call, false }

// by sends the call as a request is sent, and returns what came of it.
func (a *ask) by(l *lane.Lane) (any, error) {
	if l.Enter() {
		l.Alone(context.Background(), a.call, false)
	} else {
		l.Ready(a)
	}
	<-a.done
	return a.reply, a.err
}

func keyOf(i int) string { return fmt.Sprint("key", i) }
