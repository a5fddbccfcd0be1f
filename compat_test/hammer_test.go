package compat_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	"github.com/rratelimiter/rratelimiter/internal/lua"
	layout "github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// TestHammer makes both languages ask one limiter for more than it has, and judges the grants as the server saw them. Some
// callers in Go reserve, and settle fewer permits or more: what that charges counts as in use, and is no grant.
//
// A grant is in use from the moment at which the server writes it, which MONITOR tells, until an interval after the moment at
// which it is dated. That is a whole number of milliseconds, rounded down; Go's are dated by the server, Java's by the caller
// before it sends. They come back by as much less than an interval after they were written, and so a little more than the rate
// may be written within one; Redisson is made so. No one sweeps a member before its time is over by the sweeper's own clock,
// and all clocks are the machine's, so what is in use may not be more than the rate at any moment, not even by one and not for
// a microsecond. If the value alone counts, that holds for what is taken during the life of its key.
func TestHammer(t *testing.T) { //nolint:paralleltest // one JVM at a time
	eachRelease(t, func(t *testing.T, peer *javaDriver) {
		crew{usual, []*javaDriver{peer, peer}, 2}.hammer(t, peer.release.Version)
	})
}

func TestFleetHammer(t *testing.T) { //nolint:paralleltest // few JVMs at a time
	eachFleet(t, mixable, func(t *testing.T, older, newer *javaDriver) {
		leasing := usual
		leasing.leases = *releasesFlag == "all" && sharing(older.release.Version) == nil
		crew{leasing, []*javaDriver{older, newer}, 2}.hammer(t, older.release.Version+"+"+newer.release.Version)
	})
}

// TestHammerOfAClockBehind makes each grant leave nothing in the set but a row of this millisecond. A Redisson before 3.15.3 that
// has looked at its clock just before, and is refused, then fails: with other Redissons as with Go, whose rows the server dates.
func TestHammerOfAClockBehind(t *testing.T) { //nolint:paralleltest // one JVM at a time
	tight := load{rate: 1, interval: 20 * time.Millisecond, length: 2 * time.Second}
	eachRelease(t, func(t *testing.T, peer *javaDriver) {
		if peer.release.SeesFuture {
			t.Logf("Redisson %s sees rows of a later date", peer.release.Version)
			return
		}
		for _, goes := range []int{0, 2} {
			c := crew{tight, []*javaDriver{peer, startDriver(t, peer.release.Version)}, goes}
			c.hammer(t, fmt.Sprintf("%s beside %d in Go", peer.release.Version, goes))
		}
	})
}

// load is a limiter's rate and how long it is asked for more than that.
type load struct {
	rate             int64
	interval, length time.Duration
	leases           bool // Go takes permits ahead, and may not use them all
}

var usual = load{rate: 20, interval: 500 * time.Millisecond, length: 4 * time.Second}

// crew is the programs that ask a limiter for permits.
type crew struct {
	load
	javas []*javaDriver // the oldest release first
	goes  int
}

type figures struct {
	load
	goes, java, total atomic.Int64 // permits granted
	unknown           atomic.Int64 // permits of which Go may not know in time
	settled           atomic.Int64 // reservations in Go
	javaErrors        atomic.Int64
	firstError        atomic.Value

	inTime      int64 // of total, while the time ran
	mostInUse   int64 // at a time
	mostWritten int64 // within an interval
}

// hammer makes the crew ask for permits until the time is over and both languages have got
// some, checks that no permit was granted twice nor lost, and records the result.
func (c crew) hammer(t *testing.T, name string) {
	t.Helper()
	server := redistest.StartRedis(t)
	limiter, warm := redistest.Name(t), redistest.Name(t)
	oldest := c.javas[0].release
	var javas, goes []service
	for _, peer := range c.javas {
		javas = append(javas, peer.service(t, server.URL()))
	}
	for range c.goes {
		goes = append(goes, newGo(t, server.Client(t, nil), sharing(oldest.Version)...))
	}
	// All have their scripts loaded before the time runs.
	for _, s := range slices.Concat(javas, goes) {
		s.TrySetRate(warm, rratelimiter.PerHour(100))
		s.Try(warm, 1)
	}
	require.True(t, javas[0].TrySetRate(limiter, rratelimiter.Config{Rate: c.rate, Interval: c.interval}))
	watch := watchGrants(t, server, layout.KeysOf(limiter, ""), c.interval)
	f := &figures{load: c.load}
	for start := time.Now(); f.java.Load() == 0 || c.goes > 0 && f.goes.Load() == 0; {
		require.Less(t, time.Since(start), time.Minute, "%d permits for Go, %d for Java", f.goes.Load(), f.java.Load())
		f.ask(t, javas, goes, limiter, oldest.KeepsSet && f.rate >= 3)
	}
	for _, s := range goes {
		require.NoError(t, s.Close(t.Context())) // due give-backs are made
	}
	f.judge(watch())
	passTime(t, server.Client(t, nil), limiter, c.interval)
	left := javas[0].Available(limiter)
	percent := 100 * float64(f.inTime) / float64(c.rate*int64(c.length/c.interval))
	message, _ := f.firstError.Load().(string)
	t.Logf("%s: of the permits that the limit allows %.1f %% were granted, to Go %d with %d outcomes unknown and %d settled, to Java %d with %d errors; "+
		"of %d at most %d were in use and %d written within an interval",
		name, percent, f.goes.Load(), f.unknown.Load(), f.settled.Load(), f.java.Load(), f.javaErrors.Load(), f.rate, f.mostInUse, f.mostWritten)
	record(t, name, f.goes.Load(), f.java.Load(), f.javaErrors.Load(), max(0, f.mostInUse-f.rate), fmt.Sprintf("%.1f", percent), message)
	assert.LessOrEqual(t, f.mostInUse, f.rate, "permits in use")
	assert.LessOrEqual(t, f.goes.Load()+f.java.Load(), f.total.Load(), "grants that callers know of")
	assert.True(t, f.leases || f.goes.Load()+f.java.Load()+f.unknown.Load() >= f.total.Load(), "%d grants that no caller knows of", f.total.Load())
	assert.Equal(t, f.rate, left, "free and in use")
	// What releases before 3.15.3 are known to fail at.
	if oldest.KeepsSet && !oldest.SeesFuture && f.javaErrors.Load() > 0 {
		assert.Contains(t, message, "to 'unpack'")
	} else {
		assert.Zero(t, f.javaErrors.Load(), message)
	}
}

// ask makes all ask for permits, each with four callers, until the time is over. In Go one of
// them reserves, if it can, and one takes those of another limiter with them.
func (f *figures) ask(t *testing.T, javas, goes []service, name string, reserves bool) {
	t.Helper()
	const patience = 200 * time.Millisecond
	end := time.Now().Add(f.length + patience)
	var wg sync.WaitGroup
	// Those who wait and those who poll take turns.
	caller := func(i int, call func(timeout time.Duration, used int64) error) {
		timeout := time.Duration(i%2) * patience
		wg.Go(func() {
			for used := int64(0); time.Now().Before(end); used = (used + 1) % 9 {
				if !assert.NoError(t, call(timeout, used)) {
					return
				}
				if timeout == 0 {
					time.Sleep(5 * time.Millisecond)
				}
			}
		})
	}
	for i := range 4 * len(goes) {
		limiter := goes[i/4].RateLimiter(name)
		if f.leases {
			limiter = goes[i/4].RateLimiter(name, rratelimiter.WithLease(rratelimiter.Lease{Permits: 4, Life: f.interval / 4}))
		}
		beside := goes[i/4].RateLimiter("{"+name+"}beside", rratelimiter.WithDefault(rratelimiter.PerSecond(1000)))
		caller(i, func(timeout time.Duration, used int64) error {
			switch {
			case reserves && i%4 == 1:
				return f.reserve(t.Context(), limiter, 3, used, timeout)
			case reserves && i%4 == 3:
				return f.take(2, func() (bool, error) {
					return goes[i/4].TryAcquireAll(t.Context(), timeout, beside.Claim(1), limiter.Claim(2))
				}, timeout)
			}
			return f.take(1, func() (bool, error) { return limiter.TryAcquire(t.Context(), 1, timeout) }, timeout)
		})
	}
	for i := range 4 * len(javas) {
		caller(i/4, func(timeout time.Duration, _ int64) error {
			ok, err := javas[i/4].take(t.Context(), name, 1, timeout)
			if ok {
				f.java.Add(1)
			}
			if thrown, threw := errors.AsType[*javadriver.ThrownError](err); threw {
				message, _, _ := strings.Cut(thrown.Error(), ". channel: ")
				f.javaErrors.Add(1)
				f.firstError.CompareAndSwap(nil, message)
				return nil
			}
			return err
		})
	}
	wg.Wait()
}

// abandoned reports whether a call has left a request that was under way: if the machine is so busy that an
// answer takes 100 ms. It may be granted, and the permits run out before they are given back.
func abandoned(start time.Time, timeout time.Duration, granted bool, err error) bool {
	return errors.Is(err, rratelimiter.ErrUnavailable) || err == nil && !granted && timeout > 0 && time.Since(start) >= timeout+100*time.Millisecond
}

func (f *figures) take(permits int64, try func() (bool, error), timeout time.Duration) error {
	start := time.Now()
	ok, err := try()
	switch {
	case abandoned(start, timeout, ok, err):
		f.unknown.Add(permits)
		return nil
	case ok:
		f.goes.Add(permits)
	}
	return err
}

// reserve has it reserve permits, and settle what they cost.
func (f *figures) reserve(ctx context.Context, l *rratelimiter.RateLimiter, permits, used int64, timeout time.Duration) error {
	start := time.Now()
	var opts []rratelimiter.ReserveOption
	if used%2 == 0 {
		opts = append(opts, rratelimiter.Hold(f.interval*3/4))
	}
	r, err := l.Reserve(ctx, permits, timeout, opts...)
	if abandoned(start, timeout, r != nil && r.Granted, err) {
		f.unknown.Add(permits)
		return nil
	}
	if err != nil || !r.Granted {
		return err
	}
	kept := min(permits, used)
	f.goes.Add(kept)
	f.settled.Add(1)
	err = r.Settle(ctx, used)
	unknown := errors.Is(err, rratelimiter.ErrUnavailable)
	if unknown || time.Since(start) >= f.interval*3/4 { // then all that was reserved may have come back by itself
		f.unknown.Add(permits - kept)
	}
	if unknown {
		return nil
	}
	return err
}

func (f *figures) judge(grants []grant) {
	for i, g := range grants {
		if g.charged {
			continue
		}
		if kept := g.back.IsZero(); kept {
			f.total.Add(g.permits)
			if g.at.Sub(grants[0].at) < f.length {
				f.inTime += g.permits
			}
		}
		inUse, written := int64(0), int64(0)
		for _, other := range grants[:i+1] {
			if other.inUse(g.at, g.window, f.interval) {
				inUse += other.permits
			}
			if other.at.Add(f.interval).After(g.at) {
				written += other.permits
			}
		}
		f.mostInUse, f.mostWritten = max(f.mostInUse, inUse), max(f.mostWritten, written)
	}
}

// grant is a member that a script has added, or what it has taken of a window. One of which a part was given back is two.
type grant struct {
	at      time.Time // when, by the server
	dated   time.Time // its score
	window  int       // in which it was taken; 0 if members are kept
	member  string    // as it is now; "" if none are kept
	permits int64
	back    time.Time // when they were given back; zero if they were not
	charged bool      // by a settlement, even beyond the rate
}

// inUse says whether the grant, which is not later than at, is in use then.
func (g grant) inUse(at time.Time, window int, interval time.Duration) bool {
	if !g.back.IsZero() && !g.back.After(at) {
		return false
	}
	return g.window == window && (window > 0 || g.dated.Add(interval).After(at))
}

// watchGrants watches what a server of its own grants of a limiter from now on. The
// function that it returns ends that and returns all grants.
func watchGrants(t *testing.T, server *redistest.Server, set layout.Keys, interval time.Duration) func() []grant {
	t.Helper()
	w := watcher{set: set, interval: interval}
	end := redistest.Monitor(t, server.Addr(), w.see)
	return func() []grant {
		t.Helper()
		end()
		require.NoError(t, w.wrong)
		// A window begins only after the key of the one before has expired.
		_, text, _ := strings.Cut(limitertest.Must(server.Client(t, nil).Info(t.Context(), "stats").Result())(t), "\nexpired_keys:")
		var expired int
		require.NoError(t, limitertest.Second(fmt.Sscan(text, &expired)))
		assert.LessOrEqual(t, w.window, expired+1, "windows")
		return w.grants
	}
}

// watcher gathers grants from the commands that a server runs.
type watcher struct {
	set      layout.Keys
	interval time.Duration
	grants   []grant
	window   int   // the number of the last window
	wrong    error // what no server may do

	givesBack bool     // the script that runs does, or charges
	rest      string   // the member that it wrote for what is kept
	merges    []string // what the script that runs was named to merge; nil for others
}

func (w *watcher) see(ran redistest.Ran) {
	words := ran.Args
	if !ran.InScript {
		script := limitertest.ScriptOf(slices.Concat(words, []string{"", ""})[1])
		w.givesBack = script == lua.GiveBack || script == lua.SettleReservation
		w.rest, w.merges = "", nil
		if script == lua.Merge {
			w.merges = words
		}
	}
	switch {
	case len(words) < 3:
	case w.givesBack && ran.InScript && !strings.EqualFold(words[2], "nx"):
		w.seeBack(ran.At, words)
	case w.merges != nil && words[0] == "zadd" && words[1] == w.set.Permits:
		w.merged(words[3], time.UnixMilli(w.number(words[2])))
	case words[0] == "zadd" && words[1] == w.set.Permits && !strings.EqualFold(words[2], "xx"): // which dates a member anew
		pairs := words[2:]
		if strings.EqualFold(pairs[0], "nx") {
			pairs = pairs[1:]
		}
		for pair := range slices.Chunk(pairs, 2) {
			dated := time.UnixMilli(w.number(pair[0]))
			w.grants = append(w.grants, grant{at: ran.At, dated: dated, member: pair[1], permits: w.permits(pair[1]), charged: w.givesBack})
		}
	case words[0] == "set" && words[1] == w.set.Value && len(words) == 5:
		w.window++
		w.lasts(words[4])
	case words[0] == "pexpire" && words[1] == w.set.Value && w.window > 0:
		w.lasts(words[2])
	case words[0] == "decrby" && words[1] == w.set.Value && w.window > 0:
		w.grants = append(w.grants, grant{at: ran.At, dated: ran.At, window: w.window, permits: w.number(words[2])})
	}
}

// lasts returns for how many ms a window should last from now on.
func (w *watcher) lasts(ms string) {
	if w.number(ms) < w.interval.Milliseconds() {
		w.fail(fmt.Errorf("a window of %s ms", ms))
	}
}

func (w *watcher) fail(err error) { w.wrong = cmp.Or(w.wrong, err) }

func (w *watcher) number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	w.fail(err)
	return n
}

func (w *watcher) permits(text string) int64 {
	member, err := codec.Parse(text)
	w.fail(err)
	return int64(member.Permits)
}

// seeBack sees a command of a script that gives back what callers who have gone were granted, or have not used. What other
// scripts remove has run out, or is removed too early: of that grants must not know.
func (w *watcher) seeBack(at time.Time, words []string) {
	switch {
	case words[0] == "zadd" && words[1] == w.set.Permits:
		w.rest = words[len(words)-1]
	case words[0] == "zrem" && words[1] == w.set.Permits && words[2] != "": // no member: see pass_full_memory
		w.giveBackMember(at, words[2])
	case words[0] == "incrby" && words[1] == w.set.Value && w.window > 0:
		permits := w.number(words[2])
		for i := len(w.grants) - 1; i >= 0 && permits > 0; i-- {
			if g := w.grants[i]; g.back.IsZero() && g.window == w.window {
				part := min(permits, g.permits)
				w.giveBack(i, at, part)
				permits -= part
			}
		}
	}
}

// merged notes that a member of that date stands for those of a group, which are named behind it.
func (w *watcher) merged(into string, dated time.Time) {
	for _, group := range w.merges {
		for i, g := range w.grants {
			if strings.HasPrefix(group, into) && g.member != "" && strings.Contains(group, g.member) {
				w.grants[i].member, w.grants[i].dated = into, dated
			}
		}
	}
}

func (w *watcher) giveBackMember(at time.Time, member string) {
	permits, known := w.permits(member), false
	if w.rest != "" {
		permits -= w.permits(w.rest)
	}
	for i, g := range slices.Backward(w.grants) {
		if g.member == member && g.back.IsZero() {
			known, w.grants[i].member = true, w.rest
			if part := min(permits, g.permits); part > 0 {
				permits -= part
				w.giveBack(i, at, part)
			}
		}
	}
	if !known || permits > 0 {
		w.fail(fmt.Errorf("%q is given back, of which no grant is known, or of %d permits too few", member, permits))
	}
}

func (w *watcher) giveBack(i int, at time.Time, permits int64) {
	g := w.grants[i]
	if permits == g.permits {
		w.grants[i].back = at
		return
	}
	w.grants[i].permits -= permits
	g.permits, g.back = permits, at
	w.grants = slices.Insert(w.grants, i+1, g)
}
