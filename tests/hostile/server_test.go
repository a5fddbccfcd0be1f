package hostile_test

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/test/fuzztest"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// trip is how long each answer takes.
const trip = time.Millisecond

// liar is a hook that answers in place of a server.
type liar struct {
	mu      sync.Mutex
	answers []any // an error is one that Redis answers, nil stands for none
	repeats bool  // the last one, for ever
	claimed int64 // permits that the answers say were granted
	asked   int
}

// serverError is an error that Redis answered.
type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

func (*liar) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *liar) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		time.Sleep(trip)
		return s.answer(cmd)
	}
}

func (s *liar) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) (first error) {
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
	var reply any = serverError("ERR that is all")
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
		return serverError(fuzztest.One(d,
			"CORRUPT 1 rate is no integer: x", "CORRUPT 0 a b", "CORRUPT 99999999999999999999 x", "CORRUPT -1", "CORRUPT", "NOTINIT no rate is set",
			"NOTINIT 2", "NOTINIT 77", "LATE", "WRONGTYPE Operation", "NOSCRIPT No matching script", "ERR x", "", "BUSY x", "LOADING x",
			"READONLY x", "OOM x", "CROSSSLOT x", "NOPERM x", "MOVED 1 nowhere:1", "ASK", "TRYAGAIN", "ERR Error running script @user_script: 1: -CORRUPT "))
	case 6:
		return serverError(d.Text(30))
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
