package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// What /hello and /orders declare.
const (
	helloWindow, ordersWindow       = 30 * time.Second, time.Minute
	helloThreshold, ordersThreshold = 2, 3
)

const plenty = 1_000_000

var userNumber atomic.Int64

func newUser() string { return fmt.Sprintf("user%d", userNumber.Add(1)) }

func TestEachUserHasTheDeclaredRateOfEachRoute(t *testing.T) {
	t.Parallel()
	engines(t, plenty, func(t *testing.T, s *site, rdb *redis.Client) {
		var users sync.WaitGroup
		for range 12 {
			users.Go(func() {
				within(t, helloWindow, func() error {
					user := newUser()
					if err := s.exhaust(user, http.MethodGet, "/hello", helloThreshold, helloWindow); err != nil {
						return err
					}
					return s.exhaust(user, http.MethodPost, "/orders", ordersThreshold, ordersWindow)
				})
			})
		}
		users.Wait()
		keys, err := rdb.Keys(t.Context(), "*").Result()
		require.NoError(t, err)
		for _, key := range keys {
			assert.True(t, ours(key), key)
		}
	})
}

// exhaust makes requests of a user who has made none, and checks that as many
// pass as the threshold says.
func (s *site) exhaust(user, method, path string, threshold int64, window time.Duration) error {
	for i := range threshold + 3 {
		got, err := s.as(user, method, path)
		if err != nil {
			return err
		}
		left, granted, err := s.checkUser(got, threshold, window)
		if err != nil {
			return err
		}
		if granted != (i < threshold) || left != max(0, threshold-1-i) {
			return fmt.Errorf("request %d of %s: %s, %d left", i, user, got.Status, left)
		}
		if granted && got.body == "" {
			return fmt.Errorf("no body of %s", path)
		}
	}
	return nil
}

// load makes requests of users of their own until stop is called.
func (s *site) load(callers int) (stop func()) {
	var (
		all  sync.WaitGroup
		made atomic.Int64
		done = make(chan struct{})
	)
	for range callers {
		all.Go(func() {
			for {
				user, passed, start := newUser(), int64(0), time.Now()
				for range 6 {
					select {
					case <-done:
						return
					default:
					}
					got, err := s.as(user, http.MethodGet, "/hello")
					if !assert.NoError(s.t, err) {
						return
					}
					_, granted, err := s.checkUser(got, helloThreshold, helloWindow)
					if !assert.NoError(s.t, err) {
						return
					}
					if granted {
						passed++
					}
					made.Add(1)
				}
				windows := 1 + int64(time.Since(start)/helloWindow)
				assert.LessOrEqual(s.t, passed, helloThreshold*windows)
			}
		})
	}
	return func() {
		close(done)
		all.Wait()
		s.t.Logf("%d requests of others meanwhile", made.Load())
	}
}

func TestThresholdsChangeUnderLoad(t *testing.T) {
	t.Parallel()
	engines(t, plenty, func(t *testing.T, s *site, rdb *redis.Client) {
		defer s.load(8)()
		within(t, helloWindow, func() error { return s.changeThresholds(t, rdb, newUser()) })
		within(t, helloWindow, func() error { return s.raiseForOneUserUnderLoad(newUser()) })
		assert.Contains(t, s.logged.String(), `msg="limit changed" actor=admin action=change kind=sliding-log limiter=hello`)
	})
}

// changeThresholds changes a user's threshold by each of the ways, and looks at
// the very next requests.
func (s *site) changeThresholds(t *testing.T, rdb *redis.Client, user string) error {
	t.Helper()
	hset := func(text string) func() error {
		return func() error { return rdb.HSet(t.Context(), thresholds, "limit:"+user+":/hello", text).Err() }
	}
	set := func(n int64) func() error { return func() error { return s.setThreshold(user, n) } }
	for i, step := range []struct {
		change    func() error
		threshold int64
		passes    []bool
		left      []int64
	}{
		{set(-1), 2, []bool{true, true, false}, []int64{1, 0, 0}},
		{set(4), 4, []bool{true, true, false}, []int64{1, 0, 0}},
		{hset("6"), 6, []bool{true}, []int64{1}},
		{set(1), 1, []bool{false}, []int64{0}},
		{hset("0"), 0, []bool{false}, []int64{0}},
		{set(7), 7, []bool{true, true, false}, []int64{1, 0, 0}},
		{set(-1), 2, []bool{false}, []int64{0}},
	} {
		if err := step.change(); err != nil {
			return err
		}
		for j, passes := range step.passes {
			got, err := s.as(user, http.MethodGet, "/hello")
			if err != nil {
				return err
			}
			left, granted, err := s.checkUser(got, step.threshold, helloWindow)
			if err != nil {
				return fmt.Errorf("step %d: %w", i, err)
			}
			if granted != passes || left != step.left[j] {
				return fmt.Errorf("step %d, request %d: %s, %d left", i, j, got.Status, left)
			}
		}
	}
	return nil
}

// raiseForOneUserUnderLoad has many callers be one user, and raises the
// threshold once all have made some requests.
func (s *site) raiseForOneUserUnderLoad(user string) error {
	const callers, raised = 8, 20
	var (
		granted atomic.Int64
		current atomic.Int64 // the threshold that requests sent from now on see at least
		first   sync.WaitGroup
		all     sync.WaitGroup
		go2     = make(chan struct{})
		failure = make(chan error, callers)
	)
	current.Store(helloThreshold)
	first.Add(callers)
	for range callers {
		all.Go(func() {
			for i := range 16 {
				least := current.Load()
				got, err := s.as(user, http.MethodGet, "/hello")
				var seen map[string]quota
				if err == nil {
					seen, err = policies(got.Header)
				}
				threshold := seen["user"].q
				if err == nil && threshold != helloThreshold && threshold != raised || threshold < least {
					err = fmt.Errorf("a threshold of %d where %d holds", threshold, least)
				}
				if err == nil {
					_, passed, checkErr := s.checkUser(got, threshold, helloWindow)
					if passed {
						granted.Add(1)
					}
					err = checkErr
				}
				if err != nil {
					failure <- err
				}
				if i == 3 || err != nil && i < 3 {
					first.Done()
					<-go2 // the others may still be on their way
				}
				if err != nil {
					return
				}
			}
		})
	}
	first.Wait()
	before := granted.Load()
	err := s.setThreshold(user, raised)
	current.Store(raised)
	close(go2)
	all.Wait()
	close(failure)
	for failed := range failure {
		return failed
	}
	if err == nil && (before != helloThreshold || granted.Load() != raised) {
		err = fmt.Errorf("%d passed before and %d in all", before, granted.Load())
	}
	return err
}

func TestEachClientHasALimitOverAllItsUsers(t *testing.T) {
	t.Parallel()
	const perMinute = 5
	engines(t, perMinute, func(t *testing.T, s *site, rdb *redis.Client) {
		within(t, time.Minute, func() error {
			if err := rdb.FlushDB(t.Context()).Err(); err != nil {
				return err
			}
			for range perMinute {
				got, err := s.as(newUser(), http.MethodGet, "/hello")
				if err != nil {
					return err
				}
				if got.StatusCode != http.StatusOK {
					return fmt.Errorf("answer %s", got.Status)
				}
			}
			got, err := s.do(http.MethodGet, "/hello", "", http.Header{"X-User": {newUser()}, "X-Forwarded-For": {"198.51.100.7"}})
			if err != nil {
				return err
			}
			if err := s.refusedClient(got, perMinute); err != nil {
				return err
			}
			// More, by the admin handler.
			changed, err := s.admin(http.MethodPatch, "/rate?name=gateway:client:127.0.0.1", `{"rate":6,"keepState":true}`)
			if err != nil {
				return err
			}
			if changed.StatusCode != http.StatusOK {
				return fmt.Errorf("answer %s: %s", changed.Status, changed.body)
			}
			if got, err = s.as(newUser(), http.MethodGet, "/hello"); err != nil || got.StatusCode != http.StatusOK {
				return fmt.Errorf("answer %v, error %w", got.Response, err)
			}
			if got, err = s.as(newUser(), http.MethodGet, "/nowhere"); err != nil {
				return err
			}
			return s.refusedClient(got, 6)
		})
	})
}

// refusedClient checks that the client's policy alone was asked, and refused.
func (s *site) refusedClient(got answer, rate int64) error {
	all, err := policies(got.Header)
	if err != nil {
		return err
	}
	if p := all["client"]; got.StatusCode != http.StatusTooManyRequests || len(all) != 1 || p.q != rate || p.r != 0 {
		return fmt.Errorf("answer %s with %+v", got.Status, all)
	}
	return checkRefusal(got, "client", all["client"])
}

func TestAdminNeedsTheToken(t *testing.T) {
	t.Parallel()
	s := serve(t, plenty)
	for _, authorization := range []string{"", "Bearer", "Bearer ", "Bearer secre", "Bearer secret2", "bearer secret", "secret", "Basic secret"} {
		for _, path := range []string{"/limiters", "/openapi.json", "/rate?name=gateway:x", "/", "/nowhere"} {
			got, err := s.do(http.MethodPut, "/admin"+path, "{}", http.Header{"Authorization": {authorization}})
			require.NoError(t, err)
			assert.Equal(t, http.StatusUnauthorized, got.StatusCode)
			assert.Equal(t, "Bearer", got.Header.Get("WWW-Authenticate"))
		}
	}
	got, err := s.admin(http.MethodGet, "/limiters", "")
	require.NoError(t, err)
	assert.JSONEq(t, `{"rateLimiters":[],"prefixes":["gateway:"],"slidingLogs":["hello","orders"]}`, got.body)
}

// Who guesses the token is refused after as many guesses as requests are allowed,
// and is not let in by the right one either.
func TestGuessesOfTheTokenAreLimited(t *testing.T) {
	t.Parallel()
	const perMinute = 5
	s := serve(t, perMinute)
	within(t, time.Minute, func() error {
		// More than are left, wherever an earlier try has ended.
		for range perMinute {
			if _, err := s.do(http.MethodGet, "/admin/limiters", "", http.Header{"Authorization": {"Bearer guess"}}); err != nil {
				return err
			}
		}
		got, err := s.admin(http.MethodGet, "/limiters", "")
		if err != nil {
			return err
		}
		if got.StatusCode != http.StatusTooManyRequests || got.Header.Get("Retry-After") == "" {
			return fmt.Errorf("answer %s", got.Status)
		}
		got, err = s.as(newUser(), http.MethodGet, "/hello")
		if err == nil && got.StatusCode != http.StatusOK && got.StatusCode != http.StatusTooManyRequests {
			err = fmt.Errorf("answer %s", got.Status)
		}
		return err
	})
}

func TestRequestsReachTheServices(t *testing.T) {
	t.Parallel()
	s := serve(t, plenty)
	got, err := s.as("zoë", http.MethodGet, "/hello")
	require.NoError(t, err)
	assert.Equal(t, "Hello \"zoë\"\n", got.body)
	for i := range 3 {
		got, err = s.do(http.MethodPost, "/orders", "tea", http.Header{"X-User": {"zoë"}})
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprintf("%d orders\n", i+1), got.body)
	}
	got, err = s.do(http.MethodPost, "/orders", strings.Repeat("x", 1<<17), http.Header{"X-User": {"greedy"}})
	require.NoError(t, err)
	assert.Equal(t, http.StatusRequestEntityTooLarge, got.StatusCode)
	got, err = s.as("zoë", http.MethodGet, "/nowhere")
	require.NoError(t, err)
	assert.Equal(t, http.StatusNotFound, got.StatusCode)
	got, err = s.as("zoë", http.MethodDelete, "/hello")
	require.NoError(t, err)
	assert.Equal(t, http.StatusMethodNotAllowed, got.StatusCode)
}

func TestWhileRedisIsDownRequestsAreRefused(t *testing.T) {
	t.Parallel()
	_, m := redistest.Mini(t)
	require.NoError(t, m.Start())
	proxy := redistest.StartProxy(t, m.Addr())
	s := serve(t, plenty, "--redis", redisURL(proxy.Addr()))
	ask := func() answer {
		got, err := s.as(newUser(), http.MethodGet, "/hello")
		require.NoError(t, err)
		return got
	}
	assert.Equal(t, http.StatusOK, ask().StatusCode)
	proxy.OnCommand(func(redistest.Command) redistest.Action { return redistest.Cut })
	refused := ask()
	assert.Equal(t, http.StatusServiceUnavailable, refused.StatusCode)
	assert.NotEmpty(t, refused.Header.Get("Retry-After"))
	assert.True(t, json.Valid([]byte(refused.body)), refused.body)
	got, err := s.admin(http.MethodPut, "/threshold?limiter=hello&key=k", `{"threshold":5}`)
	require.NoError(t, err)
	assert.Equal(t, http.StatusServiceUnavailable, got.StatusCode, got.body)
	proxy.OnCommand(nil)
	assert.Equal(t, http.StatusOK, ask().StatusCode)
}

func TestWhileRedisIsDownThePolicyAnswers(t *testing.T) {
	t.Parallel()
	for failure, last := range map[string]int{"open": http.StatusOK, "local": http.StatusTooManyRequests} {
		t.Run(failure, func(t *testing.T) {
			t.Parallel()
			_, m := redistest.Mini(t)
			require.NoError(t, m.Start())
			proxy := redistest.StartProxy(t, m.Addr())
			s := serve(t, plenty, "--redis", redisURL(proxy.Addr()), "--failure", failure)
			_, err := s.as(newUser(), http.MethodGet, "/hello") // tells the rate of the client's limit
			require.NoError(t, err)
			proxy.OnCommand(func(redistest.Command) redistest.Action { return redistest.Cut })
			user := newUser()
			within(t, helloWindow, func() error {
				for range helloThreshold {
					if got, err := s.as(user, http.MethodGet, "/hello"); err != nil || got.StatusCode != http.StatusOK {
						return fmt.Errorf("answer %v, error %w", got.Response, err)
					}
				}
				got, err := s.as(user, http.MethodGet, "/hello")
				if err == nil && got.StatusCode != last {
					err = fmt.Errorf("answer %s after %d", got.Status, helloThreshold)
				}
				return err
			})
		})
	}
}

func TestWhatIsNoLimiterIsRefused(t *testing.T) {
	t.Parallel()
	engines(t, plenty, func(t *testing.T, s *site, rdb *redis.Client) {
		require.NoError(t, rdb.Set(t.Context(), "limit:eve:/hello", "x", 0).Err())
		got, err := s.as("eve", http.MethodGet, "/hello")
		require.NoError(t, err)
		assert.Equal(t, http.StatusServiceUnavailable, got.StatusCode)
		assert.NotEmpty(t, got.Header.Get("Retry-After"))
		assert.True(t, json.Valid([]byte(got.body)))
		assert.Contains(t, s.logged.String(), "limit:eve:/hello")
	})
}

func TestRunReportsWhatIsWrong(t *testing.T) {
	t.Parallel()
	for says, args := range map[string][]string{
		"not defined":      {"--nonsense"},
		"invalid URL":      {"--redis", "x"},
		"listen":           {"--listen", "256.0.0.1:0"},
		"help requested":   {"--help"},
		"parse error":      {"--per-client", "many"},
		"redis: invalid U": {"--redis", "http://127.0.0.1"},
		"open or local":    {"--failure", "ajar"},
	} {
		require.ErrorContains(t, run(t.Context(), args, &buffer{}, &buffer{}), says)
	}
}

// ours tells whether a key of Redis begins as the gateway's do.
func ours(key string) bool {
	key = strings.TrimPrefix(key, "{")
	return strings.HasPrefix(key, userPrefix) || strings.HasPrefix(key, clientPrefix+"client:") || strings.HasPrefix(key, clientPrefix+"admin:") ||
		strings.HasPrefix(key, shopLimiter) || key == thresholds
}
