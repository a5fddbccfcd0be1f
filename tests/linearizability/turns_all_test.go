package linearizability_test

import (
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/model"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// TestHistoriesOfAll checks several limiters against the model: random
// calls for all of them and for each, by two clients in turn.
func TestHistoriesOfAll(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		cfgs := rapid.SliceOfN(rapid.Custom(drawConfig), 2, 4).Draw(rt, "configs")
		ops := rapid.SliceOfN(rapid.Custom(drawBundleTurn), 1, 40).Draw(rt, "ops")
		var problem error
		synctest.Test(t, func(t *testing.T) { problem = newBundle(t, cfgs).run(ops) })
		if problem != nil {
			rt.Fatal(problem)
		}
	})
}

// bundleTurn is one event; Limiter is the one that it is about, if it is about one.
type bundleTurn struct {
	turn

	Limiter int
}

func drawBundleTurn(t *rapid.T) bundleTurn {
	o := bundleTurn{drawOp(t), rapid.IntRange(0, 3).Draw(t, "limiter")}
	o.Do = rapid.SampledFrom([]string{
		"all", "all", "all", "all", "all", "all by default", "wait", "wait", "two", "try", "release", "sleep", "sleep",
		"look", "setRate", "update", "delete", "lose value", "lose set",
	}).Draw(t, "event")
	o.Permits, o.Keep = rapid.Int64Range(1, 7).Draw(t, "fewer permits"), false
	return o
}

// bundle is some limiters, and what Redis is to hold of them.
type bundle struct {
	t        *testing.T
	rdb      *redis.Client
	module   *model.Module
	who      [2]model.Client
	states   []*model.State
	families [2]*limitertest.Family
}

func newBundle(t *testing.T, cfgs []rratelimiter.Config) *bundle {
	rdb, m := redistest.Mini(t)
	h := &bundle{t: t, rdb: rdb, module: model.Beside(model.ReleaseOf("4.7.0"))}
	for i := range h.families {
		id := strconv.Itoa(i)
		h.who[i] = model.Client{Number: i + 1, ID: id, Layout: codec.LayoutD2}
		client := limitertest.NewClient(t, redistest.MiniClient(t, m, nil), rratelimiter.WithClientID(id))
		h.families[i] = &limitertest.Family{Client: client}
		for n := range cfgs {
			h.families[i].Limiters = append(h.families[i].Limiters, client.RateLimiter(fmt.Sprintf("{x}%d", n)))
		}
	}
	for i, cfg := range cfgs {
		h.states = append(h.states, model.NewState("0", "1"))
		require.NoError(t, h.apply(0, i, model.Op{Do: "trySetRate", Rate: model.RateOf(cfg)}))
	}
	return h
}

func (h *bundle) run(ops []bundleTurn) error {
	for i, o := range ops {
		o.Limiter %= len(h.states)
		if err := h.do(o); err != nil {
			return fmt.Errorf("op %d, %v of limiter %d: %w", i, o, o.Limiter, err)
		}
	}
	return h.look()
}

// calls returns a client's of these limiters now.
func (h *bundle) calls(client int, now int64, limiters ...int) (all []*model.Call) {
	for _, i := range limiters {
		h.states[i].ExpireKeys(now)
		all = append(all, &model.Call{State: h.states[i], Who: h.who[client], Now: now})
	}
	return all
}

// apply has an operation done, by the model too, and compares the answers.
func (h *bundle) apply(client, limiter int, op model.Op) error {
	now, f := time.Now().UnixMilli(), h.families[client]
	want, _ := h.module.May(op)[0](h.calls(client, now, limiter)[0])
	if got := model.Do(h.t.Context(), f.Client, f.Limiters[limiter], op, now); got.Text != want.Text {
		return fmt.Errorf("%s of client %d says %v, not %v", op.Do, client, got, want)
	}
	return nil
}

func (h *bundle) do(o bundleTurn) error {
	f, every := h.families[o.Client], []int{0, 1, 2, 3}[:len(h.states)]
	l, s := f.Limiters[o.Limiter], h.states[o.Limiter]
	s.ExpireKeys(time.Now().UnixMilli())
	switch o.Do {
	case "all":
		return h.all(o, f.Limiters, every, 0, nil)
	case "all by default":
		// Handles that would give any of the limiters this rate.
		own := f.SeenBy(f.Client, rratelimiter.WithDefault(o.Rate.Public()))
		for _, limiter := range own.Limiters {
			limitertest.OnPurpose(h.t, h.rdb, limiter.Name())
		}
		return h.all(o, own.Limiters, every, 0, o.Rate)
	case "wait":
		return h.all(o, f.Limiters, every, o.Span, nil)
	case "two":
		other := (o.Limiter + 1) % len(h.states)
		return h.all(o, []*rratelimiter.RateLimiter{l, f.Limiters[other]}, []int{o.Limiter, other}, 0, nil)
	case "try":
		return h.all(o, []*rratelimiter.RateLimiter{l}, []int{o.Limiter}, 0, nil)
	case "release", "setRate", "delete":
		if err := h.apply(o.Client, o.Limiter, o.Op); err != nil || o.Do == "release" {
			return err
		}
		return h.forget(o)
	case "look":
		return h.look()
	case "sleep":
		time.Sleep(o.Span)
	case "update":
		if s.Config == nil || s.PerClient() || o.Rate.Type != s.Config["type"] {
			return nil
		}
		// What has run out and is still in the set counts again by a longer interval.
		if err := h.look(); err != nil {
			return err
		}
		o.Do, o.Keep = "setRate", true
		return h.apply(o.Client, o.Limiter, o.Op)
	case "lose value":
		s.Pairs[""].DelValue()
		return h.rdb.Del(h.t.Context(), limitertest.KeysOf(l).Value).Err()
	case "lose set":
		s.Pairs[""].Del()
		return h.rdb.Del(h.t.Context(), limitertest.KeysOf(l).Value, limitertest.KeysOf(l).Permits).Err()
	}
	return nil
}

// forget removes what the other client keeps of a limiter that begins anew.
func (h *bundle) forget(o bundleTurn) error {
	other, was := 1-o.Client, *h.states[o.Limiter]
	err := h.apply(other, o.Limiter, model.Op{Do: "delete"})
	if err == nil && o.Do == "setRate" && was.Config != nil {
		err = h.apply(o.Client, o.Limiter, o.Op)
	}
	return err
}

// all compares a TryAcquireAll with what the model makes of it. fallback is the
// configuration that the handles bring along, if any.
func (h *bundle) all(o bundleTurn, limiters []*rratelimiter.RateLimiter, which []int, timeout time.Duration, fallback *model.Rate) error {
	now := time.Now()
	want, at := h.acquire(o, which, now.UnixMilli(), timeout.Milliseconds(), fallback)
	got := model.Says(h.families[o.Client].Client.TryAcquireAll(h.t.Context(), o.Permits, timeout, limiters...))
	if after := time.Since(now).Milliseconds(); got.Text != want.Text || after != at-now.UnixMilli() {
		return fmt.Errorf("the answer is %v after %d ms, not %v after %d ms", got, after, want, at-now.UnixMilli())
	}
	return nil
}

// acquire returns the model's answer, and when it is there.
func (h *bundle) acquire(o bundleTurn, which []int, now, timeout int64, fallback *model.Rate) (answer model.Answer, at int64) {
	deadline := now + timeout
	for {
		calls := h.calls(o.Client, now, which...)
		if answer = h.module.AcquireAll(calls, o.Permits, fallback); answer.Text != "false" {
			return answer, now
		}
		// One who waits asks again when all may grant, and to keep them alive.
		ready, upkeep := now, deadline
		for _, c := range calls {
			ready = max(ready, h.module.Ready(c, o.Permits))
			if half := c.KeepAlive() / 2; half > 0 {
				upkeep = min(upkeep, now+half)
			}
		}
		if upkeep < ready && upkeep < deadline {
			ready = upkeep
		}
		if ready > deadline {
			return answer, deadline
		}
		now = ready
	}
}

// look compares what is free.
func (h *bundle) look() error {
	for i, s := range h.states {
		for client, f := range h.families {
			if err := h.apply(client, i, model.Op{Do: "availablePermits"}); err != nil {
				return fmt.Errorf("limiter %d: %w", i, err)
			}
			read, _, err := model.Read(h.t.Context(), h.rdb, f.Limiters[i].Name())
			require.NoError(h.t, err)
			if why := read.Pairs[""].Broken(s.Rate(), true); why != "" && s.Config != nil && !s.PerClient() {
				return fmt.Errorf("limiter %d: %s\n%v", i, why, read)
			}
		}
	}
	return nil
}
