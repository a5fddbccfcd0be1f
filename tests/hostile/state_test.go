package hostile_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
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
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// answered are the errors that callers may get from a server that works.
var answered = []error{
	rratelimiter.ErrNotInitialized, rratelimiter.ErrPermitsExceedRate, rratelimiter.ErrInvalidPermits, rratelimiter.ErrInvalidConfig,
	rratelimiter.ErrCorrupt, rratelimiter.ErrUnsupported,
}

// leaks is what stands in errors of a script that went wrong itself.
var leaks = []string{"attempt to", "bad argument", "user_script", "<string>", "unexpected answer", "stack", "ERR ", "panic"}

var names atomic.Int64

// place is where a fuzz target works: a limiter of its own on a shared server. Its callers hold what they took within one interval.
type place struct {
	t   *testing.T
	ctx context.Context
	rdb redistest.Client
	d   *fuzztest.Draw
	now time.Time // the server's
	did []string

	mini bool // on miniredis, whose Lua reads no "-inf": Redis' tonumber does

	l     *rratelimiter.RateLimiter
	keys  redisson.Keys
	holds int64 // granted less released; at least 0
	rate  int64 // the highest since
}

// went notes how a call went, and checks its error; it reports whether there was none.
func (p *place) went(what string, err error) bool {
	p.t.Helper()
	if p.note("%s: %v", what, err); err == nil {
		return true
	}
	known := slices.ContainsFunc(answered, func(of error) bool { return errors.Is(err, of) })
	// Of a key of the wrong type ErrCorrupt quotes what Redis said.
	quotes := errors.Is(err, rratelimiter.ErrCorrupt) && strings.Contains(err.Error(), "WRONGTYPE")
	if !known || !quotes && slices.ContainsFunc(leaks, func(leak string) bool { return strings.Contains(err.Error(), leak) }) {
		p.t.Errorf("%s: %v", what, err)
	}
	return false
}

func (p *place) note(format string, args ...any) { p.did = append(p.did, fmt.Sprintf(format, args...)) }

// do sends a command of which nothing is asked: it may well be none that Redis takes.
func (p *place) do(args ...any) {
	p.note("%q", args)
	_ = p.rdb.Do(p.ctx, args...).Err()
}

// number draws text where a number should be.
func (p *place) number() string {
	if p.d.N(3) > 0 {
		return strconv.FormatInt(p.d.Int(), 10)
	}
	return fuzztest.One(p.d, "1e3", "0x10", "", "5.5", " 5", "007", "+5", "-0", "nan", "inf", "9007199254740991", "9007199254740992", "1e308",
		"99999999999999999999", "-9007199254740991", "5\x00", "abc", strings.Repeat("9", 400))
}

func (p *place) score() string {
	ms := p.now.UnixMilli()
	switch p.d.N(8) {
	case 0:
		score := fuzztest.One(p.d, "inf", "-inf", "0", "-1", "1e300", "9007199254740993", "0.5")
		if p.mini && score == "-inf" {
			return "-1e300"
		}
		return score
	case 1:
		return strconv.FormatInt(ms+int64(p.d.N(256))*time.Minute.Milliseconds(), 10)
	case 2:
		return strconv.FormatInt(ms, 10) + ".5"
	}
	return strconv.FormatInt(ms-int64(p.d.N(256))*30_000, 10)
}

func (p *place) member() string {
	layout := fuzztest.One(p.d, "\x10idididididididid", "\x08idididid", "\x08\x00\x00\x00\x00\x00\x00\x00idididid", "idid", "\x03abc", "\x00", "\xff")
	permits := string([]byte{byte(p.d.N(256)), fuzztest.One[byte](p.d, 0, 0, 0, 1, 255), 0, fuzztest.One[byte](p.d, 0, 0, 0, 255)})
	id := []byte(layout + permits)
	if len(id) > 6 {
		id[len(id)-6] = byte(p.d.N(256))
	}
	switch p.d.N(8) {
	case 0:
		return string(id[:p.d.N(len(id)+1)])
	case 1:
		return p.d.Text(30)
	}
	return string(id)
}

// fill puts anything under a key; usual is the type that a limiter keeps there.
func (p *place) fill(key, usual string) {
	kind := usual
	if p.d.N(10) == 9 {
		kind = fuzztest.One(p.d, "string", "hash", "list", "set", "zset", "none")
	}
	switch kind {
	case "string":
		p.do("SET", key, p.number())
	case "hash":
		p.do("HSET", key, fuzztest.One(p.d, "rate", "interval", "type", "keepAliveTime", "answered", "x"), p.number())
	case "list":
		p.do("RPUSH", key, p.number())
	case "set":
		p.do("SADD", key, p.member())
	case "zset":
		for range p.d.N(6) {
			p.do("ZADD", key, p.score(), p.member())
		}
	}
	if p.d.N(6) == 5 {
		p.do("PEXPIRE", key, fuzztest.One(p.d, "600000", "3600000", "86400000", "4611686018427387904"))
	}
}

func FuzzState(f *testing.F) {
	rdb, _ := redistest.Mini(f)
	fuzzState(f, rdb, true)
}

func FuzzStateOnServer(f *testing.F) {
	redistest.SkipShort(f, "a real redis-server")
	fuzzState(f, redistest.StartRedis(f).Client(f, nil), false)
}

// fuzzState begins with inputs in which much happens.
func fuzzState(f *testing.F, rdb redistest.Client, mini bool) {
	f.Helper()
	f.Add([]byte{})
	for i := range byte(24) {
		data := make([]byte, 90)
		for j := range byte(90) {
			data[j] = i*j*7 + j*j + i
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		now := limitertest.Must(rdb.Time(t.Context()).Result())(t)
		p := &place{t: t, ctx: t.Context(), rdb: rdb, d: fuzztest.NewDraw(data), now: now, mini: mini}
		p.tryState("hostile" + strconv.FormatInt(names.Add(1), 10))
	})
}

// checkDecision looks at a decision, and returns the permits granted.
func (p *place) checkDecision(d limit.Decision, err error, n int64) int64 {
	p.went(fmt.Sprintf("taking %d: %+v", n, d), err)
	if d.Granted && (err != nil || d.Remaining < 0 || d.Remaining > d.Limit) || d.RetryAfter < 0 || d.ResetAfter < 0 || d.Remaining < 0 {
		p.t.Errorf("%d: %+v, %v", n, d, err)
	}
	if !d.Granted {
		return 0
	}
	return n
}

// stored returns a number of the configuration, and whether it is one.
func (p *place) stored(field string) (int64, bool) {
	n, err := strconv.ParseInt(p.rdb.HGet(p.ctx, p.keys.Config, field).Val(), 10, 64)
	return n, err == nil
}

func (p *place) check(what string) {
	rate, ok := p.stored("rate")
	interval, known := p.stored("interval")
	if !ok || !known || interval < time.Hour.Milliseconds()/2 {
		p.holds = 0 // without a rate nothing is granted; with a short one permits come back
		return
	}
	p.rate = max(p.rate, rate)
	if p.holds > p.rate {
		p.t.Errorf("%s: %d permits are held of %d", what, p.holds, p.rate)
	}
	free, err := p.l.AvailablePermits(p.ctx)
	if p.went(fmt.Sprint(p.holds, " held, ", free, " free"), err) && free > max(0, p.rate-p.holds) {
		p.t.Errorf("%s: %d permits are held and %d free of %d", what, p.holds, free, p.rate)
	}
}

func (p *place) tryState(name string) {
	const id = "client"
	p.keys = redisson.KeysOf(name, id)
	defer func() {
		if p.t.Failed() {
			p.t.Log(strings.Join(p.did, "\n"))
		}
		p.rdb.Del(p.ctx, append(p.keys.List(), redisson.KeysOf(limitertest.Besides(name), id).List()...)...)
	}()
	p.do("HSET", p.keys.Config, "rate", fuzztest.One(p.d, "10", "1", "1000", "-5", "9007199254740991"),
		"interval", fuzztest.One(p.d, "3600000", "7200000", "9007199254740991", "1000", "0"), "type", strconv.Itoa(p.d.N(2)))
	if p.d.N(4) == 3 {
		p.do("HDEL", p.keys.Config, fuzztest.One(p.d, "rate", "interval", "type"))
	}
	for _, key := range p.keys.List() {
		usual := "zset"
		switch key {
		case p.keys.Config:
			usual = "hash"
		case p.keys.Value, p.keys.ClientValue:
			usual = "string"
		}
		for range p.d.N(3) {
			p.fill(key, usual)
		}
	}
	opts := []rratelimiter.Option{limitertest.Patient(), rratelimiter.WithClientID(id)}
	if version := fuzztest.One(p.d, "", "", "3.27.2", "3.20.1", "3.16.8", "3.15.5", "3.12.3"); version != "" {
		opts = append(opts, rratelimiter.WithRedissonVersion(version))
	}
	client := rratelimiter.New(p.rdb, opts...)
	defer func() { _ = client.Close(p.ctx) }()
	var with []rratelimiter.LimiterOption
	if p.d.N(2) == 1 {
		with = append(with, rratelimiter.WithDefault(limitertest.Every(10, time.Hour)))
	}
	p.l = client.RateLimiter(name, with...)
	for range 1 + p.d.N(6) {
		p.use()
	}
}

func (p *place) use() {
	n := 1 + int64(p.d.N(12))
	start := time.Now()
	what := fuzztest.One(p.d, "Take", "TryAcquire", "Take", "Release", "KeepState", "Migrate", "AvailablePermits", "Config", "TrySetRate", "SetRate",
		"Expire", "ClearExpire", "TTL", "Exists", "Delete", "Rename", "Peek", "Peek", "TakeUpTo", "TakeUpTo", "Reset", "Reserve", "Reserve")
	switch what {
	case "Take":
		d, err := p.l.Take(p.ctx, n)
		p.holds += p.checkDecision(d, err, n)
	case "TakeUpTo":
		taken, d, err := p.l.TakeUpTo(p.ctx, n)
		if p.checkDecision(d, err, n); taken < 0 || taken > n || d.Granted != (taken > 0) {
			p.t.Errorf("%d of %d were taken: %+v, %v", taken, n, d, err)
		}
		p.holds += taken
	case "Peek":
		p.peek(n)
	case "Reserve":
		p.reserve(n)
	case "TryAcquire":
		ok, err := p.l.TryAcquire(p.ctx, n, 0)
		if p.went(fmt.Sprint(what, n, ok), err) && ok {
			p.holds += n
		}
	case "Release":
		if p.went(fmt.Sprint(what, n), p.l.Release(p.ctx, n)) {
			p.holds = max(0, p.holds-n)
		}
	case "KeepState":
		kind, _ := p.stored("type")
		cfg := rratelimiter.Config{Type: rratelimiter.RateType(kind & 1), Rate: n, Interval: time.Hour}
		p.went(fmt.Sprint(what, n), p.l.SetRate(p.ctx, cfg, rratelimiter.KeepState()))
	case "Migrate":
		p.went(what, limitertest.Second(p.l.Migrate(p.ctx)))
	default:
		went := p.went(what, limitertest.Operations[what](p.ctx, p.l))
		switch what {
		case "SetRate", "Delete", "Rename", "TrySetRate": // with one of its own the limiter starts full
			p.holds, p.rate = 0, 0
		case "Reset":
			if went {
				p.holds = 0
			}
		}
	}
	if took := time.Since(start); took > time.Minute { // longer than even a slow machine explains
		p.t.Errorf("%s took %v", what, took)
	}
	p.check(what)
}

// reserve reserves and settles; a charge beyond the reservation is not counted.
func (p *place) reserve(n int64) {
	used := max(0, n+int64(p.d.N(9))-4)
	r, err := p.l.Reserve(p.ctx, n, 0)
	if err != nil {
		p.went(fmt.Sprint("Reserve ", n), err)
		return
	}
	n = p.checkDecision(r.Decision, nil, n)
	if p.went(fmt.Sprint("Settle ", n, used), r.Settle(p.ctx, used)) {
		n = min(n, used)
	}
	p.holds += n
}

// peek compares what Peek tells with what Take then answers.
func (p *place) peek(n int64) {
	peeked, err := p.l.Peek(p.ctx, n)
	p.checkDecision(peeked, err, n)
	d, takeErr := p.l.Take(p.ctx, n)
	p.holds += p.checkDecision(d, takeErr, n)
	interval, _ := p.stored("interval")
	if err == nil && takeErr == nil && peeked.Granted != d.Granted && interval >= time.Hour.Milliseconds()/2 {
		p.t.Errorf("%d: Peek: %+v, Take: %+v", n, peeked, d)
	}
}

// Found by FuzzState.
func TestAnswered_MalformedListIsIgnored(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Hour))
		require.NoError(t, rdb.HSet(t.Context(), l.Name(), "answered", " 5").Err())
		assert.Equal(t, 10, limitertest.Grants(t, l, 12))
	})
}

// Found by FuzzStateOnServer: the difference of the two numbers is none that Lua can count.
func TestValue_NegativeAtHighestRate(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb redistest.Client) {
		l := limitertest.NewLimiter(t, rdb, limitertest.Every(rratelimiter.MaxRate, time.Hour))
		require.NoError(t, rdb.Set(t.Context(), limitertest.KeysOf(l).Value, -128, 0).Err())
		limitertest.MustAcquire(t, l, 1)
		assert.Equal(t, int64(rratelimiter.MaxRate-1), limitertest.Available(t, l))
	})
}

// Found by FuzzState; miniredis misread it: on Redis rows without a beginning have run out.
func TestRows_ScoreOfMinusInfinityHasRunOut(t *testing.T) {
	t.Parallel()
	rdb := redistest.Redis(t)
	l := limitertest.NewLimiter(t, rdb, limitertest.Every(10, time.Hour))
	keys := limitertest.KeysOf(l)
	for _, value := range []string{"5", ""} {
		rdb.ZAdd(t.Context(), keys.Permits, redis.Z{Score: math.Inf(-1), Member: "\x03abc\x05\x00\x00\x00"})
		if rdb.Del(t.Context(), keys.Value); value != "" {
			rdb.Set(t.Context(), keys.Value, value, 0)
		}
		assert.Equal(t, int64(10), limitertest.Available(t, l))
	}
	log := slidinglog.New(limitertest.OpenClient(rdb), slidinglog.Config{Limit: 1, Window: time.Hour})
	rdb.ZAdd(t.Context(), l.Name()+":log", redis.Z{Score: math.Inf(-1), Member: "a"})
	assert.True(t, limittest.Take(t, log, l.Name()+":log", 1).Granted)
}
