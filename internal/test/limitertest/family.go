package limitertest

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A Family is some limiters whose names share a hash tag, as handles of one
// Client.
type Family struct {
	Client   *rratelimiter.Client
	Limiters []*rratelimiter.RateLimiter
	Tag      string
}

// NewFamilyOf returns a Client's limiters of those configurations; the zero Config
// stands for a limiter without a rate.
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
	ok, err := f.Client.TryAcquireAll(t.Context(), permits, 0, f.Limiters...)
	require.NoError(t, err)
	return ok
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
func (f *Family) State(t testing.TB, rdb redis.UniversalClient) map[string]KeyState {
	t.Helper()
	all := map[string]KeyState{}
	for _, l := range f.Limiters {
		maps.Copy(all, ReadState(t, rdb, l.Name()))
	}
	return all
}

// CheckSums checks that free permits and those in use are the rate, of each
// limiter of type Overall.
func (f *Family) CheckSums(t testing.TB, rdb redis.UniversalClient, rates ...int64) {
	t.Helper()
	for i, l := range f.Limiters {
		value, ok := StoredValue(t, rdb, KeysOf(l).Value)
		if ok {
			assert.Equal(t, rates[i], value+InUse(t, rdb, KeysOf(l).Permits), "free and in use of %s", l.Name())
		}
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
	s := &FamilyScene{HeldScene: NewHeldSceneOf(t, Every(1, time.Second), &redis.Options{ReadTimeout: time.Minute})}
	s.Rival = NewClient(t, s.Mini)
	f := NewFamilyOf(t, s.Rival, cfgs...)
	s.Sent = CountCommands(s.Redis)
	return s, f.SeenBy(s.Client)
}

// TryAll is TryAcquireAll beside the test.
func (s *FamilyScene) TryAll(ctx context.Context, f *Family, permits int64, timeout time.Duration) *Caller {
	return s.Go(func() (bool, error) { return f.Client.TryAcquireAll(ctx, permits, timeout, f.Limiters...) })
}

// CheckAll checks what is in use of each, and that all else is free.
func (s *FamilyScene) CheckAll(t *testing.T, f *Family, rates, inUse []int64) {
	t.Helper()
	synctest.Wait()
	for i, l := range f.Limiters {
		assert.Equal(t, inUse[i], InUse(t, s.Mini, KeysOf(l).Permits), "permits in use of %s", l.Name())
		if value, ok := StoredValue(t, s.Mini, KeysOf(l).Value); ok {
			assert.Equal(t, rates[i]-inUse[i], value, "free permits of %s", l.Name())
		}
	}
}
