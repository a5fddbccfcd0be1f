package compat_test

import (
	"bufio"
	"fmt"
	"net"
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
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// TestHammer has both languages ask one limiter for more than it has, and
// judges the grants as the server saw them.
//
// A grant is in use from the moment at which the server writes it, which
// MONITOR tells, until an interval after the moment at which it is dated. That
// is a whole number of milliseconds, rounded down; Go's are dated by the server,
// Java's by the caller before it sends. By so much less than an interval after
// they were written they come back, and so a little more than the rate may be
// written within one; Redisson is made so. Nobody sweeps a member before its
// time is over by the sweeper's own clock, and all clocks are the machine's, so
// what is in use may not be more than the rate at any moment, not even by one
// and not for a microsecond.
func TestHammer(t *testing.T) {
	t.Parallel()
	const (
		rate     = 20
		interval = 500 * time.Millisecond
		length   = 6 * time.Second
		allowed  = rate * int(length/interval)
		patience = 200 * time.Millisecond
		pause    = 5 * time.Millisecond
	)
	server := redistest.StartRedis(t)
	rdb := server.Client(t, nil)
	java, java2 := newJava(t, server.URL()), newJava(t, server.URL())
	name := redistest.Name(t)
	set := keys.For(name, "")
	// Both have their scripts loaded before the time runs.
	warm := redistest.Name(t)
	goes := []goService{newGo(t, rdb), newGo(t, server.Client(t, nil))}
	for _, s := range []service{java, java2, goes[0], goes[1]} {
		s.TrySetRate(warm, rratelimiter.PerHour(1))
		s.Try(warm, 1)
	}
	require.True(t, java.TrySetRate(name, rratelimiter.Config{Rate: rate, Interval: interval}))

	watch := watchGrants(t, server.Addr(), set.Permits)
	end := time.Now().Add(length + patience)
	var wg sync.WaitGroup
	var goGrants, javaGrants atomic.Int64
	for _, s := range goes {
		limiter := s.RateLimiter(name)
		for i := range 4 {
			timeout := time.Duration(i%2) * patience
			wg.Go(func() {
				for time.Now().Before(end) {
					ok, err := limiter.TryAcquire(t.Context(), 1, timeout)
					if !assert.NoError(t, err) {
						return
					}
					if ok {
						goGrants.Add(1)
					}
					if timeout == 0 {
						time.Sleep(pause)
					}
				}
			})
		}
	}
	for i, s := range []javaService{java, java2} {
		timeout, pause := time.Duration(i)*patience, time.Duration(1-i)*pause
		wg.Go(func() {
			h, err := s.Hammer(t.Context(), name, 4, 1, time.Until(end), timeout, pause)
			if assert.NoError(t, err) {
				assert.Zero(t, h.Errors, h.FirstError)
				javaGrants.Add(h.Granted)
			}
		})
	}
	wg.Wait()

	grants := watch()
	require.NotEmpty(t, grants)
	begin := grants[0].at.Truncate(time.Millisecond)
	total, inTime := int64(0), int64(0)
	inTurn := int64(0) // without those written in another interval than they are dated in
	var (
		most        int64         // permits in use at a time
		mostWritten int64         // permits written within an interval
		late        time.Duration // the most by which a grant was dated before it was written
	)
	for i, g := range grants {
		total += g.permits
		if since := g.at.Sub(begin); since < length {
			inTime += g.permits
			if !g.dated.Before(begin.Add(since.Truncate(interval))) {
				inTurn += g.permits
			}
		}
		late = max(late, g.at.Sub(g.dated))
		inUse, written := int64(0), int64(0)
		for _, other := range grants[:i+1] {
			if other.dated.Add(interval).After(g.at) {
				inUse += other.permits
			}
			if other.at.Add(interval).After(g.at) {
				written += other.permits
			}
		}
		most, mostWritten = max(most, inUse), max(mostWritten, written)
		require.LessOrEqual(t, inUse, int64(rate), "permits in use at %v, after grant %d", g.at, i)
	}
	assert.Equal(t, total, goGrants.Load()+javaGrants.Load(), "grants that callers know of")
	assert.LessOrEqual(t, inTurn, int64(allowed))
	assert.GreaterOrEqual(t, float64(inTime), 0.97*float64(allowed), "of what the limit allows")
	assert.GreaterOrEqual(t, goGrants.Load(), total/20, "Go's share")
	assert.GreaterOrEqual(t, javaGrants.Load(), total/20, "Java's share")

	value, permits := stored(t, rdb, set.Value, set.Permits)
	require.NotNil(t, value)
	sum := *value
	for _, n := range permits {
		sum += n
	}
	assert.EqualValues(t, rate, sum, "free and in use")
	passTime(t, rdb, name, interval)
	assert.EqualValues(t, rate, goes[0].Available(name))
	assert.EqualValues(t, rate, java.Available(name))
	t.Logf("%d of %d permits that the limit allows were granted (%.1f %%), to Go %d, to Java %d; "+
		"of %d at most %d were in use and %d written within an interval, at most %v after their date",
		inTime, allowed, 100*float64(inTime)/float64(allowed), goGrants.Load(), javaGrants.Load(), rate, most, mostWritten, late)
}

// grant is a member that a script has added.
type grant struct {
	at      time.Time // when, by the server
	dated   time.Time // its score
	permits int64
}

// watchGrants has the server tell of each member added to the set from now on.
// The function that it returns ends that and returns all that were.
func watchGrants(t *testing.T, addr, permitsKey string) func() []grant {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprint(conn, "MONITOR\r\n")
	require.NoError(t, err)
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "+OK\r\n", line)

	type result struct {
		grants []grant
		err    error
	}
	const last = "that was all"
	done := make(chan result, 1)
	go func() {
		var all []grant
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				done <- result{err: err}
				return
			}
			stamp, words := parseMonitor(line)
			if len(words) > 1 && strings.EqualFold(words[0], "echo") && words[1] == last {
				done <- result{grants: all}
				return
			}
			// Without XX, which changes the date of a member that was there.
			if len(words) < 4 || !strings.EqualFold(words[0], "zadd") || words[1] != permitsKey || words[2] == "XX" {
				continue
			}
			member, err := codec.Parse(words[len(words)-1])
			dated, dateErr := strconv.ParseInt(words[len(words)-2], 10, 64)
			if err != nil || dateErr != nil {
				done <- result{err: fmt.Errorf("monitor: %q", line)}
				return
			}
			all = append(all, grant{at: stamp, dated: time.UnixMilli(dated), permits: int64(member.Permits)})
		}
	}()
	return func() []grant {
		t.Helper()
		mark, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer func() { _ = mark.Close() }()
		_, err = fmt.Fprintf(mark, "*2\r\n$4\r\nECHO\r\n$%d\r\n%s\r\n", len(last), last)
		require.NoError(t, err)
		got := <-done
		require.NoError(t, got.err)
		return got.grants
	}
}

// parseMonitor takes a line of MONITOR apart:
//
//	+1700000000.123456 [0 lua] "zadd" "key" ...
func parseMonitor(line string) (time.Time, []string) {
	stamp, rest, _ := strings.Cut(strings.TrimPrefix(line, "+"), " ")
	seconds, micros, _ := strings.Cut(stamp, ".")
	s, _ := strconv.ParseInt(seconds, 10, 64)
	us, _ := strconv.ParseInt(micros, 10, 64)
	_, rest, _ = strings.Cut(rest, "] ")
	var words []string
	for {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			break
		}
		word, err := strconv.Unquote(quoted)
		if err != nil {
			break
		}
		words = append(words, word)
		rest = strings.TrimPrefix(rest[len(quoted):], " ")
	}
	return time.Unix(s, us*1000), words
}
