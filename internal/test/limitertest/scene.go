package limitertest

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// Forever is a patience that no test's bubble lasts.
const Forever = 1000 * time.Hour

// A Scene is a limiter in a bubble, with a clock that starts at 0. The limiter
// is one Client's; Other is a handle of another Client on the same limiter.
type Scene struct {
	*rratelimiter.RateLimiter

	Client *rratelimiter.Client
	Other  *rratelimiter.RateLimiter
	Redis  redistest.Client
	Sent   *Counter // what limiter's Client sent
	Start  time.Time
}

// NewScene returns a Scene of that configuration; the zero Config stands for none. It must be called in a bubble.
func NewScene(t *testing.T, cfg rratelimiter.Config, opts ...rratelimiter.LimiterOption) *Scene {
	t.Helper()
	rdb, m := redistest.Mini(t)
	name := redistest.Name(t)
	otherClient := NewClient(t, redistest.MiniClient(t, m, nil))
	s := &Scene{Redis: rdb, Other: otherClient.RateLimiter(name)}
	s.Client = NewClient(t, rdb)
	s.RateLimiter = s.Client.RateLimiter(name, opts...)
	if cfg != (rratelimiter.Config{}) {
		MustTrySetRate(t, s.Other, cfg)
	}
	_, err := otherClient.RateLimiter(redistest.Name(t)).TryAcquire(t.Context(), 1, 0)
	require.ErrorIs(t, err, rratelimiter.ErrNotInitialized, "the server knows the script from here on")
	s.Sent = CountCommands(rdb)
	s.Start = time.Now()
	return s
}

// Now is the time since the scene's start.
func (s *Scene) Now() time.Duration { return time.Since(s.Start) }

// Until sleeps until the scene's clock shows at.
func (s *Scene) Until(at time.Duration) {
	time.Sleep(at - s.Now())
	synctest.Wait()
}

// A Caller is a call that runs beside the test.
type Caller struct {
	mu   sync.Mutex
	end  Ending
	done bool
}

// An Ending is what a call returned, and when by the scene's clock.
type Ending struct {
	Ok  bool
	Err error
	At  time.Duration
}

// Outcome is how the call ended, and when.
func (c *Caller) Outcome() string {
	end, done := c.Ended()
	if !done {
		return "waits"
	}
	if end.Err != nil {
		return fmt.Sprintf("%v at %v", end.Err, end.At)
	}
	return fmt.Sprintf("%v at %v", end.Ok, end.At)
}

// Ended returns how the call ended, if it has.
func (c *Caller) Ended() (Ending, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end, c.done
}

// Go runs f beside the test and returns when it waits or is done.
func (s *Scene) Go(f func() (bool, error)) *Caller {
	c := &Caller{}
	go func() {
		ok, err := f()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.end, c.done = Ending{ok, err, s.Now()}, true
	}()
	synctest.Wait()
	return c
}

// RequireEnd checks that the call failed, with target, at that time.
func (c *Caller) RequireEnd(t *testing.T, target error, at time.Duration) {
	t.Helper()
	end, done := c.Ended()
	require.True(t, done, "the call waits")
	require.ErrorIs(t, end.Err, target)
	assert.False(t, end.Ok)
	assert.Equal(t, at, end.At)
}

// CheckOutcome checks how calls ended, and when.
func CheckOutcome(t *testing.T, want string, callers ...*Caller) {
	t.Helper()
	for i, c := range callers {
		assert.Equal(t, want, c.Outcome(), "number %d", i)
	}
}

// Leaver starts a call whose caller leaves when leave is called.
func (s *Scene) Leaver(t *testing.T, call func(ctx context.Context) (bool, error)) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := s.Go(func() (bool, error) { return call(ctx) })
	return func() {
		t.Helper()
		cancel()
		synctest.Wait()
		c.RequireEnd(t, context.Canceled, s.Now())
	}
}

// StartTryAcquire is TryAcquire beside the test.
func (s *Scene) StartTryAcquire(ctx context.Context, permits int64, timeout time.Duration) *Caller {
	return s.Go(func() (bool, error) { return s.TryAcquire(ctx, permits, timeout) })
}

// StartAcquire is Acquire beside the test.
func (s *Scene) StartAcquire(ctx context.Context, permits int64) *Caller {
	return s.Go(func() (bool, error) {
		err := s.Acquire(ctx, permits)
		return err == nil, err
	})
}

// KeepInUse lets the other Client keep permits in use without end: it takes more, each time before the ones before come back. It
// starts at the scene's 0, and its permits then come back at 1s, 1.9s, 2.8s ...
func (s *Scene) KeepInUse(t *testing.T, permits int64) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	MustAcquire(t, s.Other, permits)
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(900 * time.Millisecond):
			}
			ok, err := s.Other.TryAcquire(context.WithoutCancel(t.Context()), permits, 0)
			assert.NoError(t, err)
			assert.True(t, ok)
		}
	}()
	return func() { close(done) }
}

// Close is the Client's Close beside the test.
func (s *Scene) Close(ctx context.Context) *Caller {
	return s.Go(func() (bool, error) {
		err := s.Client.Close(ctx)
		return err == nil, err
	})
}

// A HeldScene is a Scene whose Client reaches the server through a proxy.
type HeldScene struct {
	*Scene

	Proxy *redistest.Proxy
	Mini  redistest.Client // past the proxy
}

// NewHeldScene returns a HeldScene with so few connections that one flight is under way
// at a time: a test can say who goes together. It must be called in a bubble.
func NewHeldScene(t *testing.T, cfg rratelimiter.Config) *HeldScene {
	t.Helper()
	return NewHeldSceneOf(t, cfg, &redistest.Options{ReadTimeout: time.Minute, PoolSize: 3})
}

// NewHeldSceneOf is NewHeldScene with a client of those options.
func NewHeldSceneOf(t *testing.T, cfg rratelimiter.Config, opt *redistest.Options) *HeldScene {
	t.Helper()
	rdb, m := redistest.Mini(t)
	s := &HeldScene{Proxy: redistest.MiniProxy(t, m), Mini: rdb}
	through := s.Proxy.Client(t, opt)
	name := redistest.Name(t)
	s.Scene = &Scene{Redis: through, Other: NewClient(t, rdb).RateLimiter(name)}
	s.Client = NewClient(t, through)
	s.RateLimiter = s.Client.RateLimiter(name)
	MustTrySetRate(t, s.Other, cfg)
	loadBeforeUse(through, rdb)
	s.Sent = CountCommands(through)
	s.Start = time.Now()
	return s
}

// loadBeforeUse lets the server know each script before rdb calls it, past what is between the
// two. A miniredis parses what it loads, and a scene calls few of the scripts.
func loadBeforeUse(rdb, past redistest.Client) {
	var mu sync.Mutex
	loaded := map[*lua.Script]bool{}
	rdb.AddHook(redistest.BeforeCommands(func(cmds ...redis.Cmder) {
		mu.Lock()
		defer mu.Unlock()
		for _, cmd := range cmds {
			if cmd.Name() != "evalsha" {
				continue
			}
			sha, _ := cmd.Args()[1].(string)
			if s := ScriptOf(sha); !loaded[s] {
				loaded[s] = past.ScriptLoad(context.Background(), s.Source).Err() == nil
			}
		}
	}))
}

// Hold keeps back the answer to the n-th call of the script from now on until the returned function is called, or the test ends.
func (s *HeldScene) Hold(t *testing.T, script *lua.Script, n int) (letGo func()) {
	t.Helper()
	held := make(chan struct{})
	letGo = sync.OnceFunc(func() {
		close(held)
		synctest.Wait()
	})
	t.Cleanup(letGo)
	s.Proxy.OnCommand(redistest.Nth(n, script.SHA, redistest.Pass.When(held)))
	return letGo
}

// OnEach returns a function for a proxy that does something to each command that contains text.
func OnEach(text string, do redistest.Action) func(redistest.Command) redistest.Action {
	return func(c redistest.Command) redistest.Action {
		if c.Contains(text) {
			return do
		}
		return redistest.Pass
	}
}

// CheckInUse checks the permits in use, and that all others are free.
func (s *HeldScene) CheckInUse(t *testing.T, rate, inUse int64) {
	t.Helper()
	synctest.Wait()
	assert.True(t, checkInUse(t, s.Mini, s.RateLimiter, rate, inUse), "no value is stored")
}

// checkInUse checks a limiter's permits in use, and that all others are free. It reports whether the free permits are stored.
func checkInUse(t testing.TB, rdb redistest.Client, l *rratelimiter.RateLimiter, rate, inUse int64) bool {
	t.Helper()
	assert.Equal(t, inUse, InUse(t, rdb, KeysOf(l).Permits), "permits in use of %s", l.Name())
	value, stored := StoredValue(t, rdb, KeysOf(l).Value)
	if stored {
		assert.Equal(t, rate-inUse, value, "free permits of %s", l.Name())
	}
	return stored
}

// A Family is some limiters whose names share a hash tag, as handles of one Client.
type Family struct {
	Client   *rratelimiter.Client
	Limiters []*rratelimiter.RateLimiter
	Tag      string
}

// NewFamilyOf returns a Client's limiters of those configurations; the zero Config stands for a limiter without a rate.
func NewFamilyOf(t testing.TB, client *rratelimiter.Client, cfgs ...rratelimiter.Config) *Family {
	t.Helper()
	f := &Family{Client: client, Tag: "{" + redistest.Name(t) + "}"}
	for i, cfg := range cfgs {
		l := client.RateLimiter(fmt.Sprintf("%s:%d", f.Tag, i))
		f.Limiters = append(f.Limiters, l)
		if cfg != (rratelimiter.Config{}) {
			MustTrySetRate(t, l, cfg)
		}
	}
	return f
}

// SeenBy returns another Client's handles of the same limiters.
func (f *Family) SeenBy(client *rratelimiter.Client, opts ...rratelimiter.LimiterOption) *Family {
	other := &Family{Client: client, Tag: f.Tag}
	for _, l := range f.Limiters {
		other.Limiters = append(other.Limiters, client.RateLimiter(l.Name(), opts...))
	}
	return other
}

// Try asks once for permits of all.
func (f *Family) Try(t testing.TB, permits int64) bool {
	t.Helper()
	return TryAll(t, f.Client, permits, f.Limiters...)
}

// Free returns the free permits of each.
func (f *Family) Free(t testing.TB) []int64 {
	t.Helper()
	var all []int64
	for _, l := range f.Limiters {
		all = append(all, Available(t, l))
	}
	return all
}

// State returns what Redis holds of all.
func (f *Family) State(t testing.TB, rdb redistest.Client) map[string]KeyState {
	t.Helper()
	all := map[string]KeyState{}
	for _, l := range f.Limiters {
		maps.Copy(all, ReadState(t, rdb, l.Name()))
	}
	return all
}

// CheckSums checks that free permits and those in use are the rate, of each limiter of type Overall.
func (f *Family) CheckSums(t testing.TB, rdb redistest.Client, rates ...int64) {
	t.Helper()
	for i, l := range f.Limiters {
		checkInUse(t, rdb, l, rates[i], InUse(t, rdb, KeysOf(l).Permits))
	}
}

// A FamilyScene is a HeldScene for several limiters.
type FamilyScene struct {
	*HeldScene

	Rival *rratelimiter.Client // past the proxy
}

// NewFamilyScene must be called in a bubble.
func NewFamilyScene(t *testing.T, cfgs ...rratelimiter.Config) (*FamilyScene, *Family) {
	t.Helper()
	s := &FamilyScene{HeldScene: NewHeldSceneOf(t, Every(1, time.Second), &redistest.Options{ReadTimeout: time.Minute})}
	s.Rival = NewClient(t, s.Mini)
	f := NewFamilyOf(t, s.Rival, cfgs...)
	s.Sent = CountCommands(s.Redis)
	return s, f.SeenBy(s.Client)
}

// Claims returns claims to so many permits of each limiter.
func Claims(permits int64, limiters ...*rratelimiter.RateLimiter) []rratelimiter.Claim {
	claims := make([]rratelimiter.Claim, len(limiters))
	for i, l := range limiters {
		claims[i] = l.Claim(permits)
	}
	return claims
}
