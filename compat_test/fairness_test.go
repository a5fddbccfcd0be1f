package compat_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	layout "github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// TestFairness has Java take single permits of a limiter without pause. In Go
// one waits for many permits, and others of its process, who came later, wait
// for one each.
//
// The one for many comes first as long as it has waited for less than an
// interval: until then nobody behind it is granted anything. From then on those
// are asked for too, so that one that cannot be served holds nobody up longer.
// When Java lets go of a permit is luck: between programs there is no order. So
// what is checked is who was asked for and who was granted, as the server saw
// it; how long all that took is reported.
func TestFairness(t *testing.T) { //nolint:paralleltest // one JVM at a time
	java := []struct {
		name    string
		threads int
		timeout time.Duration
	}{{"Java waits", 4, time.Second}, {"Java polls", 2, 0}}
	for _, java := range java {
		for _, many := range []int64{10, 20} {
			t.Run(fmt.Sprintf("%s, %d of 20 are wanted", java.name, many), func(t *testing.T) {
				f := newFairness(t, many)
				stop := f.startJava(t, java.threads, java.timeout)
				for range 3 {
					f.round(t)
				}
				stop()
				f.report(t)
				if java.timeout == 0 && many == 20 {
					assert.NotEmpty(t, f.asked, "rounds in which the first could not be served within an interval")
				}
			})
		}
	}
}

const (
	fairRate     = 20
	fairInterval = 500 * time.Millisecond
	fairOthers   = 5 // fewer than the many, so that a grant tells whom it is for
)

// fairness is a limiter that both languages want permits of, and what came of
// it: times count from when the one for many was first asked for.
type fairness struct {
	name   string
	many   int64
	java   javaService
	goes   goService
	rdb    *redis.Client
	events <-chan fairEvent

	ahead, later, never int             // rounds in which the one for many was served: within an interval, later, not
	asked               []time.Duration // when those behind it were first asked for regardless of it
	firstServed         []time.Duration // when the first of them was, where it was not served within an interval
	javaGrants          int
}

// fairEvent is a call of the acquire script by Go, or a grant.
type fairEvent struct {
	at      time.Time // by the server
	call    bool
	inLine  bool  // of a call: those behind one that is refused are not asked for
	of      int   // of a call: how many requests it carries
	byGo    bool  // of a grant
	permits int64 // of a grant
	end     bool  // none of that: what the server did before has been told
}

func newFairness(t *testing.T, many int64) *fairness {
	t.Helper()
	server := redistest.StartRedis(t)
	f := &fairness{name: redistest.Name(t), many: many, rdb: server.Client(t, nil)}
	// With so few connections one flight is under way at a time: see round.
	f.java, f.goes = newJava(t, server.URL()), newGo(t, server.Client(t, &redis.Options{PoolSize: 2}))
	require.True(t, f.java.TrySetRate(f.name, rratelimiter.Config{Rate: fairRate, Interval: fairInterval}))
	// Calls go by the script's SHA from now on.
	require.NoError(t, f.rdb.ScriptLoad(t.Context(), lua.Acquire.Source).Err())
	f.events = watchFairness(t, server.Addr(), layout.KeysOf(f.name, ""))
	return f
}

// startJava has Java take single permits until stop is called. It returns when
// Java has taken as many as there are.
func (f *fairness) startJava(t *testing.T, threads int, timeout time.Duration) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := f.java.Hammer(ctx, f.name, threads, 1, 10*time.Minute, timeout, 0)
		assert.ErrorIs(t, err, context.Canceled)
	})
	stop = func() { cancel(); wg.Wait() }
	t.Cleanup(stop)
	for taken := 0; taken < fairRate; {
		if e := f.next(t); !e.call {
			taken++
		}
	}
	return stop
}

func (f *fairness) next(t *testing.T) fairEvent {
	t.Helper()
	select {
	case e := <-f.events:
		return e
	case <-time.After(time.Minute):
		require.Fail(t, "nothing happens")
		return fairEvent{}
	}
}

// round has one wait for many and then the others for one each, until all have
// their answers.
func (f *fairness) round(t *testing.T) {
	t.Helper()
	limiter := f.goes.RateLimiter(f.name)
	var wg sync.WaitGroup
	var served bool
	joined := time.Now()
	wg.Go(func() {
		var err error
		served, err = limiter.TryAcquire(t.Context(), f.many, 3*fairInterval)
		assert.NoError(t, err)
	})
	var events []fairEvent
	for {
		e := f.next(t)
		events = append(events, e)
		if e.call {
			break // the one for many is on its way
		}
	}
	// The next flight leaves when that one has its answer: it is in line then.
	_, err := f.goes.RateLimiter(f.name+":other", rratelimiter.WithDefault(rratelimiter.PerHour(1))).TryAcquire(t.Context(), 1, 0)
	require.NoError(t, err)
	for range fairOthers {
		wg.Go(func() {
			ok, err := limiter.TryAcquire(t.Context(), 1, time.Minute)
			assert.NoError(t, err)
			assert.True(t, ok, "one permit was not granted within a minute")
		})
	}
	go func() {
		wg.Wait()
		assert.NoError(t, f.rdb.Echo(context.WithoutCancel(t.Context()), endOfRound).Err())
	}()
	for !events[len(events)-1].end {
		events = append(events, f.next(t))
	}
	f.judge(t, joined, served, events)
}

// judge checks a round in which the one for many joined the line at that time.
func (f *fairness) judge(t *testing.T, joined time.Time, served bool, events []fairEvent) {
	t.Helper()
	// The program's clock and the server's are the machine's, read in two ways.
	const clocks = 5 * time.Millisecond
	turn := joined.Add(fairInterval)
	first := events[slices.IndexFunc(events, func(e fairEvent) bool { return e.call })].at
	var manyAt, otherAt, askedAt time.Duration
	late := 0
	for _, e := range events {
		after := e.at.Sub(first)
		switch {
		case e.end:
		case e.call && manyAt == 0 && e.inLine && e.of > 1 && after > fairInterval:
			late++
		case e.call && manyAt == 0 && !e.inLine && e.of > 1 && askedAt == 0:
			askedAt = after
			assert.False(t, e.at.Before(turn.Add(-clocks)), "others were asked for regardless of the first after %v", after)
		case e.call:
		case !e.byGo:
			f.javaGrants++
		default:
			if manyAt == 0 && e.permits >= f.many {
				manyAt = after
			} else if manyAt == 0 {
				assert.False(t, e.at.Before(turn.Add(-clocks)), "one of the others was served first, after %v", after)
			}
			if otherAt == 0 && e.permits != f.many {
				otherAt = after
			}
		}
	}
	require.Equal(t, served, manyAt > 0)
	// One such call may be on its way when the interval is over.
	assert.LessOrEqual(t, late, 1, "calls that held the others back after an interval")
	switch {
	case !served:
		f.never++
	case manyAt < fairInterval:
		f.ahead++
	default:
		f.later++
	}
	require.Positive(t, otherAt, "when the others were served")
	if !served || manyAt > 2*fairInterval {
		require.Positive(t, askedAt, "the others were not asked for")
	}
	if askedAt > 0 {
		assert.Less(t, askedAt, 3*fairInterval, "when the others were asked for")
		f.asked = append(f.asked, askedAt)
		f.firstServed = append(f.firstServed, otherAt)
	}
}

func (f *fairness) report(t *testing.T) {
	t.Helper()
	slices.Sort(f.asked)
	slices.Sort(f.firstServed)
	ms := func(sorted []time.Duration, of, parts int) string {
		if len(sorted) == 0 {
			return "-"
		}
		return strconv.FormatInt(sorted[(len(sorted)-1)*of/parts].Milliseconds(), 10)
	}
	t.Logf("the one for %d was served within an interval %d times, later %d, not %d; "+
		"where not within one, those behind it were asked for after %s ms (at most %s) and the first of them served after %s ms (at most %s); Java took %d",
		f.many, f.ahead, f.later, f.never, ms(f.asked, 1, 2), ms(f.asked, 1, 1), ms(f.firstServed, 1, 2), ms(f.firstServed, 1, 1), f.javaGrants)
	_, scenario, _ := strings.Cut(t.Name(), "/")
	record(t, scenario, f.ahead, f.later, f.never,
		ms(f.asked, 1, 2), ms(f.asked, 1, 1), ms(f.firstServed, 1, 2), ms(f.firstServed, 1, 1), f.javaGrants)
}

const endOfRound = "end of round"

// watchFairness has the server tell of what it does, until t ends.
func watchFairness(t *testing.T, addr string, keys layout.Keys) <-chan fairEvent {
	t.Helper()
	events := make(chan fairEvent, 100_000)
	redistest.Monitor(t, addr, func(ran redistest.Ran) {
		if e, ok := fairEventOf(ran.Args, keys); ok {
			e.at = ran.At
			events <- e
		}
	})
	return events
}

func fairEventOf(words []string, keys layout.Keys) (fairEvent, bool) {
	switch {
	case len(words) == 2 && words[0] == "echo" && words[1] == endOfRound:
		return fairEvent{end: true}, true
	case len(words) > 3 && words[0] == "evalsha" && words[1] == lua.Acquire.SHA && words[3] == keys.Config:
		count, _ := strconv.Atoi(words[2])
		args := words[3+count:]
		if len(args) < 9 {
			return fairEvent{call: true, of: 1}, true
		}
		e := fairEvent{call: true, inLine: args[6] != "0"}
		for i := 8; i < len(args); i += 2 {
			count, _ := strconv.Atoi(args[i])
			e.of += count
		}
		return e, true
	case len(words) > 3 && words[0] == "zadd" && words[1] == keys.Permits && !strings.EqualFold(words[2], "xx"):
		member, err := codec.Parse(words[len(words)-1])
		if err != nil {
			return fairEvent{}, false
		}
		return fairEvent{byGo: strings.EqualFold(words[2], "nx"), permits: int64(member.Permits)}, true
	}
	return fairEvent{}, false
}
