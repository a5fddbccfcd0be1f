package hostile_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/fuzztest"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// patience is the longest that a question may take: eight answers that say "again",
// each with a call's time, and what the last one takes.
const patience = time.Minute

// callers have a limiter of each kind.
type callers struct {
	t      *testing.T
	client *rratelimiter.Client

	one, other, leased *rratelimiter.RateLimiter
	log                *slidinglog.Limiter
	keyed              []limittest.Limiter // log among them
}

// requests is how many calls ask knows.
const requests = 11

// ask makes a call that is granted what it asks for, or not.
func (c *callers) ask(ctx context.Context, op int, n int64) (bool, error) {
	switch op {
	case 0:
		return c.one.TryAcquire(ctx, n, 0)
	case 1:
		return c.one.TryAcquire(ctx, n, time.Second)
	case 2:
		return c.decided(c.one.Take(ctx, n))
	case 3:
		return c.leased.TryAcquire(ctx, n, 0)
	case 4:
		return c.client.TryAcquireAll(ctx, time.Second, c.one.Claim(n), c.other.Claim(n))
	case 8:
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		err := c.one.Acquire(ctx, n)
		return err == nil, err
	case 10:
		r, err := c.one.Reserve(ctx, n, 0)
		if err != nil {
			return false, err
		}
		c.look(r.Settle(ctx, 6))
		return c.decided(r.Decision, nil)
	case 9:
		return c.decided(c.keyed[0].Take(ctx, "k", n))
	}
	return c.decided(c.keyed[op-4].Take(ctx, "k", n))
}

// takeUpTo takes the free permits of any limiter.
func (c *callers) takeUpTo(ctx context.Context, d *fuzztest.Draw, n int64) int64 {
	take := func() (int64, limit.Decision, error) { return c.one.TakeUpTo(ctx, n) }
	if l := d.N(5); l < 4 {
		take = func() (int64, limit.Decision, error) { return c.keyed[l].TakeUpTo(ctx, "u", n) }
	}
	taken, decision, err := take()
	if ok, _ := c.decided(decision, err); ok != (taken > 0) || taken < 0 || taken > n {
		c.t.Errorf("%d of %d were taken: %+v, %v", taken, n, decision, err)
	}
	c.look(err)
	return taken
}

// decided checks what Take decided.
func (c *callers) decided(d limit.Decision, err error) (bool, error) {
	if err != nil && d.Granted || d.Remaining < 0 || d.RetryAfter < 0 || d.ResetAfter < 0 || d.Granted && d.RetryAfter > 0 {
		c.t.Errorf("%+v, %v", d, err)
	}
	return d.Granted, err
}

// FuzzAnswers lets a server answer anything, and looks at what callers get.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x00\x01\x00\x06\x00"))
	for op := range byte(requests + 2) {
		f.Add([]byte{1, 0, 7, 4, 3, 4, 2, 5, 6, 1, 1, 1, op, 1, op, 2, op, 0})
		f.Add([]byte{1, 1, 8, 2, 'a', 'b', 1, 3, 0, 4, op, 1, op, 2})
		f.Add([]byte{1, 0, 0, 7, op, 0, op, 2})
		f.Add([]byte{1, 0, 10, 1, 2, 1, op, 0, op, 2})
		f.Add([]byte{0, 3, 5, 10, 5, 0, 0, 0, 1, 1, 2, 3, op, 2})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		synctest.Test(t, func(t *testing.T) { tryAnswers(t, fuzztest.NewDraw(data)) })
	})
}

func tryAnswers(t *testing.T, d *fuzztest.Draw) {
	s := drawAnswers(d)
	rdb := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:0", ContextTimeoutEnabled: d.N(2) == 0, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	defer func() { assert.NoError(t, rdb.Close()) }()
	rdb.AddHook(s.hook())
	client := rratelimiter.New(rdb, limitertest.Patient(), rratelimiter.WithRedissonVersion(fuzztest.One(d, "4.7.0", "3.27.2", "3.16.8", "3.15.5")))
	c := &callers{
		t: t, client: client, one: client.RateLimiter("{a}one", rratelimiter.WithDefault(limitertest.Every(10, time.Hour))),
		other:  client.RateLimiter("{a}other"),
		leased: client.RateLimiter("{a}leased", rratelimiter.WithLease(rratelimiter.Lease{Permits: 100, Life: time.Second})),
		log:    slidinglog.New(limitertest.OpenClient(rdb), slidinglog.Config{Limit: 10, Window: time.Hour, Thresholds: "thresholds"}),
	}
	c.keyed = []limittest.Limiter{
		client.Keyed("{a}keyed:", limitertest.Every(10, time.Hour)), fixedwindow.New(limitertest.OpenClient(rdb), fixedwindow.Config{Limit: 10, Window: time.Hour}),
		c.log, tokenbucket.New(limitertest.OpenClient(rdb), tokenbucket.Config{Capacity: 10, Refill: 1, Interval: time.Hour}),
	}
	granted := int64(0)
	for range 1 + d.N(4) {
		start := time.Now()
		op, n := d.N(requests+2), 1+int64(d.N(12))
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		switch op {
		case requests:
			c.changeAnything(ctx, d)
		case requests + 1:
			granted += c.takeUpTo(ctx, d, n)
		default:
			ok, err := c.ask(ctx, op, n)
			if ok && err == nil {
				granted += n
			}
			c.look(err)
		}
		cancel()
		if took := time.Since(start); took > patience {
			t.Errorf("call %d took %v", op, took)
		}
	}
	s.mu.Lock()
	if granted > s.claimed {
		t.Errorf("%d permits were granted, and the answers tell of %d", granted, s.claimed)
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	assert.NoError(t, client.Close(ctx), "what was asked goes on for ever")
	s.mu.Lock()
	s.answers = nil
	s.mu.Unlock()
	time.Sleep(patience) // give-backs may be on their way
}

// changeAnything calls what takes no permits.
func (c *callers) changeAnything(ctx context.Context, d *fuzztest.Draw) {
	names := []string{
		"Release", "AvailablePermits", "TrySetRate", "SetRate", "UpdateRate", "Config", "Expire", "ExpireAt", "ClearExpire", "TTL", "Exists", "Delete", "Rename",
		"Peek", "Reset", "Reserve",
	}
	switch op := d.N(len(names) + 4); op - len(names) {
	case 0:
		c.look(limitertest.Second(c.client.RateLimiter("{a}one").Migrate(ctx)))
	case 1:
		c.look(limitertest.Second(c.log.Thresholds(ctx)))
	case 2:
		_, err := c.decided(fuzztest.One(d, c.keyed...).Peek(ctx, "p", 1+int64(d.N(12))))
		c.look(err)
	case 3:
		c.look(fuzztest.One(d, c.keyed...).Reset(ctx, "p"))
	default:
		c.look(limitertest.Operations[names[op]](ctx, c.one))
	}
	if free, err := c.one.AvailablePermits(ctx); free < 0 || err != nil && free != 0 {
		c.t.Errorf("%d permits are free, %v", free, err)
	}
}

// look checks that an error is not one of a program that went wrong.
func (c *callers) look(err error) {
	if err != nil && (strings.Contains(err.Error(), "panic") || errors.Is(err, context.Canceled)) {
		c.t.Error(err)
	}
}

// trip is how long each answer takes.
const trip = time.Millisecond

// liar answers in place of a server.
type liar struct {
	mu      sync.Mutex
	answers []any // an error is one that Redis answers, nil stands for none
	repeats bool  // the last one, for ever
	claimed int64 // permits that the answers say were granted
	asked   int
}

// hook answers all commands.
func (s *liar) hook() redistest.Hook {
	return func(_ context.Context, cmds []redis.Cmder, _ func() error) (first error) {
		time.Sleep(trip)
		for _, cmd := range cmds {
			if err := s.answer(cmd); err != nil && first == nil {
				first = err
			}
		}
		return first
	}
}

func (s *liar) answer(cmd redis.Cmder) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	var reply any = redistest.AnswerError("ERR that is all")
	if len(s.answers) > 0 {
		reply = s.answers[0]
		if len(s.answers) > 1 || !s.repeats {
			s.answers = s.answers[1:]
		}
	}
	var err error
	switch of := reply.(type) {
	case nil:
		err = redis.Nil
	case error:
		err = of
	default:
		cmd.(interface{ SetVal(v any) }).SetVal(reply)
		s.claimed += claimed(cmd, reply)
	}
	cmd.SetErr(err)
	return err
}

// claimed returns the permits which an answer says were granted.
func claimed(cmd redis.Cmder, reply any) int64 {
	const most = 1 << 40 // so that sums stay in range
	words := cmd.Args()
	text, _ := words[1].(string)
	of := limitertest.ScriptOf(text)
	values, _ := reply.([]any)
	n := number(reply)
	switch of.Name {
	case lua.AcquireMany.Name:
		for _, value := range values {
			n += min(max(0, number(value)), most)
		}
	case lua.Acquire.Name, lua.FixedWindow.Name, lua.SlidingLog.Name, lua.TokenBucket.Name:
		if len(values) > 4 {
			n, _ = values[2].(int64)
		}
	case lua.AcquireAll.Name:
		if len(values) == 2 { // what both keep, and no refusals
			n = number(words[14])
		}
	default:
		return 0
	}
	return min(max(0, n), most)
}

// number returns the one that an answer is, as text too.
func number(reply any) int64 {
	n, _ := reply.(int64)
	if text, ok := reply.(string); ok {
		n, _ = strconv.ParseInt(text, 10, 64)
	}
	return n
}

// drawAnswers draws what the server says.
func drawAnswers(d *fuzztest.Draw) *liar {
	s := &liar{repeats: d.N(2) == 1}
	for range 1 + d.N(8) {
		s.answers = append(s.answers, drawReply(d, 3))
	}
	if last, ok := s.answers[len(s.answers)-1].([]any); ok && len(last) > 0 && last[0] == "again" {
		s.repeats = false // there is more to do as long as it says so, and it is ctx that ends that
	}
	return s
}

func drawReply(d *fuzztest.Draw, depth int) any {
	kinds := 12
	if depth == 0 {
		kinds = 7
	}
	switch d.N(kinds) {
	case 0:
		return int64(d.N(8)) - 2
	case 1:
		return d.Int()
	case 2:
		return fuzztest.One(d, "again", "taken", "keys", "exceeds", "search", "own", "OK", "")
	case 3:
		return d.Text(40)
	case 4:
		return fuzztest.One[any](d, nil, true, 1.5, map[any]any{"again": int64(1)})
	case 5:
		return redistest.AnswerError(fuzztest.One(d,
			"CORRUPT 1 rate is no integer: x", "CORRUPT 0 a b", "CORRUPT 99999999999999999999 x", "CORRUPT -1", "CORRUPT", "NOTINIT no rate is set",
			"NOTINIT 2", "NOTINIT 77", "LATE", "WRONGTYPE Operation", "NOSCRIPT No matching script", "ERR x", "", "BUSY x", "LOADING x",
			"READONLY x", "OOM x", "CROSSSLOT x", "NOPERM x", "MOVED 1 nowhere:1", "ASK", "TRYAGAIN", "ERR Error running script @user_script: 1: -CORRUPT "))
	case 6:
		return redistest.AnswerError(d.Text(30))
	case 7: // as acquire answers
		reply := []any{}
		for range 3 + d.N(8) {
			reply = append(reply, int64(d.N(12))-1)
		}
		return reply
	case 8:
		return []any{"again", d.Text(4), d.Int()}[:1+d.N(3)]
	}
	reply := []any{}
	for range d.N(9) {
		reply = append(reply, drawReply(d, depth-1))
	}
	return reply
}
