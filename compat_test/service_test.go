package compat_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	layout "github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/model"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// service is a program that uses limiters, in either language. Its methods fail
// the test on an error, and skip it if the release of Redisson lacks the call.
type service struct {
	*rratelimiter.Client // nil in Java

	java *javaClient // nil in Go
	t    testing.TB
}

func newGo(t testing.TB, rdb rratelimiter.Redis, opts ...rratelimiter.Option) service {
	t.Helper()
	return service{limitertest.NewClient(t, rdb, opts...), nil, t}
}

func (s service) in(t testing.TB) service { return service{s.Client, s.java, t} }

func (s service) done(err error) {
	skipUnsupported(s.t, err)
	require.NoError(s.t, err)
}

// either makes a call of Java's limiter or of Go's, which must not fail.
func either[T any](s service, limiter, op string, goes func(l *rratelimiter.RateLimiter) (T, error), args ...any) (answer T) {
	s.t.Helper()
	var err error
	if s.java != nil {
		answer, err = ask[T](s.t.Context(), s.java, op, limiter, args...)
	} else {
		answer, err = goes(s.RateLimiter(limiter))
	}
	s.done(err)
	return answer
}

func (s service) TrySetRate(limiter string, cfg rratelimiter.Config) bool {
	return either(s, limiter, "trySetRate", func(l *rratelimiter.RateLimiter) (bool, error) { return l.TrySetRate(s.t.Context(), cfg) }, rateArgs(cfg)...)
}

func (s service) KeepState(limiter string, cfg rratelimiter.Config) {
	either(s, limiter, "setRateArgs", func(l *rratelimiter.RateLimiter) (any, error) {
		return nil, l.SetRate(s.t.Context(), cfg, rratelimiter.KeepState())
	}, rateArgs(cfg, true)...)
}

// take asks until a timeout is over, or once.
func (s service) take(ctx context.Context, limiter string, permits int64, timeout time.Duration) (bool, error) {
	switch {
	case s.java == nil:
		return s.RateLimiter(limiter).TryAcquire(ctx, permits, timeout)
	case timeout == 0:
		return ask[bool](ctx, s.java, "tryAcquire", limiter, permits)
	}
	return ask[bool](ctx, s.java, "tryAcquire", limiter, permits, timeout.Milliseconds())
}

func (s service) Try(limiter string, permits int64) bool {
	s.t.Helper()
	ok, err := s.take(s.t.Context(), limiter, permits, 0)
	s.done(err)
	return ok
}

func (s service) Acquire(ctx context.Context, limiter string, permits int64) error {
	if s.java != nil {
		return limitertest.Second(ask[any](ctx, s.java, "acquire", limiter, permits))
	}
	return s.RateLimiter(limiter).Acquire(ctx, permits)
}

func (s service) Release(limiter string, permits int64) {
	either(s, limiter, "release", func(l *rratelimiter.RateLimiter) (any, error) { return nil, l.Release(s.t.Context(), permits) }, permits)
}

func (s service) Available(limiter string) int64 {
	return either(s, limiter, "availablePermits", func(l *rratelimiter.RateLimiter) (int64, error) { return l.AvailablePermits(s.t.Context()) })
}

func (s service) Config(limiter string) rratelimiter.Config {
	return either(s, limiter, "getConfig", func(l *rratelimiter.RateLimiter) (rratelimiter.Config, error) { return l.Config(s.t.Context()) })
}

func (s service) Delete(limiter string) bool {
	return either(s, limiter, "delete", func(l *rratelimiter.RateLimiter) (bool, error) { return l.Delete(s.t.Context()) })
}

func (s service) unlink(limiter string) bool { return either[bool](s, limiter, "unlink", nil) }

// requireRelease skips the test if the release of Redisson is an older one.
func requireRelease(t testing.TB, first string) {
	t.Helper()
	if model.Older(*redissonVersion, first) {
		t.Skipf("Redisson %s is older than %s", *redissonVersion, first)
	}
}

// passTime lets time pass for the limiter: what Redis holds of it, also for the clients of these ids, is moved back in time.
func passTime(t testing.TB, rdb redistest.Client, limiter string, d time.Duration, ids ...string) {
	t.Helper()
	set := layout.KeysOf(limiter, "")
	all := []string{set.Config, set.Value, set.Permits}
	for _, id := range ids {
		set := layout.KeysOf(limiter, id)
		all = append(all, set.ClientValue, set.ClientPermits)
	}
	require.NoError(t, moveBack.Run(t.Context(), rdb, all, d.Milliseconds()).Err())
}

type javaDriver struct {
	*javadriver.Process

	release *model.Release
}

func newJavaDriver(version string) (*javaDriver, error) {
	jvm, err := javadriver.StartRedisson("java", version)
	return &javaDriver{jvm, model.ReleaseOf(version)}, err
}

func (d *javaDriver) service(t testing.TB, url string) service {
	t.Helper()
	return service{nil, d.openBy(t, "open", url), t}
}

// startDriver starts a JVM with this release of Redisson; the end of the test ends it. Most tests share one instead: sharedDriver.
func startDriver(t testing.TB, version string) *javaDriver {
	t.Helper()
	redistest.SkipShort(t, "a JVM with Redisson")
	d, err := newJavaDriver(version)
	skipIfMissing(t, err)
	t.Cleanup(d.Close)
	return d
}

var startShared = sync.OnceValues(func() (*javaDriver, error) { return newJavaDriver(*redissonVersion) })

// sharedDriver returns the test binary's JVM, with the release that -redisson names. The first call starts it; it ends with the binary.
func sharedDriver(t testing.TB) *javaDriver {
	t.Helper()
	redistest.SkipShort(t, "a JVM with Redisson")
	d, err := startShared()
	skipIfMissing(t, err)
	return d
}

func skipIfMissing(t testing.TB, err error) {
	t.Helper()
	if missing, ok := errors.AsType[*javadriver.MissingError](err); ok {
		redistest.SkipOrFail(t, missing.Why)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// skipUnsupported ends the test if an older release lacks the operation.
func skipUnsupported(t testing.TB, err error) {
	t.Helper()
	if *redissonVersion != newestRedisson && errors.Is(err, javadriver.ErrUnsupported) {
		t.Skip(err)
	}
}

// javaClient is a RedissonClient of a javaDriver: one Java service.
type javaClient struct {
	// ID is the id that stands in the client's own keys of PER_CLIENT limiters.
	ID string

	driver *javaDriver
	name   string
}

var lastClient atomic.Int64

// openThere returns a new RedissonClient of the servers of [redistest.CurrentClient], which reads
// of masters only: what Go has written is not at the replicas yet.
func (d *javaDriver) openThere(t testing.TB) *javaClient {
	t.Helper()
	to, patience := redistest.CurrentRoute(t), time.Minute.Milliseconds()
	return d.openBy(t, "openOn", to.Servers, to.Master, strings.Join(to.Addrs, ","), "", patience, "turns", patience/3)
}

// openBy returns a new RedissonClient by an operation of the driver with these arguments; the end of the test closes it.
func (d *javaDriver) openBy(t testing.TB, op string, args ...any) *javaClient {
	t.Helper()
	c := &javaClient{driver: d, name: fmt.Sprint("c", lastClient.Add(1))}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	c.ID, err = javadriver.Call[string](ctx, d.Process, op, append([]any{c.name}, args...)...)
	skipUnsupported(t, err)
	if err != nil {
		t.Fatalf("%v\nstderr of the JVM:\n%s", err, d.Stderr())
	}
	t.Cleanup(func() {
		if text := d.Stderr(); t.Failed() && text != "" {
			t.Logf("stderr of the JVM, of all tests:\n%s", text)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		// Redisson never answers the acquires that wait in it: their ctx ends those.
		if _, err := javadriver.Call[string](ctx, d.Process, "close", c.name); err != nil {
			t.Errorf("closing client %s: %v", c.name, err)
		}
	})
	return c
}

func ask[T any](ctx context.Context, c *javaClient, op, limiter string, args ...any) (T, error) {
	return javadriver.Call[T](ctx, c.driver.Process, op, append([]any{c.name, limiter}, args...)...)
}

// rateArgs is how the driver takes a configuration; without a keep-alive time it calls the form that has none.
func rateArgs(cfg rratelimiter.Config, more ...any) []any {
	return append([]any{cfg.Type, cfg.Rate, cfg.Interval.Milliseconds(), cfg.KeepAlive.Milliseconds()}, more...)
}

func TestDriverJVMEnds(t *testing.T) {
	t.Parallel()
	d := startDriver(t, *redissonVersion)
	d.Kill()
	assert.ErrorContains(t, limitertest.Second(javadriver.Call[string](t.Context(), d.Process, "version")), "signal: killed")
}

// javaBlock returns the first block of Java that a page shows.
func javaBlock(t *testing.T, page string) string {
	t.Helper()
	_, code, found := strings.Cut(string(limitertest.Must(os.ReadFile(filepath.Join("..", page)))(t)), "```java\n")
	require.True(t, found, "%s shows no Java", page)
	code, _, _ = strings.Cut(code, "```")
	return code
}

// The Java that the docs show is compiled without a warning of calls that the newest Redisson
// deprecates, and the program of docs/java.md takes a permit of Go's limiter.
func TestDocs_JavaSharesALimiter(t *testing.T) {
	t.Parallel()
	classPath, err := javadriver.RedissonClassPath("java", newestRedisson)
	if missing, ok := errors.AsType[*javadriver.MissingError](err); ok {
		redistest.SkipOrFail(t, missing.Error())
	}
	require.NoError(t, err)
	server := redistest.StartRedis(t)
	limiter := rratelimiter.New(server.Client(t, nil), limitertest.Patient()).RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerHour(100)))
	limitertest.MustAcquire(t, limiter, 1)
	dir := t.TempDir()
	program := javaBlock(t, "docs/java.md")
	imports, _, _ := strings.Cut(program, "public class")
	for name, code := range map[string]string{
		"Orders.java": strings.ReplaceAll(program, "localhost:6379", server.Addr()),
		"Readme.java": imports + "class Readme { void run(RedissonClient redisson) {\n" + javaBlock(t, "README.md") + "}}\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(code), 0o600))
	}
	java := func(name string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	said := java("javac", "-Xlint:deprecation", "-cp", classPath, "Orders.java", "Readme.java")
	assert.NotContains(t, said, "[deprecation]")
	said = java("java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", dir+string(os.PathListSeparator)+classPath, "Orders")
	assert.Equal(t, "true\n", said)
	assert.EqualValues(t, 98, limitertest.Available(t, limiter))
}

// A play is a limiter that a service in Java shares with one in Go.
type play struct {
	*testing.T

	java, goes service
	rdb        redistest.Client
	name       string
}

// A deed is what one of the services does with a limiter.
type deed func(s service, limiter string)

func (s service) do(limiter string, deeds ...deed) {
	s.t.Helper()
	for _, do := range deeds {
		do(s, limiter)
	}
}

// Java has the service in Java do something, Go the other, and both each.
func (p *play) Java(deeds ...deed) { p.java.do(p.name, deeds...) }
func (p *play) Go(deeds ...deed)   { p.goes.do(p.name, deeds...) }
func (p *play) both(deeds ...deed) {
	p.Java(deeds...)
	p.Go(deeds...)
}

func (p *play) pass(d time.Duration) { passTime(p, p.rdb, p.name, d, p.java.java.ID) }

func sets(cfg rratelimiter.Config) deed {
	return func(s service, limiter string) { require.True(s.t, s.TrySetRate(limiter, cfg)) }
}

func keeps(cfg rratelimiter.Config) deed {
	return func(s service, limiter string) { s.KeepState(limiter, cfg) }
}

func has(cfg rratelimiter.Config) deed {
	return func(s service, limiter string) { require.Equal(s.t, cfg, s.Config(limiter)) }
}

func take(permits int64) deed {
	return func(s service, limiter string) { require.True(s.t, s.Try(limiter, permits), "%d permits", permits) }
}

func refuse(permits int64) deed {
	return func(s service, limiter string) { require.False(s.t, s.Try(limiter, permits), "%d permits", permits) }
}

func free(want int64) deed {
	return func(s service, limiter string) { require.Equal(s.t, want, s.Available(limiter)) }
}

func release(permits int64) deed {
	return func(s service, limiter string) { s.Release(limiter, permits) }
}

func (p *play) reserve(permits int64, opts ...rratelimiter.ReserveOption) *rratelimiter.Reservation {
	p.Helper()
	return limitertest.Reserve(p, p.goes.RateLimiter(p.name), permits, opts...)
}

var tenAnHour = rratelimiter.PerHour(10)

var shared = map[string]func(p *play){
	"CountsMergedMembers": func(p *play) {
		p.Java(sets(rratelimiter.PerHour(300)))
		limiter := p.goes.RateLimiter(p.name)
		require.Equal(p, 200, together(200, func() bool { return limitertest.Try(p, limiter, 1) }))
		members := p.rdb.ZCard(p.Context(), layout.KeysOf(p.name, "").Permits).Val()
		require.Less(p, members, int64(200), "no member stands for more than one grant")
		p.Java(free(100), refuse(101), take(100), refuse(1))

		// Some of a merged member is given back; Java reads the rest.
		p.Go(release(150))
		p.Java(free(150), keeps(rratelimiter.PerHour(400)), free(250))

		// The permits run out. Redisson then counts the members that it sweeps.
		p.pass(time.Hour)
		p.Java(free(400), take(400))
		p.Go(free(0))
	},
	// A place is a permit in use for as long as it is renewed, and free once it is cancelled or its time is over.
	"SeesPlacesThatAreRenewed": func(p *play) {
		p.Java(sets(tenAnHour))
		whole, held := p.reserve(4), p.reserve(4, rratelimiter.Hold(40*time.Minute))
		for range 4 {
			p.pass(30 * time.Minute)
			require.NoError(p, whole.Renew(p.Context()))
			require.NoError(p, held.Renew(p.Context()))
			p.Java(refuse(3), free(2))
		}
		p.pass(39 * time.Minute)
		p.Java(refuse(3))
		p.pass(time.Minute)
		p.Java(take(6)) // the hold is over
		require.ErrorIs(p, held.Renew(p.Context()), rratelimiter.ErrSettled)
		require.NoError(p, whole.Cancel(p.Context()))
		p.Java(free(4), take(4), refuse(1))
	},
	// Several wait on both sides. All are served, at the limiter's pace.
	"WaitsBesideGo": func(p *play) {
		const interval = 300 * time.Millisecond
		p.Java(sets(limitertest.Every(6, interval)))
		begin := time.Now().Truncate(time.Millisecond)
		var next atomic.Int64
		served := together(30, func() bool {
			s := []service{p.java, p.goes}[next.Add(1)%2]
			return assert.NoError(p, s.Acquire(p.Context(), p.name, 1))
		})
		require.Equal(p, 30, served)
		require.GreaterOrEqual(p, time.Since(begin), 4*interval, "30 of 6 an interval")
	},
}

// readsOverride has Java read a rate that Go has set for a while as any other, also if it makes the value, and after its end until Go asks.
func readsOverride(kind rratelimiter.RateType) func(p *play) {
	return func(p *play) {
		before := rratelimiter.Config{Type: kind, Rate: 5, Interval: time.Hour}
		during := rratelimiter.Config{Type: kind, Rate: 20, Interval: 2 * time.Hour}
		l := p.goes.RateLimiter(p.name)
		override := func() { require.NoError(p, l.SetRate(p.Context(), during, rratelimiter.For(time.Hour))) }
		p.Go(sets(before))
		override()
		p.Java(has(during), take(15), refuse(6), free(5), release(1)) // by a value that Java makes

		require.NoError(p, p.rdb.HSet(p.Context(), p.name, "override", "1000 5 3600000 0").Err()) // it has ended
		p.Java(has(during), take(1))
		p.goes.Available(p.name)
		p.Java(has(before))
		override()
		p.Java(keeps(before))
		_, overridden, err := l.Override(p.Context())
		require.NoError(p, err)
		require.False(p, overridden)
	}
}

// countsMany has a member of more permits than one signed number of 32 bits holds be read right too.
func countsMany(rate int64) func(p *play) {
	return func(p *play) {
		many := min(rate-5, rratelimiter.MaxPermits)
		p.Go(sets(rratelimiter.PerHour(rate)), take(many))
		p.both(free(rate - many))
		p.Java(take(5))
		p.both(free(rate - many - 5))
		p.pass(time.Hour)
		p.Java(take(many))
		p.both(free(rate - many))
		p.Go(release(many-1), keeps(rratelimiter.PerHour(rate-1)))
		p.both(free(rate - 2))
	}
}

func TestJava(t *testing.T) {
	t.Parallel()
	requireRelease(t, "3.35.0")
	all := maps.Clone(shared)
	for _, kind := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
		all[fmt.Sprint("ReadsOverrides/", kind)] = readsOverride(kind)
	}
	for _, rate := range []int64{1 << 31, 1 << 32, rratelimiter.MaxRate} {
		all[fmt.Sprint("CountsMembersOfManyPermits/", rate)] = countsMany(rate)
	}
	driver := sharedDriver(t)
	limitertest.Each(t, all, func(t *testing.T, test func(p *play)) {
		p := &play{T: t, rdb: redistest.Redis(t), name: redistest.Name(t)}
		p.java, p.goes = driver.service(t, redistest.Shared(t).URL()), newGo(t, p.rdb)
		test(p)
	})
}

// goID is the client id of the Go services that are given one.
const goID = "gopher"

// oddNames are names with braces, which decide on the cluster slot, and what else may stand in one.
var oddNames = []string{"a{b}c", "foo}bar", "a{b", "{{a}}", "a}", "{}x", "x{}", "{x}", "a b", "ü限", "a:b*?[c]\\", "50%+1", "\nbreak", "\"'"}

func TestNamesOfAnyKind(t *testing.T) {
	t.Parallel()
	driver, rdb := sharedDriver(t), redistest.Redis(t)
	requireRelease(t, "3.35.0")
	for _, prefix := range []string{"", "shop:", "{shop}:", "sh{op"} { // put before all names by a mapper
		args, opts := []any{redistest.Shared(t).URL()}, []rratelimiter.Option{rratelimiter.WithClientID(goID)}
		if prefix != "" {
			args = append(args, prefix)
			opts = append(opts, rratelimiter.WithNameMapper(func(name string) string { return prefix + name }))
		}
		java, goes := service{nil, driver.openBy(t, "open", args...), t}, newGo(t, rdb, opts...)
		for _, odd := range oddNames {
			t.Run(prefix+odd, func(t *testing.T) {
				testSameKeys(t, java.in(t), goes.in(t), prefix, odd+redistest.Name(t))
				testSameKeys(t, java.in(t), goes.in(t), prefix, redistest.Name(t)+odd)
			})
		}
	}
}

// testSameKeys checks that both services mean the same keys by a name.
func testSameKeys(t *testing.T, java, goes service, prefix, name string) {
	t.Helper()
	rdb := redistest.Redis(t)
	kept := func() (all []string) {
		t.Helper()
		escaped := strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace(prefix + name)
		it := rdb.Scan(t.Context(), 0, "*"+escaped+"*", 1000).Iterator()
		for it.Next(t.Context()) {
			all = append(all, it.Val())
		}
		require.NoError(t, it.Err())
		return all
	}
	require.Empty(t, kept())
	java.do(name, sets(rratelimiter.PerHour(5)), take(2))
	goes.do(name, free(3))
	before := kept()
	goes.do(name, take(3))
	java.do(name, refuse(1))
	require.ElementsMatch(t, before, kept())
	require.Len(t, before, 3)
	require.True(t, goes.Delete(name))
	require.Empty(t, kept())
	goes.do(name, sets(limitertest.PerClient(5, time.Hour)), take(3))
	require.Len(t, kept(), 3)
	java.do(name, free(5), take(5))
	set, goSet := layout.KeysOf(prefix+name, java.java.ID), layout.KeysOf(prefix+name, goID)
	require.ElementsMatch(t, kept(), []string{set.Config, set.ClientValue, set.ClientPermits, goSet.ClientValue, goSet.ClientPermits})
	require.True(t, java.Delete(name))
	require.True(t, goes.Delete(name))
	require.Empty(t, kept())
}
