package limitertest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A Wire is a limiter in a bubble, whose Client reaches its server through a proxy, and what it takes to see the result of the
// proxy's faults. Its permits come back after an hour only, so that each is either held by a caller or free.
type Wire struct {
	*rratelimiter.RateLimiter

	Client      *rratelimiter.Client
	Proxy       *redistest.Proxy
	Other       *rratelimiter.RateLimiter // another Client's handle, past the proxy
	OtherClient *rratelimiter.Client
	Redis       redistest.Client // past the proxy
	Keys        redisson.Keys    // Value and Permits are those in use
	Rate        int64
	Held        chan struct{} // what a fault holds back waits for it
	LetGo       func()        // closes held

	mu     sync.Mutex
	calls  map[string]int // of each script, as the Client sent them
	gate   *gate
	before map[*lua.Script]func()

	waits func() // called once the caller of a Request waits
}

// A gate holds back the answer to an acquire.
type gate struct{ reached, open chan struct{} }

// WireID is the id of both Clients of a Wire.
const WireID = "the-client"

// Requests whose answers a fault keeps back are given up after this time, and repeated as often as faults are met and some more.
const (
	answerTimeout = 200 * time.Millisecond
	maxRetries    = 10
)

// Outlasts is a timeout within which callers learn of a refusal though three answers before were lost.
const Outlasts = 10 * answerTimeout

// MembersOf holds a release of Redisson for each way in which a grant is written down: layouts,
// and whether requests may share a member. With each of them, no permit may be lost or minted.
var MembersOf = map[string]string{
	"D2 merged": "4.7.0",
	"D2":        "3.27.2",
	"D1":        "3.20.1",
	"C":         "3.16.8",
	"B":         "3.15.5",
}

// NewWire returns a limiter of that configuration; with byDefault, its first acquire sets it up.
func NewWire(t testing.TB, rdb redistest.Client, cfg rratelimiter.Config, byDefault bool, opts ...rratelimiter.Option) *Wire {
	t.Helper()
	// With so few connections one flight is under way at a time, so that a test can say who goes together.
	return NewWireOf(t, rdb, cfg, byDefault, 3, opts...)
}

// NewWireOf is NewWire with that many connections.
func NewWireOf(
	t testing.TB, rdb redistest.Client, cfg rratelimiter.Config, byDefault bool, connections int, opts ...rratelimiter.Option,
) *Wire {
	t.Helper()
	w := &Wire{
		Proxy:  redistest.ProxyTo(t, rdb),
		Redis:  rdb,
		Rate:   cfg.Rate,
		Held:   make(chan struct{}),
		calls:  map[string]int{},
		before: map[*lua.Script]func(){},
		waits:  func() {},
	}
	w.LetGo = sync.OnceFunc(func() { close(w.Held) })
	t.Cleanup(w.LetGo)
	opts = append([]rratelimiter.Option{rratelimiter.WithClientID(WireID)}, opts...)
	through := w.Proxy.Client(t, &redistest.Options{
		ReadTimeout: answerTimeout, WriteTimeout: time.Minute, MaxRetries: maxRetries, PoolSize: connections,
	})
	w.Client = NewClient(t, through, opts...)
	name := redistest.Name(t)
	w.OtherClient = NewClient(t, w.Redis, append(slices.Clip(opts), rratelimiter.WithCallTimeout(time.Minute))...)
	w.Other = w.OtherClient.RateLimiter(name)
	if byDefault {
		w.RateLimiter = w.Client.RateLimiter(name, rratelimiter.WithDefault(cfg))
	} else {
		w.RateLimiter = w.Client.RateLimiter(name)
		MustTrySetRate(t, w.Other, cfg)
	}
	w.Keys = redisson.KeysOf(name, WireID)
	if cfg.Type == rratelimiter.PerClient {
		w.Keys.Value, w.Keys.Permits = w.Keys.ClientValue, w.Keys.ClientPermits
	}
	load(t, w.Redis)
	w.OnScript(func(*lua.Script, int) redistest.Action { return redistest.Pass })
	return w
}

// load lets the server know all scripts.
func load(t testing.TB, rdb redistest.Client) {
	t.Helper()
	var shas []string
	for _, s := range lua.All() {
		shas = append(shas, s.SHA)
	}
	known := Must(rdb.ScriptExists(t.Context(), shas...).Result())(t)
	for i, s := range lua.All() {
		if !known[i] {
			require.NoError(t, rdb.ScriptLoad(t.Context(), s.Source).Err())
		}
	}
}

// Hourly is the configuration of a wire that nothing else is asked of.
func Hourly(rate int64) rratelimiter.Config { return rratelimiter.PerHour(rate) }

// OnScript lets f say what becomes of each script call from now on; n counts the calls of each script, from 1.
func (w *Wire) OnScript(f func(script *lua.Script, n int) redistest.Action) {
	seen := map[string]int{}
	w.Proxy.OnCommand(func(c redistest.Command) redistest.Action {
		if name := c.Name(); name != "evalsha" && name != "eval" {
			return redistest.Pass
		}
		s := ScriptOf(c.Args[1])
		w.mu.Lock()
		w.calls[s.Name]++
		g := w.gate
		if s.Name == lua.Acquire.Name && g != nil {
			w.gate = nil
			w.mu.Unlock()
			close(g.reached)
			return redistest.Pass.When(g.open)
		}
		do := w.before[s]
		delete(w.before, s)
		w.mu.Unlock()
		if do != nil {
			do()
		}
		seen[s.Name]++
		return f(s, seen[s.Name])
	})
}

// ScriptOf returns the script with that SHA or source.
func ScriptOf(text string) *lua.Script {
	for _, s := range lua.All() {
		if s.SHA == text || s.Source == text {
			return s
		}
	}
	return &lua.Script{}
}

// On applies the actions in turn to the calls of one script from now on.
func (w *Wire) On(script *lua.Script, actions ...redistest.Action) {
	w.OnScript(func(s *lua.Script, n int) redistest.Action {
		if s == script && n <= len(actions) {
			return actions[n-1]
		}
		return redistest.Pass
	})
}

// Before lets do be done when the next call of a script is on its way, whatever that meets.
func (w *Wire) Before(script *lua.Script, do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before[script] = do
}

// Sent returns how often the Client sent the script.
func (w *Wire) Sent(script *lua.Script) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[script.Name]
}

// CheckHeld waits until nothing is on its way any more, and checks that the
// permits which callers hold are those in use, and that the others are free.
func (w *Wire) CheckHeld(t testing.TB, held int64, when string) bool {
	t.Helper()
	var inUse, free int64
	for until := time.Now().Add(time.Minute); ; {
		w.Proxy.Settle(t)
		inUse = InUse(t, w.Redis, w.Keys.Permits)
		var stored bool
		if free, stored = StoredValue(t, w.Redis, w.Keys.Value); !stored {
			free = w.Rate
		}
		if inUse == held && free == w.Rate-held || time.Now().After(until) {
			break
		}
		time.Sleep(5 * time.Millisecond) // a give-back may be on its way
	}
	return assert.Equal(t, held, inUse, "%s: permits in use; more are lost, fewer are minted", when) &&
		assert.Equal(t, w.Rate-held, free, "%s: free permits", when)
}

// Ask makes the requests at the same time, in one batch, and returns what each was granted.
func (w *Wire) Ask(t testing.TB, requests ...Request) []int64 {
	t.Helper()
	got := make([]int64, len(requests))
	var wg sync.WaitGroup
	open := func() {}
	if len(requests) > 1 {
		// While a request is held on its way, the others gather. This one takes nothing.
		g := &gate{make(chan struct{}), make(chan struct{})}
		w.mu.Lock()
		w.gate = g
		w.mu.Unlock()
		wg.Go(func() {
			assert.ErrorIs(t, Second(w.TryAcquire(context.Background(), w.Rate+1, 0)), rratelimiter.ErrPermitsExceedRate)
		})
		<-g.reached
		open = func() { close(g.open) }
	}
	for i, ask := range requests {
		waits := make(chan struct{})
		w.waits = sync.OnceFunc(func() { close(waits) })
		wg.Go(func() {
			defer w.waits()
			granted, err := ask(w)
			if !errors.Is(err, context.Canceled) {
				assert.NoError(t, err)
			}
			got[i] = granted
		})
		if len(requests) > 1 {
			<-waits
		}
	}
	open()
	wg.Wait()
	return got
}

// Context returns ctx for a Request, which gathers or stands in line once it waits for the end of that.
func (w *Wire) Context(ctx context.Context) context.Context {
	if w.waits == nil {
		return ctx
	}
	return waitedFor{ctx, w.waits}
}

type waitedFor struct {
	context.Context

	waits func()
}

func (c waitedFor) Done() <-chan struct{} {
	c.waits()
	return c.Context.Done()
}

// Sum returns the sum of permits.
func Sum(permits []int64) int64 {
	total := int64(0)
	for _, n := range permits {
		total += n
	}
	return total
}

// AskAny is Ask for requests that may fail.
func (w *Wire) AskAny(t testing.TB, requests ...Request) []int64 {
	t.Helper()
	lenient := make([]Request, len(requests))
	for i, f := range requests {
		lenient[i] = func(w *Wire) (int64, error) {
			granted, err := f(w)
			if errors.Is(err, rratelimiter.ErrPermitsExceedRate) {
				err = nil
			}
			return granted, err
		}
	}
	return w.Ask(t, lenient...)
}

// ManyRows adds members of one permit each to a wire's set, and takes them off the value.
func (w *Wire) ManyRows(t testing.TB, age time.Duration, count int) {
	t.Helper()
	free, ok := StoredValue(t, w.Redis, w.Keys.Value)
	if !ok {
		free = w.Rate
	}
	AddGrants(t, w.Redis, w.Keys.Permits, age, count, 1)
	require.NoError(t, w.Redis.Set(t.Context(), w.Keys.Value, free-int64(count), 0).Err())
}

// NewestGo removes that many of the newest of those members, and puts their permits back.
func (w *Wire) NewestGo(t testing.TB, count int64) {
	t.Helper()
	require.NoError(t, w.Redis.ZRemRangeByRank(t.Context(), w.Keys.Permits, -count, -1).Err())
	require.NoError(t, w.Redis.IncrBy(t.Context(), w.Keys.Value, count).Err())
}

// CancelledInFlight makes requests in one batch; those with a true go away while it is on
// its way, before it reaches Redis. It returns what the others were granted.
func (w *Wire) CancelledInFlight(t testing.TB, permits []int64, goes []bool) []int64 {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var away sync.WaitGroup
	var requests []Request
	for i, n := range permits {
		if !goes[i] {
			requests = append(requests, TryFor(n))
			continue
		}
		away.Add(1)
		requests = append(requests, func(w *Wire) (int64, error) {
			defer away.Done()
			ok, err := w.TryAcquire(w.Context(ctx), n, 0)
			assert.ErrorIs(t, err, context.Canceled)
			return Counted(n, ok, err)
		})
	}
	w.Before(lua.Acquire, func() {
		cancel()
		away.Wait()
	})
	return w.Ask(t, requests...)
}
