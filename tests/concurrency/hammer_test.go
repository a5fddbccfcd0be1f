package concurrency_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// A ledger replays what scripts did to one value and its permits set.
type ledger struct {
	rate, interval int64
	value          int64
	stored         bool             // there is a value
	ends           int64            // when both expire; 0: never
	members        map[string]int64 // scores
	dropped        []int64          // the scores of members that the set dropped since the last grant
	granted, calls int64
	grants         bool  // the call under way does
	highest        int64 // the most that was in use
}

// expire drops what has expired: a PerClient pair that was not used for an interval.
func (l *ledger) expire(now int64) {
	if l.ends == 0 || now < l.ends {
		return
	}
	l.drop(slices.Collect(maps.Keys(l.members)))
	l.stored, l.ends = false, 0
}

// drop is for members that have run out; those released or given back no interval holds.
func (l *ledger) drop(members []string) {
	for _, member := range members {
		l.dropped = append(l.dropped, l.members[member])
		delete(l.members, member)
	}
}

func permitsIn(member string) int64 {
	m, err := codec.Parse(member)
	if err != nil {
		panic(err)
	}
	return int64(m.Permits)
}

func (l *ledger) free() int64 {
	if !l.stored {
		return l.rate
	}
	return l.value
}

func (l *ledger) inUse() int64 {
	total := int64(0)
	for member := range l.members {
		total += permitsIn(member)
	}
	return total
}

// apply replays one command of a script. It returns what is wrong about it.
func (l *ledger) apply(script string, args []string, now int64) error {
	number := func(i int) int64 {
		n, err := strconv.ParseInt(args[i], 10, 64)
		if err != nil {
			panic(err)
		}
		return n
	}
	if args[len(args)-1] == "" {
		return nil // asks only whether memory is full
	}
	switch strings.ToUpper(args[0]) {
	case "SET":
		l.value, l.stored = number(2), true
	case "INCRBY":
		l.value += number(2)
	case "DECRBY":
		l.value -= number(2)
		if l.value < 0 {
			return fmt.Errorf("%s took %d permits of %d", script, number(2), l.value+number(2))
		}
	case "ZADD":
		if strings.EqualFold(args[2], "NX") {
			return l.grant(args[4], number(3))
		}
		l.members[args[3]] = number(2) // a member shrinks
	case "ZREM":
		for _, member := range args[2:] {
			delete(l.members, member)
		}
	case "ZREMRANGEBYRANK":
		members := slices.SortedFunc(maps.Keys(l.members), func(a, b string) int {
			return cmp.Or(cmp.Compare(l.members[a], l.members[b]), strings.Compare(a, b))
		})
		l.drop(members[number(2) : number(3)+1])
	case "PEXPIRE":
		l.ends = now + number(2)
	case "UNLINK":
		l.drop(slices.Collect(maps.Keys(l.members)))
	}
	return nil
}

func (l *ledger) grant(member string, score int64) error {
	if _, there := l.members[member]; there {
		return fmt.Errorf("a second grant of member %x", member)
	}
	l.members[member] = score
	l.granted += permitsIn(member)
	if slices.ContainsFunc(l.dropped, func(dropped int64) bool { return dropped > score-l.interval }) {
		return fmt.Errorf("the interval up to %d holds more than what is in use", score)
	}
	l.dropped, l.grants = nil, true
	return nil
}

// replay checks, after each script call, that what is free and what is in use
// make up the rate, and that no interval held more than what is in use. It returns the
// ledgers by their permits key, and the permits that were to be given back.
func replay(t *testing.T, commands []redistest.Ran, cfg rratelimiter.Config) (ledgers map[string]*ledger, unwanted int64) {
	t.Helper()
	ledgers = map[string]*ledger{}
	rate, script, began := cfg.Rate, "", int64(0)
	var touched *ledger
	for _, c := range commands {
		if !c.InScript {
			if touched != nil {
				touched.calls++
				inUse := touched.inUse()
				touched.highest = max(touched.highest, inUse)
				require.False(t, touched.grants && touched.free() < 0, "call %d, of %s, granted more than was free", touched.calls, script)
				touched.grants = false
				require.Equal(t, touched.rate, touched.free()+inUse, "free and in use after call %d, of %s", touched.calls, script)
			}
			touched, began = nil, c.At.UnixMilli()
			if name := c.Args[0]; name == "evalsha" || name == "eval" {
				script = limitertest.ScriptOf(c.Args[1]).Name
				if script == lua.GiveBack.Name && len(c.Args) > 9 {
					n, err := strconv.ParseInt(c.Args[9], 10, 64)
					require.NoError(t, err)
					unwanted += n
				}
			}
			continue
		}
		if c.Args[0] == "hset" {
			n, err := strconv.ParseInt(c.Args[3], 10, 64)
			require.NoError(t, err)
			rate = n
			for _, l := range ledgers {
				l.rate = rate
			}
			continue
		}
		if len(c.Args) < 2 || !strings.Contains(c.Args[1], "}:") {
			continue
		}
		key := strings.Replace(c.Args[1], "}:value", "}:permits", 1)
		if ledgers[key] == nil {
			ledgers[key] = &ledger{rate: rate, interval: cfg.Interval.Milliseconds(), members: map[string]int64{}}
		}
		if touched == nil {
			ledgers[key].expire(began)
		}
		touched = ledgers[key]
		require.NoError(t, touched.apply(script, c.Args, began))
	}
	return ledgers, unwanted
}

// A hammer is three Clients with eight callers each, and a server that tells what it did.
type hammer struct {
	server    *redistest.Server
	seed      uint64
	commands  []redistest.Ran
	stop      func()
	cancelled atomic.Int64 // callers that went away
	grants    atomic.Int64
}

func newHammer(t *testing.T) *hammer {
	t.Helper()
	h := &hammer{server: redistest.StartRedis(t), seed: rand.Uint64()}
	for _, s := range lua.All() {
		require.NoError(t, h.server.Client(t, nil).ScriptLoad(t.Context(), s.Source).Err())
	}
	h.stop = redistest.Monitor(t, h.server.Addr(), func(ran redistest.Ran) { h.commands = append(h.commands, ran) })
	t.Logf("seed %d", h.seed)
	return h
}

// strike makes calls for so long at least, and until it has seen enough. handle, called for each
// Client, returns what makes one random call.
func (h *hammer) strike(t *testing.T, least time.Duration, handle func(c *rratelimiter.Client) func(draw *rand.Rand)) {
	t.Helper()
	var callers sync.WaitGroup
	var clients []*rratelimiter.Client
	start := time.Now()
	for number := range uint64(3) {
		client := rratelimiter.New(h.server.Client(t, nil), patient)
		clients = append(clients, client)
		call := handle(client)
		for worker := range uint64(8) {
			draw := rand.New(rand.NewPCG(h.seed, number*8+worker))
			callers.Go(func() {
				for took := time.Duration(0); took < least || took < time.Minute && !h.enough() && !t.Failed(); took = time.Since(start) {
					call(draw)
				}
			})
		}
	}
	callers.Wait()
	assert.True(t, h.enough(), "%d grants, and %d callers that went away", h.grants.Load(), h.cancelled.Load())
	for _, client := range clients {
		require.NoError(t, client.Close(t.Context()))
	}
	h.stop()
}

func (h *hammer) enough() bool { return h.grants.Load() > 100 && h.cancelled.Load() > 0 }

// granted checks how a call ended, and reports whether it was granted.
func (h *hammer) granted(t *testing.T, ok bool, err error) bool {
	t.Helper()
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		h.cancelled.Add(1)
	} else {
		assert.NoError(t, err)
	}
	if err != nil {
		assert.False(t, ok)
	}
	if ok {
		h.grants.Add(1)
	}
	return ok
}

// check replays what was done to a limiter whose callers were told of so many permits.
func (h *hammer) check(t *testing.T, name string, cfg rratelimiter.Config, sets int, held int64) {
	t.Helper()
	ledgers, unwanted := replay(t, of(h.commands, name), cfg)
	require.Len(t, ledgers, sets)
	granted := int64(0)
	for _, l := range ledgers {
		granted += l.granted
		assert.Positive(t, l.highest)
		t.Logf("%s: %d script calls, %d permits granted; at most %d of %d in use", name, l.calls, l.granted, l.highest, cfg.Rate)
	}
	assert.Equal(t, held, granted-unwanted, "permits of %s that callers were told of", name)
	t.Logf("%d grants; %d callers went away, from %d permits", h.grants.Load(), h.cancelled.Load(), unwanted)
}

// of returns what was done to the limiter of that name.
func of(commands []redistest.Ran, name string) []redistest.Ran {
	return slices.DeleteFunc(slices.Clone(commands), func(c redistest.Ran) bool {
		if !c.InScript {
			return !slices.Contains(c.Args, name)
		}
		return len(c.Args) > 1 && !strings.HasPrefix(c.Args[1]+":", name+":") && !strings.HasPrefix(c.Args[1], "{"+name+"}:")
	})
}

// setsOf is how many sets the permits of a hammer's limiter are in.
var setsOf = map[rratelimiter.RateType]int{rratelimiter.Overall: 1, rratelimiter.PerClient: 3}

func TestHammer(t *testing.T) {
	t.Parallel()
	each(t, map[string][]rratelimiter.LimiterOption{
		"plain": nil, "leases and remembered refusals": {limitertest.Ahead(0), noticed()},
	}, func(t *testing.T, opts []rratelimiter.LimiterOption) {
		limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
			h, name := newHammer(t), redistest.Name(t)
			cfg := rratelimiter.Config{Type: kind, Rate: 500, Interval: 250 * ms}
			var held atomic.Int64
			h.strike(t, 1500*ms, func(c *rratelimiter.Client) func(draw *rand.Rand) {
				leasing := c.RateLimiter(name, append(opts, rratelimiter.WithDefault(cfg))...)
				return func(draw *rand.Rand) {
					l := leasing
					if opts == nil {
						l = byDefault(c, name, cfg)
					}
					permits := int64(1)
					var ok bool
					var err error
					if opts != nil && draw.IntN(2) == 0 {
						ok, err = l.TryAcquire(t.Context(), permits, 0)
					} else {
						permits, ok, err = hammerOnce(t.Context(), draw, 250, asksFor(l, draw))
					}
					if !h.granted(t, ok, err) {
						return
					}
					held.Add(permits)
					if draw.IntN(4) == 0 {
						assert.NoError(t, l.Release(t.Context(), 1+draw.Int64N(permits)))
					}
					if opts == nil && kind == rratelimiter.Overall && draw.IntN(100) == 0 {
						rate := 300 + draw.Int64N(200)
						changed, err := l.UpdateRate(t.Context(), limitertest.Every(rate, cfg.Interval), rratelimiter.KeepState())
						assert.NoError(t, err)
						assert.True(t, changed)
					}
				}
			})
			h.check(t, name, cfg, setsOf[kind], held.Load())
		})
	})
}

// The callers ask for all of some limiters and for each of them.
func TestHammerOfAll(t *testing.T) {
	t.Parallel()
	h, tag := newHammer(t), redistest.Name(t)
	cfgs := []rratelimiter.Config{limitertest.Every(100, 50*ms), limitertest.Every(400, 250*ms), limitertest.Every(1000, 700*ms)}
	var held [3]atomic.Int64
	var all, single atomic.Int64
	h.strike(t, 1500*ms, func(c *rratelimiter.Client) func(draw *rand.Rand) {
		var limiters []*rratelimiter.RateLimiter
		for i, cfg := range cfgs {
			limiters = append(limiters, byDefault(c, fmt.Sprintf("%d{%s}", i, tag), cfg))
		}
		return func(draw *rand.Rand) {
			var permits int64
			var ok bool
			var err error
			first, last, count := 0, len(limiters)-1, &all
			if one := draw.IntN(6); one < len(limiters) {
				first, last, count = one, one, &single
				permits, ok, err = hammerOnce(t.Context(), draw, 250, asksFor(limiters[one], draw))
			} else {
				permits, ok, err = hammerOnce(t.Context(), draw, 60, func(ctx context.Context, permits int64, timeout time.Duration) (bool, error) {
					return c.TryAcquireAll(ctx, permits, timeout, limiters...)
				})
			}
			if permits > cfgs[first].Rate && errors.Is(err, rratelimiter.ErrPermitsExceedRate) || !h.granted(t, ok, err) {
				assert.False(t, ok)
				return
			}
			count.Add(1)
			for i := first; i <= last; i++ {
				held[i].Add(permits)
				if draw.IntN(4) == 0 {
					assert.NoError(t, limiters[i].Release(t.Context(), 1+draw.Int64N(permits)))
				}
			}
		}
	})
	for i, cfg := range cfgs {
		h.check(t, fmt.Sprintf("%d{%s}", i, tag), cfg, 1, held[i].Load())
	}
	assert.Positive(t, all.Load())
	assert.Positive(t, single.Load())
}

// An asker asks for permits, once or until a timeout.
type asker func(ctx context.Context, permits int64, timeout time.Duration) (bool, error)

// hammerOnce makes one random request, now and then for up to that many permits.
func hammerOnce(ctx context.Context, draw *rand.Rand, most int64, ask asker) (permits int64, ok bool, err error) {
	permits = 1 + draw.Int64N(4)
	if draw.IntN(10) == 0 {
		permits = 1 + draw.Int64N(most)
	}
	timeout, left := time.Duration(0), time.Hour // of its context
	switch draw.IntN(6) {
	case 0, 1:
		defer time.Sleep(time.Duration(draw.IntN(2)) * ms)
	case 2:
		timeout, left = time.Hour, time.Duration(draw.IntN(int(50*ms)))
	case 3:
		left = time.Duration(draw.IntN(int(ms)))
	case 4:
		ctx, timeout = context.WithoutCancel(ctx), time.Duration(draw.IntN(int(100*ms)))
		ok, err = ask(ctx, permits, timeout)
		return permits, ok, outOfTime(err)
	default:
		timeout = time.Duration(draw.IntN(int(300 * ms)))
	}
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	ok, err = ask(ctx, permits, timeout)
	return permits, ok, outOfTime(err)
}

// asksFor asks a limiter by one call or another.
func asksFor(l *rratelimiter.RateLimiter, draw *rand.Rand) asker {
	return func(ctx context.Context, permits int64, timeout time.Duration) (bool, error) {
		switch {
		case timeout == time.Hour:
			err := l.Acquire(ctx, permits)
			return err == nil, err
		case timeout == 0 && draw.IntN(2) == 0:
			d, err := l.Take(ctx, permits)
			return d.Granted, err
		}
		return l.TryAcquire(ctx, permits, timeout)
	}
}

// outOfTime is for callers whose timeout may end while a question is under way. On
// a busy machine it may go unanswered for 100 ms more; then they have gone, and what
// they are granted goes back.
func outOfTime(err error) error {
	if errors.Is(err, rratelimiter.ErrUnavailable) {
		return context.DeadlineExceeded
	}
	return err
}
