package linearizability_test

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

// Go lets an event happen to the limiter and to its model, and compares the
// answers. It tells whether the permits were looked at.
func (h *history) call(o op, before view) (touched bool, err error) {
	ctx, now := h.t.Context(), time.Now()
	m, l := h.model, h.limiters[o.Client]
	switch o.Name {
	case "sleep":
		time.Sleep(o.Span)
		return false, nil
	case "try":
		return h.acquire(o, before, l, 0)
	case "wait":
		return h.acquire(o, before, l, o.Span)
	case "default":
		if m.cfg.Rate == 0 && o.Permits <= o.Config.Rate {
			m.cfg = o.Config
			m.renew(now)
			before.exists, before.rate = true, o.Config.Rate
			m.pair(o.Client).inexact = m.pair(o.Client).inexact || before.hasValue || len(before.rows) > 0
			if m.pair(o.Client).inexact {
				l = h.clients[o.Client].RateLimiter("name", rratelimiter.WithDefault(o.Config))
				_, err := l.TryAcquire(ctx, o.Permits, 0)
				return true, err
			}
		} else if m.cfg.Rate == 0 {
			_, err := h.clients[o.Client].RateLimiter("name", rratelimiter.WithDefault(o.Config)).TryAcquire(ctx, o.Permits, 0)
			return false, expect(err, rratelimiter.ErrPermitsExceedRate)
		}
		return h.acquire(o, before, h.clients[o.Client].RateLimiter("name", rratelimiter.WithDefault(o.Config)), 0)
	case "take":
		return h.take(o, before, l)
	case "available":
		return h.available(o, before, l)
	case "release":
		err := l.Release(ctx, o.Permits)
		if m.cfg.Rate == 0 {
			return false, expect(err, rratelimiter.ErrNotInitialized)
		}
		m.release(o.Client, now, o.Permits)
		return true, err
	case "config":
		cfg, err := l.Config(ctx)
		if m.cfg.Rate == 0 {
			return false, expect(err, rratelimiter.ErrNotInitialized)
		}
		return false, same(cfg, m.cfg, err)
	case "ttl":
		ttl, expires, err := l.TTL(ctx)
		switch {
		case m.cfg.Rate == 0:
			return false, expect(err, rratelimiter.ErrNotInitialized)
		case m.ends.IsZero():
			return false, same(expires, false, err)
		}
		return false, same(ttl, m.ends.Sub(now), err)
	case "rename":
		err := l.Rename(ctx, "elsewhere")
		if m.cfg.Rate == 0 {
			return false, expect(err, rratelimiter.ErrNotInitialized)
		}
		if err == nil {
			err = h.clients[o.Client].RateLimiter("elsewhere").Rename(ctx, "name")
		}
		return false, err
	}
	return h.administer(o)
}

// administer is call for what sets rates and times to live, and for what others
// do to the keys.
func (h *history) administer(o op) (touched bool, err error) {
	ctx, now := h.t.Context(), time.Now()
	m, l := h.model, h.limiters[o.Client]
	there := m.cfg.Rate != 0
	switch o.Name {
	case "trySetRate":
		set, err := l.TrySetRate(ctx, o.Config)
		if !there {
			m.cfg = o.Config
			m.renew(now)
		}
		return false, same(set, !there, err)
	case "setRate":
		m.set(o.Config, now, o.Client)
		return true, l.SetRate(ctx, o.Config)
	case "setKeep":
		h.blurRunOut(o)
		m.update(o.Config, now, o.Client)
		return true, l.SetRate(ctx, o.Config, rratelimiter.KeepState())
	case "update":
		set, err := l.UpdateRate(ctx, o.Config)
		if there {
			m.set(o.Config, now, o.Client)
		}
		return there, same(set, there, err)
	case "updateKeep":
		h.blurRunOut(o)
		set, err := l.UpdateRate(ctx, o.Config, rratelimiter.KeepState())
		if there {
			m.update(o.Config, now, o.Client)
		}
		return there, same(set, there, err)
	case "expire", "expireAt":
		ttl := o.Span + 50*time.Millisecond
		var expires bool
		if o.Name == "expire" {
			expires, err = l.Expire(ctx, ttl)
		} else {
			expires, err = l.ExpireAt(ctx, now.Add(ttl))
		}
		if there {
			m.ends = now.Add(ttl)
			return false, same(expires, true, err)
		}
		return false, err
	case "clearExpire":
		had, err := l.ClearExpire(ctx)
		if !m.ends.IsZero() {
			err = same(had, true, err)
		}
		m.ends = time.Time{}
		return false, err
	case "delete":
		deleted, err := l.Delete(ctx)
		if there {
			err = same(deleted, true, err)
		}
		m.cfg, m.ends = rratelimiter.Config{}, time.Time{}
		m.forget(o.Client)
		return false, err
	}
	if there {
		h.intervene(o)
	}
	return false, nil
}

// blurRunOut gives up on exact figures where permits that have run out unseen
// would be in use by a longer interval.
func (h *history) blurRunOut(o op) {
	m := h.model
	if m.cfg.Rate == 0 || o.Config.Interval <= m.cfg.Interval {
		if m.cfg.Rate == 0 {
			for _, p := range []*modelPair{m.shared, m.own[0], m.own[1]} {
				p.inexact = true
			}
		}
		return
	}
	for _, row := range h.look(o.Client).rows {
		if !row.at.Add(m.cfg.Interval).After(time.Now()) {
			m.pair(o.Client).inexact = true
		}
	}
}

func (h *history) acquire(o op, before view, l *rratelimiter.RateLimiter, timeout time.Duration) (touched bool, err error) {
	m, start := h.model, time.Now()
	granted, err := l.TryAcquire(h.t.Context(), o.Permits, timeout)
	switch {
	case m.cfg.Rate == 0:
		return false, expect(err, rratelimiter.ErrNotInitialized)
	case o.Permits > m.cfg.Rate:
		return false, expect(err, rratelimiter.ErrPermitsExceedRate)
	}
	p, cfg := m.pair(o.Client), m.cfg
	if !p.inexact {
		want, gone, at := m.acquire(o.Client, start, o.Permits, timeout)
		if gone {
			return false, expect(err, rratelimiter.ErrNotInitialized)
		}
		if err := same(granted, want, err); err != nil {
			return false, err
		}
		if granted && m.free(p, at) < 0 {
			return false, errors.New("more granted than the rate")
		}
		m.expire(time.Now())
		// Times to live have gone on since the last try.
		looked := granted || time.Now().Equal(start)
		return looked && m.cfg.Rate != 0, same(time.Since(start), at.Sub(start), nil)
	}
	if elapsed := time.Since(start); elapsed > timeout {
		return false, fmt.Errorf("it took %v", elapsed)
	}
	if timeout > 0 {
		// The keep-alive time starts anew with each try, the limiter may expire
		// meanwhile: what Redis holds tells.
		ttl := h.rdb.PTTL(h.t.Context(), "name").Val()
		m.ends = time.Time{}
		switch {
		case ttl == -2:
			m.ends = time.Now()
			m.expire(time.Now())
			if errors.Is(err, rratelimiter.ErrNotInitialized) {
				err = nil
			}
			return false, err
		case ttl > 0:
			m.ends = time.Now().Add(ttl)
		}
		return granted, err
	}
	m.renew(start)
	if err != nil {
		return false, err
	}
	before.interval = cfg.Interval
	least, most := before.bounds(start)
	if granted && o.Permits > most || !granted && o.Permits <= least {
		return false, fmt.Errorf("granted: %v, where %d to %d are free", granted, least, most)
	}
	return true, nil
}

func (h *history) take(o op, before view, l *rratelimiter.RateLimiter) (touched bool, err error) {
	m, now := h.model, time.Now()
	d, err := l.Take(h.t.Context(), o.Permits)
	switch {
	case m.cfg.Rate == 0:
		return false, expect(err, rratelimiter.ErrNotInitialized)
	case o.Permits > m.cfg.Rate:
		return false, expect(err, rratelimiter.ErrPermitsExceedRate)
	case err != nil:
		return false, err
	}
	p := m.pair(o.Client)
	if p.inexact {
		m.renew(now)
		least, most := before.bounds(now)
		switch {
		case d.Granted && o.Permits > most || !d.Granted && o.Permits <= least:
			return false, fmt.Errorf("%+v, where %d to %d are free", d, least, most)
		case d.Granted != (d.RetryAfter == 0) || d.RetryAfter > m.cfg.Interval || d.ResetAfter > m.cfg.Interval:
			return false, fmt.Errorf("%+v is not to be had in %v", d, m.cfg.Interval)
		}
		return true, nil
	}
	retry := m.ready(p, now, o.Permits).Sub(now)
	granted, _, _ := m.acquire(o.Client, now, o.Permits, 0)
	switch {
	case d.Granted != granted, d.Limit != m.cfg.Rate, d.Remaining != max(0, m.free(p, now)),
		d.RetryAfter != retry, d.ResetAfter != m.full(p, now).Sub(now):
		return false, fmt.Errorf("%+v, where %d are free, %d were asked for and %v is the wait",
			d, m.free(p, now), o.Permits, retry)
	}
	return true, nil
}

func (h *history) available(o op, before view, l *rratelimiter.RateLimiter) (touched bool, err error) {
	m, now := h.model, time.Now()
	free, err := l.AvailablePermits(h.t.Context())
	if m.cfg.Rate == 0 {
		return false, expect(err, rratelimiter.ErrNotInitialized)
	}
	_, want := before.bounds(now)
	if err := same(free, max(0, want), err); err != nil {
		return false, fmt.Errorf("by what Redis holds: %w", err)
	}
	if p := m.pair(o.Client); !p.inexact {
		err = same(free, max(0, m.free(p, now)), nil)
	}
	return true, err
}

// intervene does what Redisson, a lost key or a strange hand may do.
func (h *history) intervene(o op) {
	t, ctx := h.t, h.t.Context()
	m, peer := h.model, h.java[o.Client]
	set := redisson.KeysOf("name", strconv.Itoa(o.Client))
	valueKey, permitsKey := set.Value, set.Permits
	if m.cfg.Type == rratelimiter.PerClient {
		valueKey, permitsKey = set.ClientValue, set.ClientPermits
	}
	there := h.rdb.Exists(ctx, valueKey).Val() == 1
	m.pair(o.Client).inexact = true
	var err error
	switch o.Name {
	case "loseValue":
		err = h.rdb.Del(ctx, valueKey).Err()
	case "loseSet":
		err = h.rdb.Del(ctx, permitsKey).Err()
	case "loseConfig":
		require.NoError(t, h.rdb.Persist(ctx, valueKey).Err())
		require.NoError(t, h.rdb.Persist(ctx, permitsKey).Err())
		err = h.rdb.Del(ctx, set.Config).Err()
		m.cfg, m.ends = rratelimiter.Config{}, time.Time{}
		m.shared.inexact, m.own[0].inexact, m.own[1].inexact = true, true, true
	case "raise":
		if there {
			err = h.rdb.IncrBy(ctx, valueKey, o.Permits).Err()
		}
	case "leak":
		if there {
			err = h.rdb.DecrBy(ctx, valueKey, o.Permits).Err()
		}
	case "redate":
		members := h.rdb.ZRange(ctx, permitsKey, 0, -1).Val()
		if len(members) > 0 {
			score := float64(limitertest.ServerNow(t, h.rdb) + time.Minute.Milliseconds())
			err = h.rdb.ZAdd(ctx, permitsKey, redis.Z{Score: score, Member: members[int(o.Permits)%len(members)]}).Err()
		}
	case "persist":
		err = h.rdb.Persist(ctx, valueKey).Err()
	case "remake":
		m.cfg.Rate = o.Config.Rate
		m.shared.inexact, m.own[0].inexact, m.own[1].inexact = true, true, true
		err = h.rdb.HSet(ctx, set.Config, "rate", o.Config.Rate).Err()
	case "javaRelease":
		peer.Release(t, o.Permits)
		m.renew(time.Now())
	case "javaAvailable":
		peer.AvailablePermits(t)
	default:
		peer.Fast = map[string]time.Duration{"javaFast": o.Span, "javaSlow": -o.Span}[o.Name]
		permits := min(o.Permits, m.cfg.Rate)
		member := limitertest.NewMember(t, codec.LayoutD2, uint32(permits))
		for range map[string]int{"javaTwice": 1}[o.Name] + 1 {
			_, _, _ = peer.Resend(t, permits, member)
		}
		m.renew(time.Now())
	}
	require.NoError(t, err)
}

// expect checks that an error is the one that was to be expected.
func expect(err, want error) error {
	if !errors.Is(err, want) {
		return fmt.Errorf("got error %w, want %w", err, want)
	}
	return nil
}

// same checks an answer against the model's.
func same[T comparable](got, want T, err error) error {
	if err == nil && got != want {
		err = fmt.Errorf("got %v, want %v", got, want)
	}
	return err
}
