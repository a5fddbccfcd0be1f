package hostile_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/fuzztest"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func FuzzState(f *testing.F)         { try(tryState).onMini(f) }
func FuzzStateOnServer(f *testing.F) { try(tryState).onServer(f) }

// usage is what a limiter's callers hold, all of it taken within one interval.
type usage struct {
	*place

	client *rratelimiter.Client

	l     *rratelimiter.RateLimiter
	keys  redisson.Keys
	holds int64 // granted less what was released; 0 at least
	rate  int64 // the highest since
}

// stored returns a number of the configuration, and whether it is one.
func (u *usage) stored(field string) (int64, bool) {
	n, err := strconv.ParseInt(u.rdb.HGet(u.ctx, u.keys.Config, field).Val(), 10, 64)
	return n, err == nil
}

// check compares what is held with the rate.
func (u *usage) check(what string) {
	rate, ok := u.stored("rate")
	interval, known := u.stored("interval")
	if !ok || !known || interval < time.Hour.Milliseconds()/2 {
		u.holds = 0 // without a rate nothing is granted; with a short one permits come back
		return
	}
	u.rate = max(u.rate, rate)
	if u.holds > u.rate {
		u.t.Errorf("%s: %d permits are held of %d", what, u.holds, u.rate)
	}
	free, err := u.l.AvailablePermits(u.ctx)
	checkError(u.t, "AvailablePermits", err)
	u.note("%s: %d held, %d free, %v", what, u.holds, free, err)
	if err == nil && free > max(0, u.rate-u.holds) {
		u.t.Errorf("%s: %d permits are held and %d free of %d", what, u.holds, free, u.rate)
	}
}

func tryState(t testing.TB, rdb *redis.Client, data []byte) {
	p, name := newPlace(t, rdb, data)
	const id = "client"
	u := &usage{place: p, keys: redisson.KeysOf(name, id)}
	defer p.end(append(u.keys.List(), redisson.KeysOf(limitertest.Besides(name), id).List()...)...)
	p.do("HSET", u.keys.Config, "rate", fuzztest.One(p.d, "10", "1", "1000", "-5", "9007199254740991"),
		"interval", fuzztest.One(p.d, "3600000", "7200000", "9007199254740991", "1000", "0"), "type", strconv.Itoa(p.d.N(2)))
	if p.d.N(4) == 3 {
		p.do("HDEL", u.keys.Config, fuzztest.One(p.d, "rate", "interval", "type"))
	}
	for _, key := range u.keys.List() {
		usual := "zset"
		switch key {
		case u.keys.Config:
			usual = "hash"
		case u.keys.Value, u.keys.ClientValue:
			usual = "string"
		}
		for range p.d.N(3) {
			p.fill(key, usual)
		}
	}
	opts := []rratelimiter.Option{rratelimiter.WithClientID(id)}
	if version := fuzztest.One(p.d, "", "", "3.27.2", "3.20.1", "3.16.8", "3.15.5", "3.12.3"); version != "" {
		opts = append(opts, rratelimiter.WithRedissonVersion(version))
	}
	client := rratelimiter.New(rdb, opts...)
	defer func() { _ = client.Close(p.ctx) }()
	var with []rratelimiter.LimiterOption
	if p.d.N(2) == 1 {
		with = append(with, rratelimiter.WithDefault(limitertest.Every(10, time.Hour)))
	}
	u.client, u.l = client, client.RateLimiter(name, with...)
	for range 1 + p.d.N(6) {
		u.use()
	}
}

// use makes a call.
func (u *usage) use() {
	n := 1 + int64(u.d.N(12))
	start := time.Now()
	what := fuzztest.One(u.d, "Take", "TryAcquire", "Take", "Release", "KeepState", "Migrate", "AvailablePermits", "Config", "TrySetRate", "SetRate",
		"Expire", "ClearExpire", "TTL", "Exists", "Delete", "Rename", "Peek", "Peek", "TakeUpTo", "TakeUpTo", "Reset")
	switch what {
	case "Take":
		d, err := u.l.Take(u.ctx, n)
		u.holds += u.checkDecision(d, err, n)
	case "TakeUpTo":
		taken, d, err := u.l.TakeUpTo(u.ctx, n)
		u.holds += u.checkUpTo(taken, d, err, n)
	case "Peek":
		u.peek(n)
	case "TryAcquire":
		ok, err := u.l.TryAcquire(u.ctx, n, 0)
		checkError(u.t, what, err)
		if u.note("tried %d: %v, %v", n, ok, err); ok {
			u.holds += n
		}
	case "Release":
		err := u.l.Release(u.ctx, n)
		u.note("released %d: %v", n, err)
		if checkError(u.t, what, err); err == nil {
			u.holds = max(0, u.holds-n)
		}
	case "KeepState":
		kind, _ := u.stored("type")
		cfg := rratelimiter.Config{Type: rratelimiter.RateType(kind & 1), Rate: n, Interval: time.Hour}
		err := u.l.SetRate(u.ctx, cfg, rratelimiter.KeepState())
		checkError(u.t, what, err)
		u.note("kept the state with %d: %v", n, err)
	case "Migrate":
		checkError(u.t, what, limitertest.Second(u.client.Migrate(u.ctx, u.l.Name())))
	default:
		err := limitertest.Operations[what](u.ctx, u.l)
		checkError(u.t, what, err)
		u.note("%s: %v", what, err)
		switch what {
		case "SetRate", "Delete", "Rename", "TrySetRate": // with one of its own the limiter starts anew
			u.holds, u.rate = 0, 0
		case "Reset":
			if err == nil {
				u.holds = 0
			}
		}
	}
	if took := time.Since(start); took > 2*time.Second {
		u.t.Errorf("%s took %v", what, took)
	}
	u.check(what)
}

// peek compares what Peek tells with what Take then answers.
func (u *usage) peek(n int64) {
	told, err := u.l.Peek(u.ctx, n)
	u.checkDecision(told, err, n)
	d, takeErr := u.l.Take(u.ctx, n)
	u.holds += u.checkDecision(d, takeErr, n)
	interval, _ := u.stored("interval")
	if err == nil && takeErr == nil && told.Granted != d.Granted && interval >= time.Hour.Milliseconds()/2 {
		u.t.Errorf("%d: Peek: %+v, Take: %+v", n, told, d)
	}
}

// Found by FuzzState.
func TestTheListOfAnsweredAttemptsIsNone(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Hour))
		require.NoError(t, rdb.HSet(t.Context(), l.Name(), "answered", " 5").Err())
		assert.Equal(t, 10, limitertest.Grants(t, l, 12))
	})
}

// Found by FuzzStateOnServer: the difference of the two numbers is none that Lua can
// count.
func TestAValueBelowZeroOfTheHighestRate(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(rratelimiter.MaxRate, time.Hour))
		require.NoError(t, rdb.Set(t.Context(), limitertest.KeysOf(l).Value, -128, 0).Err())
		limitertest.MustAcquire(t, l, 1)
		assert.Equal(t, int64(rratelimiter.MaxRate-1), limitertest.Available(t, l))
	})
}
