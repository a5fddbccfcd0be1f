package httplimit_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/rratelimitertest"
)

type sent struct {
	path string
	at   time.Duration // since the test began
}

// upstream answers requests of the path with 429 and Retry-After, the first or all of them, and records when requests arrive.
type upstream struct {
	path    string
	after   time.Duration
	always  bool
	paused  atomic.Bool
	arrived redistest.List[sent]
}

func (u *upstream) RoundTrip(r *http.Request) (*http.Response, error) {
	u.arrived.Add(sent{r.URL.Path, sinceBubble()})
	if r.URL.Path != u.path || !u.always && u.paused.Swap(true) {
		return answers(http.StatusOK)(r)
	}
	return answers(http.StatusTooManyRequests, "Retry-After", strconv.Itoa(int(u.after/time.Second)))(r)
}

// partner answers each request of the path /stop with 429.
func partner(after time.Duration) *upstream {
	return &upstream{path: "/stop", after: after, always: true}
}

// passed are when requests arrived that were not to stop it.
func (u *upstream) passed() (all []time.Duration) {
	for _, s := range u.arrived.All() {
		if s.path != u.path {
			all = append(all, s.at)
		}
	}
	return all
}

// oneByOne lets each call come at a moment of its own, as what happens at once in a bubble has one moment.
type oneByOne struct{ *rratelimiter.KeyedLimiter }

func (o oneByOne) Acquire(ctx context.Context, key string, permits int64) error {
	time.Sleep(time.Nanosecond)
	return o.KeyedLimiter.Acquire(ctx, key, permits)
}

var pausing = limitertest.Tests[redistest.Client]{
	// Behind a pause each request follows the one before it into line without waiting for its answer: they share round trips.
	"LineSharesRoundTrips": func(t *testing.T, rdb redistest.Client) {
		const requests, trip = 24, 100 * time.Millisecond
		rdb.AddHook(redistest.BeforeCommands(func(...redis.Cmder) { time.Sleep(trip) }))
		keyed := limitertest.NewClient(t, rdb).Keyed("", rratelimiter.PerMinute(100))
		base := &upstream{path: "/stop", after: 5 * time.Second}
		transport := httplimit.NewTransport(base, keyed)
		fetch(t, transport, "/stop")
		stopped := base.arrived.All()[0].at
		limitertest.Together(requests, func(int) { fetch(t, transport, "/") })
		assert.LessOrEqual(t, base.arrived.All()[requests].at-stopped-5*time.Second, 3*trip)
	},

	// While requests are in line, because of a pause, those that come later stay behind, and those whose time ends leave it.
	"LineGoesOnWhenRequestsLeave": func(t *testing.T, rdb redistest.Client) {
		keyed := limitertest.NewClient(t, rdb).Keyed("", rratelimiter.Config{Rate: 1, Interval: time.Second})
		base := &upstream{path: "/stop", after: 5 * time.Second}
		transport, ended := httplimit.NewTransport(base, oneByOne{keyed}), make(chan error)
		begin := func(ctx context.Context, path string) {
			go func() { ended <- limitertest.Second(send(ctx, t, transport, "http://api.example.org"+path)) }()
			time.Sleep(time.Microsecond)
		}
		fetch(t, transport, "/stop")
		first, leaves := context.WithCancel(t.Context())
		begin(first, "/first") // the head of the line
		begin(t.Context(), "/a")
		hurried, cancel := context.WithTimeout(t.Context(), 5500*time.Millisecond) // it ends after the pause, before its turn
		defer cancel()
		begin(hurried, "/hurried")
		begin(t.Context(), "/b")
		time.Sleep(4900 * time.Millisecond)
		leaves()
		require.ErrorIs(t, <-ended, context.Canceled)
		begin(t.Context(), "/c")
		for range 3 {
			if err := <-ended; err != nil {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
		}
		require.NoError(t, <-ended)
		var paths []string
		for _, s := range base.arrived.All() {
			paths = append(paths, s.path)
		}
		assert.Equal(t, []string{"/stop", "/a", "/b", "/c"}, paths)
	},

	// What one program hears holds within a second in one that sends all the time, and at once in one that starts.
	"HoldsInAllPrograms": func(t *testing.T, rdb redistest.Client) {
		upstream := partner(30 * time.Second)
		busy, hears := program(t, rdb, upstream), program(t, rdb, upstream)
		sends := limitertest.Go(func() {
			for range 40 {
				fetch(t, busy, "/busy")
				time.Sleep(100 * time.Millisecond)
			}
		})
		time.Sleep(2050 * time.Millisecond)
		heard := sinceBubble()
		fetch(t, hears, "/stop")
		assert.Equal(t, "429", rdb.Get(t.Context(), pauseKey).Val())
		assert.InDelta(t, 30*time.Second, rdb.PTTL(t.Context(), pauseKey).Val(), float64(2*time.Millisecond))
		time.Sleep(10 * time.Second)
		fetch(t, program(t, rdb, upstream), "/restarted")
		<-sends
		all, before := upstream.passed(), 0
		for _, at := range all {
			if at < heard+30*time.Second {
				before++
				assert.Less(t, at, heard+time.Second)
			}
		}
		assert.Len(t, all, 41)
		assert.InDelta(t, 25, before, 5)
		assert.InDelta(t, heard+30*time.Second, all[before], float64(5*time.Millisecond), "it ends for all at once")
		assert.Zero(t, rdb.Exists(t.Context(), pauseKey).Val())
	},

	// A request that waits for a permit of its program does not leave if another program has heard that it should not.
	"StopsRequestsThatWait": func(t *testing.T, rdb redistest.Client) {
		upstream := partner(30 * time.Second)
		client := limitertest.NewClient(t, rdb)
		slow := client.Keyed("slow:", rratelimiter.Config{Rate: 1, Interval: 10 * time.Second})
		waits := httplimit.NewTransport(upstream, slow, httplimit.WithSharedPause(client))
		fetch(t, waits, "/first")
		time.AfterFunc(3*time.Second, func() { fetch(t, program(t, rdb, upstream), "/stop") })
		fetch(t, waits, "/second")
		all := upstream.passed()
		assert.InDelta(t, 33*time.Second, all[1]-all[0], float64(5*time.Millisecond))
		free := limitertest.Must(slow.Peek(t.Context(), "upstream:api.example.org", 0))(t)
		assert.Equal(t, 10*time.Second, free.ResetAfter.Round(10*time.Millisecond), "one permit is in use, of the moment in which it left")
	},

	// Requests pay at most one command a second for it, and no round trip of their own.
	"IsReadOnceASecond": func(t *testing.T, rdb redistest.Client) {
		const requests = 100
		client := limitertest.NewClient(t, rdb)
		perHost := client.Keyed("", rratelimiter.PerSecond(1000))
		alone, shares := httplimit.NewTransport(answers(http.StatusOK), perHost), program(t, rdb, answers(http.StatusOK))
		fetch(t, alone, "/")
		fetch(t, shares, "/") // both know their scripts now
		commands := limitertest.CountCommands(rdb)
		var total [2]int
		for i, transport := range []http.RoundTripper{alone, shares} {
			for range requests {
				fetch(t, transport, "/")
				time.Sleep(50 * time.Millisecond)
			}
			total[i] = commands.Total()
		}
		assert.InDelta(t, 5, total[1]-2*total[0], 2)
		time.Sleep(time.Minute)
		idle := commands.Total()
		time.Sleep(time.Hour)
		assert.Equal(t, idle, commands.Total(), "nothing is read for no one")
	},

	// A pause's key has the hash tag of its transport's.
	"KeyHasOneHashTag": func(t *testing.T, rdb redistest.Client) {
		for key, opts := range map[string][]httplimit.Option{
			"{a}:api.example.org:pause": {httplimit.WithPrefix("{a}:")},
			"a:{api.example.org}:pause": {httplimit.WithPrefix("a:"), httplimit.WithHashTag()},
		} {
			fetch(t, program(t, rdb, partner(time.Minute), opts...), "/stop")
			assert.Positive(t, rdb.PTTL(t.Context(), key).Val(), key)
		}
	},

	// A longer pause is kept, whichever program hears of it first, and a transport keeps to its own bound.
	"LongestCounts": func(t *testing.T, rdb redistest.Client) {
		long, short := partner(40*time.Second), partner(2*time.Second)
		fetch(t, program(t, rdb, long), "/stop")
		hurried := program(t, rdb, short, httplimit.WithPause(5*time.Second))
		start := time.Now()
		fetch(t, hurried, "/a")
		assert.Equal(t, 40*time.Second, time.Since(start).Round(10*time.Millisecond), "it looks again each time")
		fetch(t, hurried, "/stop")
		fetch(t, program(t, rdb, long), "/stop")
		assert.Equal(t, 40*time.Second, rdb.PTTL(t.Context(), pauseKey).Val().Round(time.Second))
	},

	// A transport that pauses more keys than it remembers forgets the pauses that end first.
	"ForgetsThoseThatEndFirst": func(t *testing.T, _ redistest.Client) {
		const long, short = 100, 20_000
		transport := httplimit.NewTransport(roundTripper(func(r *http.Request) (*http.Response, error) {
			return answers(http.StatusTooManyRequests, "Retry-After", r.URL.Query().Get("after"))(r)
		}), grants(), httplimit.WithWait(0))
		ask := func(i int, after string) error {
			return limitertest.Second(send(t.Context(), t, transport, fmt.Sprintf("http://%d.example.org/?after=%s", i, after)))
		}
		for i := range long + short {
			require.NoError(t, ask(i, map[bool]string{true: "60", false: "1"}[i < long]))
		}
		for i := range long {
			require.Error(t, ask(i, "0"))
		}
	},

	// What a request is granted in spite of a pause goes back, and it asks again when that is over.
	"GrantGoesBack": func(t *testing.T, _ redistest.Client) {
		limiter := &deafWaiter{fake: grants()}
		base := &upstream{path: "/stop", after: 10 * time.Second}
		transport := httplimit.NewTransport(base, limiter)
		const ms = time.Millisecond
		limitertest.Together(3, func(i int) {
			time.Sleep(time.Duration(i) * 10 * ms)
			fetch(t, transport, []string{"/stop", "/a", "/b"}[i])
		})
		assert.Equal(t, []time.Duration{1010 * ms, 1020 * ms}, limiter.released.All())
		assert.Equal(t, []time.Duration{1000 * ms, 1010 * ms, 1020 * ms, 12000 * ms, 13000 * ms}, limiter.acquired.All())
		assert.Equal(t, []sent{{"/stop", 1000 * ms}, {"/a", 12000 * ms}, {"/b", 13000 * ms}}, base.arrived.All(), "one after another")
	},

	// What was heard while Redis was away holds in other programs too once it is back.
	"HeardWithoutRedis": func(t *testing.T, _ redistest.Client) {
		env := rratelimitertest.New(t)
		upstream := partner(time.Minute)
		hears := httplimit.NewTransport(upstream, grants(), httplimit.WithSharedPause(env.Client))
		env.Down()
		fetch(t, hears, "/stop")
		heard := time.Now()
		time.Sleep(10 * time.Second)
		env.Up()
		time.Sleep(10 * time.Second)
		other := httplimit.NewTransport(upstream, grants(), httplimit.WithSharedPause(limitertest.NewClient(t, env.Redis)))
		fetch(t, other, "/restarted")
		assert.InDelta(t, time.Minute, time.Since(heard), float64(5*time.Second))
	},

	// While Redis does not answer, a pause holds in its transport as without the option, and only the first request waits for Redis.
	"HoldsWithoutRedis": func(t *testing.T, _ redistest.Client) {
		rdb, _ := redistest.Mini(t)
		var silent atomic.Bool
		silent.Store(true)
		rdb.AddHook(redistest.Hook(func(ctx context.Context, _ []redis.Cmder, next func() error) error {
			for silent.Load() {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Second):
				}
			}
			return next()
		}))
		upstream := partner(7 * time.Second)
		client := limitertest.NewClient(t, rdb)
		transport := httplimit.NewTransport(upstream, grants(), httplimit.WithSharedPause(client), httplimit.WithTimeout(100*time.Millisecond))
		start := time.Now()
		fetch(t, transport, "/")
		assert.Equal(t, 100*time.Millisecond, time.Since(start))
		start = time.Now()
		for range 50 {
			fetch(t, transport, "/")
		}
		fetch(t, transport, "/stop")
		assert.Zero(t, time.Since(start))
		fetch(t, transport, "/")
		assert.Equal(t, 7*time.Second, time.Since(start))
		silent.Store(false)
		time.Sleep(5 * time.Second)
		fetch(t, transport, "/")
		synctest.Wait()
		fetch(t, transport, "/stop")
		assert.Positive(t, rdb.PTTL(t.Context(), pauseKey).Val(), "it is shared again")

		require.NoError(t, client.Close(t.Context()))
		time.Sleep(10 * time.Second)
		start = time.Now()
		fetch(t, transport, "/")
		fetch(t, transport, "/stop")
		fetch(t, transport, "/")
		assert.Equal(t, 7*time.Second, time.Since(start), "a closed Client is as no Redis")
	},
}

func TestPause(t *testing.T) {
	t.Parallel()
	limitertest.Virtual(t, pausing, func(t *testing.T, rdb redistest.Client, test func(t *testing.T, rdb redistest.Client)) { test(t, rdb) })
}

// deafWaiter is a limiter that waits itself and grants after a second, whatever the context says.
type deafWaiter struct {
	*fake

	acquired, released redistest.List[time.Duration]
}

func (d *deafWaiter) Acquire(context.Context, string, int64) error {
	time.Sleep(time.Second)
	d.acquired.Add(sinceBubble())
	return nil
}

func (d *deafWaiter) Release(context.Context, string, int64) error {
	d.released.Add(sinceBubble())
	return nil
}

func sinceBubble() time.Duration { return time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) }

const pauseKey = "{upstream:api.example.org}:pause"

// program returns the transport of a program of its own, which shares pauses.
func program(t testing.TB, rdb redistest.Client, base http.RoundTripper, opts ...httplimit.Option) *httplimit.Transport {
	t.Helper()
	client := limitertest.NewClient(t, rdb)
	transport := httplimit.NewTransport(base, client.Keyed("", rratelimiter.PerSecond(1000)), append([]httplimit.Option{patient(), httplimit.WithSharedPause(client)}, opts...)...)
	require.NoError(t, transport.Err())
	return transport
}

// fetch sends a request that must pass, of a path of one upstream or a whole URL, and returns how long that took.
func fetch(t testing.TB, transport http.RoundTripper, url string) time.Duration {
	t.Helper()
	if strings.HasPrefix(url, "/") {
		url = "http://api.example.org" + url
	}
	took, err := send(t.Context(), t, transport, url)
	assert.NoError(t, err)
	return took
}
