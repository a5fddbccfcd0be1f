package concurrency_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

// trace has the server tell all that it executes. The returned function ends
// that and returns what was told.
func trace(t *testing.T, server *redistest.Server) (stop func() []redistest.Ran) {
	t.Helper()
	var all []redistest.Ran
	end := redistest.Monitor(t, server.Addr(), func(ran redistest.Ran) { all = append(all, ran) })
	return func() []redistest.Ran {
		t.Helper()
		end()
		return all
	}
}

// An entry is what one script call added to a permits set. permits falls when
// they are released or given back, but not when the set drops the member.
type entry struct {
	identity string
	score    int64
	permits  int64
}

// A ledger replays what scripts did to one value and its permits set.
type ledger struct {
	rate, interval int64
	value          int64
	stored         bool             // there is a value
	ends           int64            // when both expire; 0: never
	members        map[string]int64 // scores
	grants         []*entry         // those that an interval may still hold
	inWindow       int64            // their permits
	granted, calls int64
	highest        int64 // the most that an interval held
}

// expire drops what has expired by then: a PerClient pair that nobody used for an
// interval.
func (l *ledger) expire(now int64) {
	if l.ends == 0 || now < l.ends {
		return
	}
	clear(l.members)
	l.stored, l.ends = false, 0
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
			l.giveBack(member)
		}
	case "ZREMRANGEBYRANK":
		var members []string
		for member := range l.members {
			members = append(members, member)
		}
		slices.SortFunc(members, func(a, b string) int {
			return cmp.Or(cmp.Compare(l.members[a], l.members[b]), strings.Compare(a, b))
		})
		for _, member := range members[number(2) : number(3)+1] {
			delete(l.members, member)
		}
	case "PEXPIRE":
		l.ends = now + number(2)
	case "UNLINK":
		clear(l.members)
	}
	return nil
}

func (l *ledger) grant(member string, score int64) error {
	if _, there := l.members[member]; there {
		return fmt.Errorf("a second grant of member %x", member)
	}
	permits := permitsIn(member)
	l.members[member] = score
	if permits == 0 {
		return nil
	}
	l.grants = append(l.grants, &entry{member[:len(member)-4], score, permits})
	l.granted += permits
	l.inWindow += permits
	for l.grants[0].score <= score-l.interval {
		l.inWindow -= l.grants[0].permits
		l.grants = l.grants[1:]
	}
	l.highest = max(l.highest, l.inWindow)
	if l.inWindow > l.rate {
		return fmt.Errorf("%d permits of %d in the interval up to %d", l.inWindow, l.rate, score)
	}
	return nil
}

// giveBack takes a member out, save for what a shrunk one keeps of it.
func (l *ledger) giveBack(member string) {
	delete(l.members, member)
	identity, rest := member[:len(member)-4], int64(0)
	for other := range l.members {
		if strings.HasPrefix(other, identity) {
			rest = permitsIn(other)
		}
	}
	for _, g := range l.grants {
		if g.identity == identity {
			l.inWindow -= g.permits - rest
			g.permits = rest
		}
	}
}

// replay checks, after each script call, that what is free and what is in use
// make up the rate, and that no interval held more than that. It returns the
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
				require.Equal(t, touched.rate, touched.free()+touched.inUse(), "free and in use after call %d, of %s", touched.calls, script)
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

// Three Clients with eight callers each do all that callers do, and the server
// tells what came of it.
func TestHammer(t *testing.T) {
	t.Parallel()
	limitertest.BothTypes(t, func(t *testing.T, kind rratelimiter.RateType) {
		server := redistest.StartRedis(t)
		cfg := rratelimiter.Config{Type: kind, Rate: 500, Interval: 250 * time.Millisecond}
		name := redistest.Name(t)
		for _, s := range lua.All() {
			require.NoError(t, server.Client(t, nil).ScriptLoad(t.Context(), s.Source).Err())
		}
		stop := trace(t, server)
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		end := time.Now().Add(2 * time.Second)
		var held, grants, cancelled atomic.Int64
		var clients []*rratelimiter.Client
		var wg sync.WaitGroup
		for number := range uint64(3) {
			client := rratelimiter.New(server.Client(t, nil))
			clients = append(clients, client)
			for worker := range uint64(8) {
				l := client.RateLimiter(name, rratelimiter.WithDefault(cfg))
				draw := rand.New(rand.NewPCG(seed, number*8+worker))
				wg.Go(func() {
					for time.Now().Before(end) {
						permits, ok, err := hammerOnce(t.Context(), l, draw)
						switch {
						case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
							cancelled.Add(1)
							assert.False(t, ok)
						case !assert.NoError(t, err):
							return
						}
						if !ok {
							continue
						}
						held.Add(permits)
						grants.Add(1)
						if draw.IntN(3) == 0 {
							assert.NoError(t, l.Release(t.Context(), 1+draw.Int64N(permits)))
						}
					}
				})
			}
		}
		if kind == rratelimiter.Overall {
			l := clients[0].RateLimiter(name)
			wg.Go(func() {
				for rate := int64(300); time.Now().Before(end); rate = 800 - rate {
					time.Sleep(150 * time.Millisecond)
					changed, err := l.UpdateRate(t.Context(), limitertest.Every(rate, cfg.Interval), rratelimiter.KeepState())
					assert.NoError(t, err)
					assert.True(t, changed)
				}
			})
		}
		wg.Wait()
		for _, client := range clients {
			require.NoError(t, client.Close(t.Context()))
		}

		ledgers, unwanted := replay(t, stop(), cfg)
		var granted, calls int64
		for _, l := range ledgers {
			granted += l.granted
			calls += l.calls
			assert.Positive(t, l.highest)
		}
		if kind == rratelimiter.Overall {
			require.Len(t, ledgers, 1)
		} else {
			require.Len(t, ledgers, 3)
		}
		assert.Equal(t, held.Load(), granted-unwanted, "permits that callers were told of")
		t.Logf("%d script calls; %d grants, %d permits; %d callers went away, from %d permits",
			calls, grants.Load(), held.Load(), cancelled.Load(), unwanted)
		assert.Greater(t, grants.Load(), int64(100))
		assert.Positive(t, cancelled.Load())
	})
}

// hammerOnce makes one random request.
func hammerOnce(ctx context.Context, l *rratelimiter.RateLimiter, draw *rand.Rand) (permits int64, ok bool, err error) {
	permits = 1 + draw.Int64N(4)
	if draw.IntN(10) == 0 {
		permits = 1 + draw.Int64N(250)
	}
	switch draw.IntN(6) {
	case 0:
		d, err := l.Take(ctx, permits)
		time.Sleep(time.Duration(draw.IntN(2)) * time.Millisecond)
		return permits, d.Granted, err
	case 1:
		ok, err := l.TryAcquire(ctx, permits, 0)
		time.Sleep(time.Duration(draw.IntN(2)) * time.Millisecond)
		return permits, ok, err
	case 2:
		ctx, cancel := context.WithTimeout(ctx, time.Duration(draw.IntN(int(50*time.Millisecond))))
		defer cancel()
		err := l.Acquire(ctx, permits)
		return permits, err == nil, err
	case 3:
		ctx, cancel := context.WithTimeout(ctx, time.Duration(draw.IntN(int(time.Millisecond))))
		defer cancel()
		ok, err := l.TryAcquire(ctx, permits, 0)
		return permits, ok, err
	case 4:
		ok, err := l.TryAcquire(context.WithoutCancel(ctx), permits, time.Duration(draw.IntN(int(100*time.Millisecond))))
		return permits, ok, outOfTime(err)
	default:
		ok, err := l.TryAcquire(ctx, permits, time.Duration(draw.IntN(int(300*time.Millisecond))))
		return permits, ok, outOfTime(err)
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
