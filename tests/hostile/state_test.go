package hostile_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/fuzztest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// answered are the errors that callers may get from a server that works.
var answered = []error{
	rratelimiter.ErrNotInitialized, rratelimiter.ErrPermitsExceedRate, rratelimiter.ErrInvalidPermits, rratelimiter.ErrInvalidConfig,
	rratelimiter.ErrCorrupt, rratelimiter.ErrUnsupported,
}

// leaks is what stands in errors of a script that went wrong itself.
var leaks = []string{"attempt to", "bad argument", "user_script", "<string>", "unexpected answer", "stack", "ERR ", "panic"}

func checkError(t testing.TB, what string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	known := slices.ContainsFunc(answered, func(of error) bool { return errors.Is(err, of) })
	// Of a key of the wrong type ErrCorrupt quotes what Redis said.
	quotes := errors.Is(err, rratelimiter.ErrCorrupt) && strings.Contains(err.Error(), "WRONGTYPE")
	if !known || !quotes && slices.ContainsFunc(leaks, func(leak string) bool { return strings.Contains(err.Error(), leak) }) {
		t.Errorf("%s: %v", what, err)
	}
}

var names atomic.Int64

// place is where a fuzz target works: names of its own on a server that others use.
type place struct {
	t   testing.TB
	ctx context.Context
	rdb *redis.Client
	d   *fuzztest.Draw
	now time.Time // the server's
	did []string
}

func newPlace(t testing.TB, rdb *redis.Client, data []byte) (p *place, name string) {
	p = &place{t: t, ctx: context.Background(), rdb: rdb, d: fuzztest.NewDraw(data)}
	now, err := rdb.Time(p.ctx).Result()
	if err != nil {
		t.Fatal(err)
	}
	p.now = now
	return p, "hostile" + strconv.FormatInt(names.Add(1), 10)
}

// end tells what was done where something was wrong, and leaves nothing behind.
func (p *place) end(keys ...string) {
	if p.t.Failed() {
		p.t.Log(strings.Join(p.did, "\n"))
	}
	p.rdb.Del(p.ctx, keys...)
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

// score draws one of a sorted set.
func (p *place) score() string {
	ms := p.now.UnixMilli()
	switch p.d.N(8) {
	case 0:
		return fuzztest.One(p.d, "inf", "-inf", "0", "-1", "1e300", "9007199254740993", "0.5")
	case 1:
		return strconv.FormatInt(ms+int64(p.d.N(256))*time.Minute.Milliseconds(), 10)
	case 2:
		return strconv.FormatInt(ms, 10) + ".5"
	}
	return strconv.FormatInt(ms-int64(p.d.N(256))*30_000, 10)
}

// member draws one of a permits set.
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

// A try works with what an input puts under a limiter's keys.
type try func(t testing.TB, rdb *redis.Client, data []byte)

func (check try) onMini(f *testing.F) {
	f.Helper()
	rdb, _ := redistest.Mini(f)
	check.run(f, rdb)
}

func (check try) onServer(f *testing.F) {
	f.Helper()
	redistest.SkipShort(f, "a real redis-server")
	check.run(f, redistest.StartRedis(f).Client(f, nil))
}

// run begins with inputs in which much happens.
func (check try) run(f *testing.F, rdb *redis.Client) {
	f.Helper()
	f.Add([]byte{})
	for i := range byte(24) {
		data := make([]byte, 90)
		for j := range byte(90) {
			data[j] = i*j*7 + j*j + i
		}
		f.Add(data)
	}
	fuzztest.Run(f, func(t testing.TB, data []byte) { check(t, rdb, data) })
}

// checkDecision looks at a decision, and returns the permits granted.
func (p *place) checkDecision(d limit.Decision, err error, n int64) int64 {
	p.note("took %d: %+v, %v", n, d, err)
	checkError(p.t, "Take", err)
	if d.Granted && (err != nil || d.Remaining < 0 || d.Remaining > d.Limit) || d.RetryAfter < 0 || d.ResetAfter < 0 || d.Remaining < 0 {
		p.t.Errorf("%d: %+v, %v", n, d, err)
	}
	if !d.Granted {
		return 0
	}
	return n
}

// checkUpTo is checkDecision for what TakeUpTo answered.
func (p *place) checkUpTo(taken int64, d limit.Decision, err error, n int64) int64 {
	p.checkDecision(d, err, n)
	if taken < 0 || taken > n || d.Granted != (taken > 0) {
		p.t.Errorf("%d of %d were taken: %+v, %v", taken, n, d, err)
	}
	return taken
}
