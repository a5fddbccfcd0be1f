package envoylimit

import (
	"context"
	"encoding/base64"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

const llm = `
domain: web
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 200, estimate: 100, hold: 60s}}
- {key: team, rate_limit: {unit: day, requests_per_unit: 1000, estimate: 100}}
- {key: user_calls, rate_limit: {unit: minute, requests_per_unit: 30}}
`

// reserves asks, and returns the reservation's id.
func (s *Service) reserves(t *testing.T, text, want string) string {
	t.Helper()
	r := s.ask(t, "web", text)
	require.Equal(t, want, says(r))
	id, _ := r.GetDynamicMetadata().AsMap()[reservationKey].(string)
	return id
}

// The first call reserves, the one at the stream's end settles, by any Service, once.
func TestReservation_IsSettledByAnyService(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cost  string        // of the second call
		after time.Duration // the first
		left  string        // of user, and of team
	}{
		"Less":             {"37", time.Second, "OK: OK 163/200 OK 963/1000"},
		"More":             {"150", time.Second, "OK: OK 50/200 OK 850/1000"},
		"Everything":       {"300", time.Second, "OVER: OVER 0/200 OK 700/1000"},
		"Nothing":          {"0", time.Second, "OK: OK 200/200 OK 1000/1000"},
		"NoCost":           {"", time.Second, "OK: OK 100/200 OK 900/1000"},
		"NoCostAfterHold":  {"", 61 * time.Second, "OK: OK 200/200 OK 900/1000"},
		"AfterTheHold":     {"37", 61 * time.Second, "OK: OK 163/200 OK 963/1000"},
		"AfterTheInterval": {"37", 61 * time.Minute, "OK: OK 163/200 OK 963/1000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inVirtual(t, llm, func(t *testing.T, s *Service, rdb redistest.Client) {
				id := s.reserves(t, "user_calls=ann\nuser=ann\nteam=red", "OK: OK 29/30 OK 100/200 OK 900/1000")
				require.NotEmpty(t, id)
				time.Sleep(tc.after)
				other := newService(t, rdb, llm)
				for range 2 {
					end := "user=ann, rrl_reservation=" + id + " | " + tc.cost + "\nteam=red, rrl_reservation=" + id + " | " + tc.cost
					require.Equal(t, "OK: OK OK", says(other.ask(t, "web", end))) //nolint:dupword // two descriptors
					require.Equal(t, tc.left, says(s.ask(t, "web", "user=ann | 0\nteam=red | 0")))
				}
			})
		})
	}
}

func TestReservation_WithoutOneWhatWasUsedIsCharged(t *testing.T) {
	t.Parallel()
	inVirtual(t, llm, func(t *testing.T, s *Service, _ redistest.Client) {
		for _, id := range []string{"none", "", "AQ", "AAAA", "x!", base64.RawURLEncoding.EncodeToString([]byte{1, 2, 3, 4, 5, 200, 0})} {
			run(t, s,
				step{"user=" + "u" + id + ", rrl_reservation=" + id + " | 250", "OK: OK"},
				step{"user=" + "u" + id + " | 0", "OVER: OVER 0/200"},
			)
		}
		// An id of another counter is none of this one.
		id := s.reserves(t, "user=ann", "OK: OK 100/200")
		run(t, s,
			step{"user=bob, rrl_reservation=" + id + " | 10", "OK: OK"},
			step{"user=bob | 0\nuser=ann | 0", "OK: OK 190/200 OK 100/200"},
		)
	})
}

// What would be taken ahead is left to reservations.
func TestReservation_ChargesTakeNothingAhead(t *testing.T) {
	t.Parallel()
	inVirtual(t, llm, func(t *testing.T, s *Service, _ redistest.Client) {
		for range 5 {
			run(t, s, step{"user=ann, rrl_reservation=none | 10", "OK: OK"})
			time.Sleep(time.Millisecond)
		}
		run(t, s, step{"user=ann | 0", "OK: OK 150/200"}, step{"user=ann | 150", "OK: OK 0/200"})
	}, WithLeases())
}

func TestReservation_EstimateOfTheRequest(t *testing.T) {
	t.Parallel()
	inVirtual(t, llm, func(t *testing.T, s *Service, _ redistest.Client) {
		assert.NotEmpty(t, s.reserves(t, "user=ann | 150\nuser_calls=ann", "OK: OK 50/200 OK 29/30"))
		assert.Empty(t, s.reserves(t, "user=ann\nuser_calls=ann", "OVER: OVER 0/200 OK 29/30"))
		assert.Empty(t, s.reserves(t, "user=ann | 201\nuser_calls=ann", "OVER: OVER 0/200 OK 29/30"))
		assert.Empty(t, s.reserves(t, "user_calls=ann", "OK: OK 28/30"))
		assert.Empty(t, s.reserves(t, "user=ann | 0", "OK: OK 50/200"))
		// What refuses beside a reservation charges nothing.
		assert.NotEmpty(t, s.reserves(t, "user=bob | | 500 HOUR", "OK: OK 400/500"))
		assert.NotEmpty(t, s.reserves(t, "user=zoe | | 50 HOUR", "OK: OK 0/50")) // no more than there is
		assert.Empty(t, s.reserves(t, "user=bob\nuser_calls=ann | 29", "OVER: OK 100/200 OVER 0/30"))
	})
}

// What a stream has cost is charged though Envoy's deadline is over before Redis answers.
func TestReservation_IsSettledToTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb := limitertest.FarAway(t, 50*time.Millisecond)
		s := newService(t, rdb, llm)
		id := s.reserves(t, "user=ann", "OK: OK 100/200")
		for _, text := range []string{"user=ann, rrl_reservation=" + id + " | 150", "user=bob, rrl_reservation=none | 150"} {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			_, err := s.ShouldRateLimit(ctx, request("web", text))
			cancel()
			require.NoError(t, err)
		}
		run(t, s, step{"user=ann | 0\nuser=bob | 0", "OK: OK 50/200 OK 50/200"})
	})
}

// failing returns a client of a miniredis that can be down, and what sets it so.
func failing(t *testing.T) (redistest.Client, *atomic.Bool) {
	rdb, _ := redistest.Mini(t)
	var down atomic.Bool
	rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		if down.Load() {
			return redistest.Fail(cmds, errors.New("connection refused"))
		}
		return next()
	}))
	return rdb, &down
}

func TestFailure_OfADomain(t *testing.T) {
	t.Parallel()
	const limits = `
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 4}}
- {key: plan, rate_limit: {unit: day, requests_per_unit: 4}}
- {key: tokens, rate_limit: {unit: hour, requests_per_unit: 4, estimate: 1}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 4}}
`
	for head, want := range map[string][4]string{
		"domain: web":                               {"Unavailable", "Unavailable", "Unavailable", "Unavailable"},
		"domain: web\nfailure: closed":              {"OVER: OVER OVER", "OVER: OVER OVER", "OVER: OVER", "OVER: OVER"}, //nolint:dupword // two descriptors
		"domain: web\nfailure: open":                {"OK: OK OK", "OK: OK OK", "OK: OK", "OK: OK"},                     //nolint:dupword // two descriptors
		"domain: web\nfailure: local\nshare: 0.500": {"OK: OK 1/2 OK 1/2", "OK: OK 0/2 OK 0/2", "OVER: OVER 0/2", "OVER: OVER 0/2"},
	} {
		t.Run(head, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb, down := failing(t)
				down.Store(true) // from the start
				s := newService(t, rdb, head+limits)
				for i, text := range []string{"user=ann\nplan=x", "user=ann\nplan=x", "user=ann", "user=ann"} {
					r, err := s.ShouldRateLimit(t.Context(), request("web", text))
					if err != nil {
						assert.Equal(t, want[i], status.Code(err).String())
						continue
					}
					assert.Equal(t, want[i], says(r))
				}
				// Nothing is reserved, what is over stays a question, and shadow refuses nothing.
				r, err := s.ShouldRateLimit(t.Context(), request("web", "tokens=x"))
				if err == nil {
					assert.Nil(t, r.GetDynamicMetadata())
				}
				for _, text := range []string{"shadow=x", "tokens=x | 0", "plan=x | 5", "tokens=x, rrl_reservation=none | 5"} {
					_, err := s.ShouldRateLimit(t.Context(), request("web", text))
					assert.True(t, err == nil || status.Code(err) == codes.Unavailable, "%s: %v", text, err)
				}
				down.Store(false)
				for range 2 { // calls ask whether Redis is back
					time.Sleep(time.Minute)
					_, _ = s.ShouldRateLimit(t.Context(), request("web", "user=ann\nplan=x"))
				}
				assert.Equal(t, "OK: OK 3/4 OK 3/4", says(s.ask(t, "web", "user=bob\nplan=y")))
			})
		})
	}
}

// What is spent counts at this process too, as far as its share goes.
func TestFailure_LocalCountsWhatIsSpent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, down := failing(t)
		down.Store(true)
		s := newService(t, rdb, "domain: web\nfailure: local\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 4}}]")
		run(t, s,
			step{"user=ann | 3", "OK: OK 1/4"},
			step{"user=ann | 3", "OVER: OVER 0/4"},
			step{"user=ann", "OVER: OVER 0/4"},
		)
	})
}

// Once Redis is known to be silent no call waits for it, whatever the domain says.
func TestFailure_IsKnown(t *testing.T) {
	t.Parallel()
	for _, head := range []string{"domain: web\n", "domain: web\nfailure: open\n", "domain: web\nfailure: closed\n"} {
		synctest.Test(t, func(t *testing.T) {
			rdb, _ := redistest.Mini(t)
			s := newService(t, rdb, head+"descriptors:\n- {key: user, rate_limit: {unit: minute, requests_per_unit: 4}}\n- {key: day, rate_limit: {unit: day, requests_per_unit: 4}}")
			s.ask(t, "web", "user=ann")
			rdb.AddHook(redistest.Hook(func(_ context.Context, cmds []redis.Cmder, _ func() error) error {
				time.Sleep(3 * time.Second)
				return redistest.Fail(cmds, os.ErrDeadlineExceeded)
			}))
			for range 3 {
				_, _ = s.ShouldRateLimit(t.Context(), request("web", "user=ann"))
			}
			for _, text := range []string{"user=ann", "user=ann | 2", "user=ann | 0", "user=ann | -1", "day=ann | -1", "user=ann, rrl_reservation=none | 2"} {
				start := time.Now()
				_, _ = s.ShouldRateLimit(t.Context(), request("web", text))
				assert.LessOrEqual(t, time.Since(start), 5*time.Millisecond, "%q %s", head, text)
			}
			time.Sleep(time.Minute)
		})
	}
}

// What settles or gives back refuses nothing, so it fails while Redis is away only if the domain's other calls do.
func TestFailure_OfWhatIsSettledOrGivenBack(t *testing.T) {
	t.Parallel()
	for head, want := range map[string]codes.Code{
		"": codes.Unavailable, "failure: open": codes.OK, "failure: local": codes.OK, "failure: closed": codes.OK,
	} {
		synctest.Test(t, func(t *testing.T) {
			rdb, down := failing(t)
			s := newService(t, rdb, head+llm)
			id := s.reserves(t, "user=ann", "OK: OK 100/200")
			down.Store(true)
			for _, text := range []string{"user=ann, rrl_reservation=" + id + " | 37", "user=ann | -5"} {
				_, err := s.ShouldRateLimit(t.Context(), request("web", text))
				assert.Equal(t, want, status.Code(err), "%q %s: %v", head, text, err)
			}
			time.Sleep(time.Minute)
		})
	}
}

// A limit in shadow refuses nothing, even if giving back finds no Redis, or a key that holds something else.
func TestFailure_OfWhatIsGivenBackInShadow(t *testing.T) {
	t.Parallel()
	for _, rule := range []string{"algorithm: sliding_log", "algorithm: fixed_window", "algorithm: token_bucket"} {
		synctest.Test(t, func(t *testing.T) {
			rdb, down := failing(t)
			s := newService(t, rdb, "domain: web\ndescriptors:\n- {key: user, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 5, "+rule+"}}")
			assert.Equal(t, "OK: OK 3/5", says(s.ask(t, "web", "user=ann | 2")))
			assert.Equal(t, "OK: OK", says(s.ask(t, "web", "user=ann | -1")))
			down.Store(true)
			assert.Equal(t, "OK: OK", says(s.ask(t, "web", "user=ann | -1")))
			down.Store(false)
			time.Sleep(time.Minute)
			require.NoError(t, rdb.FlushDB(t.Context()).Err())
			require.NoError(t, rdb.SAdd(t.Context(), "envoy:{web}:user_ann:"+s.active.Load().domains["web"].entries["user"].rule.per.name, 1).Err())
			assert.Equal(t, "OK: OK", says(s.ask(t, "web", "user=ann | -1")))
			time.Sleep(time.Minute)
		})
	}
}

// Two Services on one Redis: never above the limit in any span.
func TestService_TwoOnOneRedis(t *testing.T) {
	t.Parallel()
	inVirtual(t, "domain: web\ndescriptors:\n- {key: user, rate_limit: {unit: second, requests_per_unit: 10}}", func(t *testing.T, a *Service, rdb redistest.Client) {
		b := New(limitertest.NewClient(t, rdb), a.active.Load().Config)
		var grants []time.Time
		for i := range 1000 {
			s := a
			if i%2 == 1 {
				s = b
			}
			if s.ask(t, "web", "user=ann").GetOverallCode() == ok {
				grants = append(grants, time.Now())
			}
			time.Sleep(7 * time.Millisecond)
		}
		assert.Greater(t, len(grants), 60)
		for i := 10; i < len(grants); i++ {
			require.GreaterOrEqual(t, grants[i].Sub(grants[i-10]), time.Second)
		}
	})
}

func TestNew_ReportsABadClient(t *testing.T) {
	t.Parallel()
	require.ErrorIs(t, New(nil, nil).Err(), rratelimiter.ErrInvalidConfig)
	require.ErrorIs(t, New(rratelimiter.New(nil), nil).Err(), rratelimiter.ErrInvalidConfig)
}

// FuzzNamed checks that no id from outside makes a panic.
func FuzzNamed(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 2, 1, 2, 0, 0, 0, 1, 200, 1})
	f.Fuzz(func(t *testing.T, id []byte) {
		key := "{web}:k_v:hour"
		for _, text := range []string{string(id), base64.RawURLEncoding.EncodeToString(id)} {
			part := named(text, key)
			assert.LessOrEqual(t, len(part), len(id))
		}
	})
}

// What was spent is charged though another limit of the call can't be asked.
func TestReservation_IsSettledThoughAnotherLimitFails(t *testing.T) {
	t.Parallel()
	inVirtual(t, llm+"- {key: lax, rate_limit: {unit: hour, requests_per_unit: 9, charge: always}}\n", func(t *testing.T, s *Service, rdb redistest.Client) {
		require.NoError(t, rdb.SAdd(t.Context(), "envoy:{web}:user%5Fcalls_ann:minute", 1).Err())
		id := s.reserves(t, "user=ann", "OK: OK 100/200")
		_, err := s.ShouldRateLimit(t.Context(), request("web", "user_calls=ann\nlax=ann | 4\nuser=ann, rrl_reservation="+id+" | 150\nteam=red"))
		require.Equal(t, codes.Internal, status.Code(err))
		run(t, s, step{"user=ann | 0\nlax=ann | 0\nteam=red | 0", "OK: OK 50/200 OK 5/9 OK 1000/1000"})
	})
}
