package linearizability_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// TestHistoriesOfAll checks several limiters against as many models: random
// calls for all of them and for each, by two clients in turn.
func TestHistoriesOfAll(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		cfgs := rapid.SliceOfN(rapid.Custom(drawConfig), 2, 4).Draw(rt, "configs")
		ops := rapid.SliceOfN(rapid.Custom(drawBundleOp), 1, 40).Draw(rt, "ops")
		var problem error
		synctest.Test(t, func(t *testing.T) { problem = newBundleHistory(t, cfgs).run(ops) })
		if problem != nil {
			rt.Fatal(problem)
		}
	})
}

func drawConfig(t *rapid.T) rratelimiter.Config {
	return drawOp(t).Config
}

// bundleOp is one event; Limiter is the one that it is about, where it is about
// one.
type bundleOp struct {
	Name    string
	Client  int
	Limiter int
	Permits int64
	Span    time.Duration
	Config  rratelimiter.Config
}

func (o bundleOp) String() string {
	return fmt.Sprintf("{%s client=%d limiter=%d permits=%d span=%v config=%+v}", o.Name, o.Client, o.Limiter, o.Permits, o.Span, o.Config)
}

func drawBundleOp(t *rapid.T) bundleOp {
	return bundleOp{
		Name: rapid.SampledFrom([]string{
			"all", "all", "all", "all", "all", "all by default", "wait", "wait", "two", "try", "release", "sleep", "sleep",
			"look", "set", "update", "delete", "lose value", "lose set",
		}).Draw(t, "name"),
		Client:  rapid.IntRange(0, 1).Draw(t, "client"),
		Limiter: rapid.IntRange(0, 3).Draw(t, "limiter"),
		Permits: rapid.Int64Range(1, 7).Draw(t, "permits"),
		Span:    time.Duration(rapid.Int64Range(1, 15).Draw(t, "span")) * 100 * time.Millisecond,
		Config:  drawConfig(t),
	}
}

// bundleHistory is some limiters and their models.
type bundleHistory struct {
	t        *testing.T
	rdb      *redis.Client
	models   []*model
	families [2]*limitertest.Family
}

func newBundleHistory(t *testing.T, cfgs []rratelimiter.Config) *bundleHistory {
	rdb, m := redistest.Mini(t)
	h := &bundleHistory{t: t, rdb: rdb}
	for i := range h.families {
		client := limitertest.NewClient(t, redistest.MiniClient(t, m, nil), rratelimiter.WithClientID(strconv.Itoa(i)))
		h.families[i] = &limitertest.Family{Client: client}
		for n := range cfgs {
			h.families[i].Limiters = append(h.families[i].Limiters, client.RateLimiter(fmt.Sprintf("{x}%d", n)))
		}
	}
	for i, cfg := range cfgs {
		h.models = append(h.models, newModel())
		h.models[i].set(cfg, time.Now(), 0)
		limitertest.MustTrySetRate(t, h.families[0].Limiters[i], cfg)
		*h.models[i].own[1] = modelPair{}
	}
	return h
}

func (h *bundleHistory) run(ops []bundleOp) error {
	for i, o := range ops {
		o.Limiter %= len(h.models)
		if err := h.do(o); err != nil {
			return fmt.Errorf("op %d, %v: %w", i, o, err)
		}
	}
	return h.look()
}

func (h *bundleHistory) do(o bundleOp) error {
	ctx, now := h.t.Context(), time.Now()
	f, m := h.families[o.Client], h.models[o.Limiter]
	l := f.Limiters[o.Limiter]
	m.expire(now)
	switch o.Name {
	case "all":
		return h.all(o, f.Limiters, h.models, 0, rratelimiter.Config{})
	case "all by default":
		// Handles that would give any of the limiters this rate.
		own := f.SeenBy(f.Client, rratelimiter.WithDefault(o.Config))
		for _, limiter := range own.Limiters {
			limitertest.OnPurpose(h.t, h.rdb, limiter.Name())
		}
		return h.all(o, own.Limiters, h.models, 0, o.Config)
	case "wait":
		return h.all(o, f.Limiters, h.models, o.Span, rratelimiter.Config{})
	case "two":
		other := (o.Limiter + 1) % len(h.models)
		return h.all(o, []*rratelimiter.RateLimiter{l, f.Limiters[other]}, []*model{m, h.models[other]}, 0, rratelimiter.Config{})
	case "try":
		return h.all(o, []*rratelimiter.RateLimiter{l}, []*model{m}, 0, rratelimiter.Config{})
	case "release":
		err := l.Release(ctx, o.Permits)
		if m.cfg.Rate == 0 {
			return expect(err, rratelimiter.ErrNotInitialized)
		}
		m.release(o.Client, now, o.Permits)
		return err
	case "look":
		return h.look()
	case "sleep":
		time.Sleep(o.Span)
	case "set":
		m.set(o.Config, now, o.Client)
		*m.own[1-o.Client] = modelPair{}
		h.clear(o)
		return l.SetRate(ctx, o.Config)
	case "update":
		if m.cfg.Rate == 0 || m.cfg.Type != o.Config.Type || o.Config.Type == rratelimiter.PerClient {
			return nil
		}
		// What has run out and is still in the set counts again by a longer interval.
		if err := h.look(); err != nil {
			return err
		}
		m.update(o.Config, now, o.Client)
		return l.SetRate(ctx, o.Config, rratelimiter.KeepState())
	case "delete":
		*m = *newModel()
		h.clear(o)
		_, err := l.Delete(ctx)
		return err
	case "lose value":
		return h.rdb.Del(ctx, limitertest.KeysOf(l).Value).Err()
	case "lose set":
		m.shared.grants = nil
		return h.rdb.Del(ctx, limitertest.KeysOf(l).Value, limitertest.KeysOf(l).Permits).Err()
	}
	return nil
}

// clear removes what the other client keeps of a limiter that begins anew.
func (h *bundleHistory) clear(o bundleOp) {
	_, err := h.families[1-o.Client].Limiters[o.Limiter].Delete(h.t.Context())
	require.NoError(h.t, err)
}

// all compares a TryAcquireAll with what the models make of it. fallback is the
// configuration that the handles bring along, if any.
func (h *bundleHistory) all(o bundleOp, limiters []*rratelimiter.RateLimiter, models []*model, timeout time.Duration, fallback rratelimiter.Config) error {
	now := time.Now()
	granted, at, problem := bundleAcquire(models, o.Client, now, o.Permits, timeout, fallback)
	ok, err := h.families[o.Client].Client.TryAcquireAll(h.t.Context(), o.Permits, timeout, limiters...)
	if problem != nil {
		return expect(err, problem)
	}
	switch {
	case err != nil:
		return err
	case ok != granted:
		return fmt.Errorf("granted: %v, not %v", ok, granted)
	case !time.Now().Equal(at):
		return fmt.Errorf("the answer came after %v, not %v", time.Since(now), at.Sub(now))
	}
	return nil
}

func bundleAcquire(models []*model, client int, now time.Time, permits int64, timeout time.Duration, fallback rratelimiter.Config,
) (granted bool, at time.Time, problem error) {
	deadline := now.Add(timeout)
	for {
		for _, m := range models {
			m.expire(now)
			cfg := m.cfg
			if cfg.Rate == 0 {
				cfg = fallback
			}
			switch {
			case cfg.Rate == 0:
				return false, now, rratelimiter.ErrNotInitialized
			case permits > cfg.Rate:
				return false, now, rratelimiter.ErrPermitsExceedRate
			}
		}
		at = now
		for _, m := range models {
			if m.cfg.Rate == 0 {
				*m = *newModel()
				m.cfg = fallback
			}
			m.renew(now)
			if ready := m.ready(m.pair(client), now, permits); ready.After(at) {
				at = ready
			}
		}
		switch {
		case at.Equal(now):
			for _, m := range models {
				p := m.pair(client)
				p.grants = append(p.grants, modelGrant{at: now, permits: permits, client: client})
			}
			return true, now, nil
		case upkeep(models, now).Before(at) && upkeep(models, now).Before(deadline):
			at = upkeep(models, now)
		case at.After(deadline):
			return false, deadline, nil
		}
		now = at
	}
}

// upkeep returns when one who waits asks again to keep all the limiters alive.
func upkeep(models []*model, now time.Time) time.Time {
	next := now.Add(limitertest.Forever)
	for _, m := range models {
		if at := m.upkeep(now); at.Before(next) {
			next = at
		}
	}
	return next
}

// look compares what is free.
func (h *bundleHistory) look() error {
	for i, m := range h.models {
		now := time.Now()
		m.expire(now)
		if m.cfg.Rate == 0 {
			continue
		}
		for client, f := range h.families {
			want := max(0, m.free(m.pair(client), now))
			got, err := f.Limiters[i].AvailablePermits(h.t.Context())
			if err != nil {
				return err
			}
			if got != want {
				return fmt.Errorf("limiter %d has %d free permits for client %d, not %d", i, got, client, want)
			}
			value, ok := limitertest.StoredValue(h.t, h.rdb, limitertest.KeysOf(f.Limiters[i]).Value)
			if ok && m.cfg.Type == rratelimiter.Overall && value+limitertest.InUse(h.t, h.rdb, limitertest.KeysOf(f.Limiters[i]).Permits) != m.cfg.Rate {
				return errors.New("free permits and those in use are not the rate")
			}
		}
	}
	return nil
}
