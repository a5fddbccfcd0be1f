package hostile_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/fuzztest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

func FuzzFixedWindowState(f *testing.F)         { try(tryFixedWindow).onMini(f) }
func FuzzFixedWindowStateOnServer(f *testing.F) { try(tryFixedWindow).onServer(f) }
func FuzzSlidingLogState(f *testing.F)          { try(trySlidingLog).onMini(f) }
func FuzzSlidingLogStateOnServer(f *testing.F)  { try(trySlidingLog).onServer(f) }
func FuzzTokenBucketState(f *testing.F)         { try(tryTokenBucket).onMini(f) }
func FuzzTokenBucketStateOnServer(f *testing.F) { try(tryTokenBucket).onServer(f) }

// takeAll takes permits a few times, gives some back, and compares what is held with
// the limit: none come back by themselves while that lasts.
func (p *place) takeAll(l limiter, key string, most int64) {
	held := int64(0)
	for range 1 + p.d.N(8) {
		n := fuzztest.One(p.d, 1, 1, 2, 5, 10, most, most+1, 0)
		start := time.Now()
		d, taken, giveBack, err := p.takeSome(l, key, n)
		if taken < 0 { // all has been given back
			held = 0
			continue
		}
		held += taken
		if held > most || err == nil && (d.Limit > most || d.Remaining > most-held) {
			p.t.Errorf("%d permits are held of %d: %+v", held, most, d)
		}
		if giveBack != nil && p.d.N(4) == 3 {
			err := giveBack(p.ctx)
			p.note("gave %d back: %v", n, err)
			checkError(p.t, "giving back", err)
			held = max(0, held-n)
		}
		if took := time.Since(start); took > 2*time.Second {
			p.t.Errorf("it took %v", took)
		}
		if p.d.N(8) == 7 {
			return
		}
	}
}

// takeSome takes permits by one of the calls that there are, or resets: then taken is
// below 0.
func (p *place) takeSome(l limiter, key string, n int64) (
	d limit.Decision, taken int64, giveBack func(context.Context) error, err error,
) {
	switch p.d.N(8) {
	case 5:
		taken, d, err = l.TakeUpTo(p.ctx, key, n)
		return d, p.checkUpTo(taken, d, err, n), nil, err
	case 6:
		err = l.Reset(p.ctx, key)
		p.note("reset: %v", err)
		checkError(p.t, "Reset", err)
		if err != nil {
			return d, 0, nil, err
		}
		return d, -1, nil, nil
	case 7:
		told, peekErr := l.Peek(p.ctx, key, n)
		p.checkDecision(told, peekErr, n)
		d, giveBack, err = l.TakeReturnable(p.ctx, key, n)
		if peekErr == nil && err == nil && told.Granted != d.Granted {
			p.t.Errorf("%d: Peek: %+v, Take: %+v", n, told, d)
		}
	default:
		d, giveBack, err = l.TakeReturnable(p.ctx, key, n)
	}
	return d, p.checkDecision(d, err, n), giveBack, err
}

func tryFixedWindow(t testing.TB, rdb *redis.Client, data []byte) {
	p, key := newPlace(t, rdb, data)
	defer p.end(key)
	most := fuzztest.One[int64](p.d, 10, 1, fixedwindow.MaxLimit)
	for range p.d.N(3) {
		p.fill(key, "string")
	}
	p.takeAll(fixedwindow.New(rdb, fixedwindow.Config{Limit: most, Window: time.Hour}), key, most)
}

func trySlidingLog(t testing.TB, rdb *redis.Client, data []byte) {
	p, key := newPlace(t, rdb, data)
	hash := key + "thresholds"
	defer p.end(key, hash)
	cfg := slidinglog.Config{Limit: 10, Window: time.Hour}
	for range p.d.N(4) {
		p.fill(key, "zset")
	}
	if p.d.N(2) == 1 {
		cfg.Thresholds = hash
		if p.d.N(2) == 1 {
			p.do("HSET", hash, key, fuzztest.One(p.d, "3", "0", "10", "-1", "1e1", "", "007", "9223372036854775807"))
		} else {
			p.fill(hash, "hash")
		}
	}
	l := slidinglog.New(rdb, cfg)
	most := cfg.Limit
	if threshold, err := l.Threshold(p.ctx, key); err == nil && cfg.Thresholds != "" {
		most = threshold
	}
	p.takeAll(l, key, most)
}

func tryTokenBucket(t testing.TB, rdb *redis.Client, data []byte) {
	p, key := newPlace(t, rdb, data)
	time1 := key + "_time"
	defer p.end(key, time1)
	cfg := tokenbucket.Config{Capacity: fuzztest.One[int64](p.d, 10, 1, 1<<40), Refill: 1, Interval: 24 * time.Hour, Borrow: int64(p.d.N(3))}
	for range p.d.N(3) {
		p.fill(key, "string")
	}
	switch p.d.N(3) {
	case 0:
		p.fill(time1, "string")
	case 1:
		p.do("SET", time1, p.now.Unix()-int64(p.d.N(256))*3600)
	}
	p.takeAll(tokenbucket.New(rdb, cfg), key, cfg.Capacity+cfg.Borrow)
}
