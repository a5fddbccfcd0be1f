package lane_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

func newScript(source string) *lua.Script {
	return &lua.Script{Name: "test", Source: source, SHA: redis.NewScript(source).Hash(), Word: redis.NewScript(source).Hash()}
}

// incr counts how often it has run, and answers that.
var incr = newScript("return redis.call('INCR', KEYS[1])")

// flights counts the scripts of each round trip, and does to it what the fields say.
type flights struct {
	trip   time.Duration
	held   bool // each waits until hold is closed
	hold   chan struct{}
	fails  func(scripts int) error // instead of the round trip, or panics; nil for never
	inline bool                    // callers who find the way free send by themselves

	stuck atomic.Bool // no answer comes

	mu   sync.Mutex
	went []int // the scripts of each
	now  int   // under way
	peak int   // the most that were under way
}

func (f *flights) send(_ context.Context, cmds []redis.Cmder, next func() error) error {
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
	trip := f.trip
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.now--
	}()
	if f.stuck.Load() {
		time.Sleep(3 * time.Second) // as long as go-redis waits by default
		return redistest.Fail(cmds, context.DeadlineExceeded)
	}
	if f.held {
		<-f.hold
	}
	time.Sleep(trip)
	if f.fails != nil {
		if err := f.fails(n); err != nil {
			return err
		}
	}
	return next()
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

func (f *flights) takes(trip time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trip = trip
}

// A rig is a lane to a miniredis that knows incr.
type rig struct {
	*flights
	sync.WaitGroup // of callers

	lanes  *lane.Lanes
	lane   *lane.Lane
	direct *redis.Client
}

// newRig must be called in a bubble.
func newRig(t *testing.T, f *flights, pool int) *rig {
	t.Helper()
	f.hold = make(chan struct{}) // of the bubble
	direct, m := redistest.Mini(t)
	require.NoError(t, direct.ScriptLoad(t.Context(), incr.Source).Err())
	rdb := redistest.MiniClient(t, m, &redis.Options{PoolSize: pool, MaxConcurrentDials: 1, ContextTimeoutEnabled: f.inline})
	rdb.AddHook(redistest.Hook(f.send))
	lanes := lane.New(script.NewConn(rdb, script.DefaultTimeout), nil)
	t.Cleanup(lanes.Close)
	return &rig{flights: f, lanes: lanes, lane: lanes.Of(t.Context(), "key"), direct: direct}
}

// onRig runs test in a bubble, with a pool of that size.
func onRig(t *testing.T, f *flights, pool int, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(t, newRig(t, f, pool))
		time.Sleep(time.Minute) // what is under way ends
	})
}

// start starts callers, one after another: each finds those before it under way.
func (r *rig) start(callers int, call func(i int)) {
	for i := range callers {
		r.Go(func() { call(i) })
		synctest.Wait()
	}
}

// ask makes the call of a key.
func (r *rig) ask(i int, call script.Call) (any, error) { return newAsk(keyOf(i), call).by(r.lane) }

// mustAsk makes a call of incr, of a key, which must be answered.
func (r *rig) mustAsk(t *testing.T, i int) {
	t.Helper()
	_, err := r.ask(i, script.Call{})
	assert.NoError(t, err)
}

// ask is a call and who waits for it.
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
