package httplimit_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
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
)

// sent is a request that arrived at an upstream.
type sent struct {
	path string
	at   time.Duration // since the test began
}

// pausing is an upstream that answers 429 with Retry-After to a request of the path, once.
func pausing(path string, after time.Duration) (base roundTripper, arrived *redistest.List[sent]) {
	start, paused := time.Now(), false
	arrived = &redistest.List[sent]{}
	return func(r *http.Request) (*http.Response, error) {
		arrived.Add(sent{r.URL.Path, time.Since(start)})
		if r.URL.Path != path || paused {
			return answers(http.StatusOK)(r)
		}
		paused = true
		return answers(http.StatusTooManyRequests, "Retry-After", strconv.Itoa(int(after/time.Second)))(r)
	}, arrived
}

// oneByOne lets each call come at a moment of its own: by that a limiter knows which came first, and
// what happens at once in a bubble has one moment.
type oneByOne struct{ *rratelimiter.KeyedLimiter }

func (o oneByOne) Acquire(ctx context.Context, key string, permits int64) error {
	time.Sleep(time.Nanosecond)
	return o.KeyedLimiter.Acquire(ctx, key, permits)
}

// A pause belongs to the line: those in line ask for nothing while it lasts, and leave in the order in
// which they came when it is over.
func TestTransport_PauseKeepsTheOrderOfRequests(t *testing.T) {
	t.Parallel()
	const requests, interval, pause = 24, 100 * time.Millisecond, 7 * time.Second
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		keyed := limitertest.NewClient(t, rdb).Keyed("", rratelimiter.Config{Rate: 1, Interval: interval})
		commands := limitertest.CountCommands(rdb)
		base, arrived := pausing("/08", pause)
		transport := httplimit.NewTransport(base, oneByOne{keyed})
		var want []string
		ended := make(chan error)
		for i := range requests {
			path := fmt.Sprintf("/%02d", i)
			want = append(want, path)
			go func() {
				_, err := send(t.Context(), t, transport, "http://api.example.org"+path)
				ended <- err
			}()
			time.Sleep(time.Microsecond)
		}
		for range 9 {
			require.NoError(t, <-ended)
		}
		synctest.Wait()
		asked := commands.Total()
		time.Sleep(pause / 2)
		assert.Equal(t, asked, commands.Total(), "no one in line asks")
		for range requests - 9 {
			require.NoError(t, <-ended)
		}
		all := arrived.All()
		var got []string
		for _, s := range all {
			got = append(got, s.path)
		}
		assert.Equal(t, want, got)
		assert.Equal(t, pause, (all[9].at - all[8].at).Round(time.Millisecond))
		assert.Equal(t, (requests-10)*interval, (all[requests-1].at - all[9].at).Round(time.Millisecond), "no permit is lost")
	})
}

// Behind a pause each request follows the one before it into the limiter's line, without waiting for its
// answer: the requests share round trips as always.
func TestTransport_PausedLineSharesRoundTrips(t *testing.T) {
	t.Parallel()
	const requests, trip = 24, 100 * time.Millisecond
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		rdb.AddHook(redistest.BeforeCommands(func(...redis.Cmder) { time.Sleep(trip) }))
		keyed := limitertest.NewClient(t, rdb).Keyed("", rratelimiter.PerMinute(100))
		base, arrived := pausing("/stop", 5*time.Second)
		transport := httplimit.NewTransport(base, keyed)
		_, err := send(t.Context(), t, transport, "http://api.example.org/stop")
		require.NoError(t, err)
		stopped := arrived.All()[0].at
		ended := make(chan error)
		for range requests {
			go func() {
				_, err := send(t.Context(), t, transport, "http://api.example.org/")
				ended <- err
			}()
		}
		for range requests {
			require.NoError(t, <-ended)
		}
		assert.LessOrEqual(t, arrived.All()[requests].at-stopped-5*time.Second, 3*trip)
	})
}

// While requests are in line, because of a pause, those that come later stay behind, and those whose
// time ends leave it.
func TestTransport_PausedLineGoesOnWhenRequestsLeave(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		keyed := limitertest.NewClient(t, rdb).Keyed("", rratelimiter.Config{Rate: 1, Interval: time.Second})
		base, arrived := pausing("/stop", 5*time.Second)
		transport := httplimit.NewTransport(base, oneByOne{keyed})
		ended := make(chan error)
		begin := func(ctx context.Context, path string) {
			go func() {
				_, err := send(ctx, t, transport, "http://api.example.org"+path)
				ended <- err
			}()
			time.Sleep(time.Microsecond)
		}
		begin(t.Context(), "/stop")
		require.NoError(t, <-ended)
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
		var got []string
		for _, s := range arrived.All() {
			got = append(got, s.path)
		}
		assert.Equal(t, []string{"/stop", "/a", "/b", "/c"}, got)
	})
}

// A transport that pauses more keys than it remembers forgets the pauses that end first.
func TestTransport_ForgetsThePausesThatEndFirst(t *testing.T) {
	t.Parallel()
	const long, short = 100, 20_000
	synctest.Test(t, func(t *testing.T) {
		transport := httplimit.NewTransport(roundTripper(func(r *http.Request) (*http.Response, error) {
			return answers(http.StatusTooManyRequests, "Retry-After", r.URL.Query().Get("after"))(r)
		}), grants(), httplimit.WithWait(0))
		host := func(i int) string { return fmt.Sprintf("http://%d.example.org/?after=", i) }
		paused := func(from, to int) (n int) {
			for i := from; i < to; i++ {
				if _, err := send(t.Context(), t, transport, host(i)+"0"); err != nil {
					n++
				}
			}
			return n
		}
		for i := range long + short {
			after := "1"
			if i < long {
				after = "60"
			}
			_, err := send(t.Context(), t, transport, host(i)+after)
			require.NoError(t, err)
		}
		assert.Equal(t, long, paused(0, long))
		time.Sleep(59 * time.Second)
		assert.Equal(t, long, paused(0, long))
		time.Sleep(time.Second)
		assert.Zero(t, paused(0, long))
	})
}

// deafWaiter is a limiter that waits itself and grants after a time, whatever the context says.
type deafWaiter struct {
	*fake
	after time.Duration

	acquired, released redistest.List[time.Duration]
}

func (d *deafWaiter) Acquire(context.Context, string, int64) error {
	time.Sleep(d.after)
	d.acquired.Add(sinceBubble())
	return nil
}

func (d *deafWaiter) Release(context.Context, string, int64) error {
	d.released.Add(sinceBubble())
	return nil
}

// sinceBubble is the time since a bubble began.
func sinceBubble() time.Duration { return time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) }

// What a request is granted in spite of a pause goes back, and it asks again when that is over.
func TestTransport_GrantOfAPausedRequestGoesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := &deafWaiter{fake: grants(), after: time.Second}
		base, arrived := pausing("/stop", 10*time.Second)
		transport := httplimit.NewTransport(base, limiter)
		ended := make(chan error)
		for _, path := range []string{"/stop", "/a", "/b"} {
			go func() {
				_, err := send(t.Context(), t, transport, "http://api.example.org"+path)
				ended <- err
			}()
			time.Sleep(10 * time.Millisecond)
		}
		for range 3 {
			require.NoError(t, <-ended)
		}
		const ms = time.Millisecond
		assert.Equal(t, []time.Duration{1010 * ms, 1020 * ms}, limiter.released.All())
		assert.Equal(t, []time.Duration{1000 * ms, 1010 * ms, 1020 * ms, 12000 * ms, 13000 * ms}, limiter.acquired.All())
		assert.Equal(t, []sent{{"/stop", 1000 * ms}, {"/a", 12000 * ms}, {"/b", 13000 * ms}}, arrived.All(), "one after another")
	})
}
