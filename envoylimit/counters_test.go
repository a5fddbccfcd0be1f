package envoylimit

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// An entry's key that holds '_' shares no counter with another key.
func TestService_KeysWithUnderscores(t *testing.T) {
	t.Parallel()
	const text = `
domain: web
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 5}}
- {key: user_id, rate_limit: {unit: hour, requests_per_unit: 9}}
- {key: user%5Fid, rate_limit: {unit: hour, requests_per_unit: 7}}
`
	inVirtual(t, text, func(t *testing.T, s *Service, rdb redistest.Client) {
		run(t, s,
			step{"user=id_5 | 3", "OK: OK 2/5"},
			step{"user_id=5", "OK: OK 8/9"},
			step{"user%5Fid=5 | 2", "OK: OK 5/7"},
			step{"user=id_5 | 0\nuser_id=5 | 0", "OK: OK 2/5 OK 8/9"},
		)
		assert.ElementsMatch(t, []string{
			"envoy:{web}:user_id_5:hour", "envoy:{web}:user%5Fid_5:hour", "envoy:{web}:user%255Fid_5:hour",
		}, names(t, rdb))
	})
}

// What several descriptors of a call settle of one reservation, or give back to one counter, is summed.
func TestService_SettlesAndGivesBackTheSum(t *testing.T) {
	t.Parallel()
	const text = `
domain: web
descriptors:
- {key: tok, rate_limit: {unit: hour, requests_per_unit: 1000, estimate: 100, hold: 60s}}
- {key: daily, rate_limit: {unit: day, requests_per_unit: 100}}
`
	inVirtual(t, text, func(t *testing.T, s *Service, _ redistest.Client) {
		id := s.reserves(t, "tok=a | 50\ntok=a | 60", "OK: OK 890/1000 OK 890/1000")
		other := s.reserves(t, "tok=a", "OK: OK 790/1000")
		end := "tok=a, rrl_reservation=" + id
		run(t, s,
			step{end + " | 300\n" + end + " | 200", "OK: OK OK"}, //nolint:dupword // two descriptors
			step{"tok=a | 0", "OK: OK 400/1000"},
			step{"tok=a, rrl_reservation=" + other + " | 20\ntok=a, rrl_reservation=none | 30", "OK: OK OK"}, //nolint:dupword // two descriptors
			step{"tok=a | 0", "OK: OK 450/1000"},
			step{"tok=a | -20\ntok=a | -30", "OK: OK OK"}, //nolint:dupword // two descriptors
			step{"tok=a | 0", "OK: OK 500/1000"},
			step{"daily=a | 60\ndaily=a | 20", "OK: OK 20/100 OK 20/100"},
			step{"daily=a | -20\ndaily=a | -30\ndaily=a | 0", "OK: OK OK OK 20/100"}, //nolint:dupword // three descriptors
			step{"daily=a | 0", "OK: OK 70/100"},
		)
	})
}

// If permits can't be given back, the call fails, and what others granted goes back.
func TestService_GivesBackToWhatIsNoCounter(t *testing.T) {
	t.Parallel()
	const text = web + "- {key: exact, rate_limit: {unit: day, requests_per_unit: 7, algorithm: fixed_window}}\n"
	inVirtual(t, text, func(t *testing.T, s *Service, rdb redistest.Client) {
		require.NoError(t, rdb.SAdd(t.Context(), "envoy:{web}:exact_x:day", 1).Err())
		for _, other := range []string{"user=ann", "plan=free", "plan=bucket"} {
			_, err := s.ShouldRateLimit(t.Context(), request("web", other+"\nexact=x | -1"))
			require.Equal(t, codes.Internal, status.Code(err))
		}
		run(t, s, step{"user=ann | 0\nplan=free | 0\nplan=bucket | 2", "OK: OK 5/5 OK 3/3 OK 0/60"})
	})
}

// Giving back to a counter that Redis does not have does nothing.
func TestService_GivesBackToNoCounter(t *testing.T) {
	t.Parallel()
	const text = web + "- {key: exact, rate_limit: {unit: day, requests_per_unit: 7, algorithm: fixed_window}}\n"
	inVirtual(t, text, func(t *testing.T, s *Service, rdb redistest.Client) {
		run(t, s,
			step{"user=ann | -1", "OK: OK"},
			step{"user=ann | -9\nuser=bob", "OK: OK " + "OK 4/5"},
			step{"plan=free | -1\nplan=bucket | -1\nnone=x | -1\nexact=x | -9", "OK: OK OK OK OK"}, //nolint:dupword // four descriptors
		)
		assert.ElementsMatch(t, []string{"envoy:{web}:user_bob:minute", "envoy:{web}:plan_bucket:minute.token_bucket", "envoy:{web}:plan_bucket:minute.token_bucket_time"}, names(t, rdb))
		run(t, s,
			step{"user=ann | 0\nplan=free | 0\nexact=x | 0", "OK: OK 5/5 OK 3/3 OK 7/7"},
			step{"user=ann", "OK: OK 4/5"},
		)
	})
}

// What was given back since another descriptor refused is shown as a question would find it.
func TestService_FiguresOfWhatWentBack(t *testing.T) {
	t.Parallel()
	const text = `
domain: web
descriptors:
- {key: full, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: log, rate_limit: {unit: hour, requests_per_unit: 5}}
- {key: held, rate_limit: {unit: hour, requests_per_unit: 5, estimate: 2}}
- {key: day, rate_limit: {unit: day, requests_per_unit: 5}}
- {key: bucket, rate_limit: {unit: hour, requests_per_unit: 60, algorithm: token_bucket}}
`
	inVirtual(t, text, func(t *testing.T, s *Service, _ redistest.Client) {
		keys := []string{"log", "held", "day", "bucket"}
		for range 2 { // counters that nothing has used, and others
			s.ask(t, "web", "full=x")
			time.Sleep(10 * time.Minute)
			for _, key := range keys {
				refused := s.ask(t, "web", "full=x\n"+key+"=x")
				require.Equal(t, over, refused.GetOverallCode())
				assert.Equal(t, s.ask(t, "web", key+"=x | 0").GetStatuses()[0].String(), refused.GetStatuses()[1].String(), key)
				s.ask(t, "web", key+"=x")
			}
			time.Sleep(5 * time.Minute)
		}
	})
}

// If only quotas refuse, and without being asked, what other limits took goes back.
func TestService_QuotasThatRefuseUnaskedChargeNothing(t *testing.T) {
	t.Parallel()
	const text = `
domain: web
descriptors:
- {key: q, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: z, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: user, rate_limit: {unit: hour, requests_per_unit: 5}}
- {key: plan, rate_limit: {unit: hour, requests_per_unit: 4}}
- {key: day, rate_limit: {unit: day, requests_per_unit: 3}}
- {key: tok, rate_limit: {unit: hour, requests_per_unit: 1000, estimate: 100, hold: 60s}}
`
	inVirtual(t, text, func(t *testing.T, s *Service, _ redistest.Client) {
		run(t, s,
			step{"z=x\nuser=bob", "OVER: OVER 0/0 OK 5/5"},
			step{"user=bob | 0", "OK: OK 5/5"},
			step{"q=x | 2\nuser=bob\nplan=x", "OVER: OVER 0/1 OK 5/5 OK 4/4"},
			step{"user=bob | 0\nplan=x | 0", "OK: OK 5/5 OK 4/4"},
			step{"z=x\nday=x", "OVER: OVER 0/0 OK 3/3"},
			step{"day=x | 0", "OK: OK 3/3"},
			step{"z=x\ntok=a", "OVER: OVER 0/0 OK 1000/1000"},
			step{"tok=a | 0", "OK: OK 1000/1000"},
			step{"z=x\nq=x\nuser=bob", "OK: OVER 0/0 OK 0/1 OK 4/5"},
		)
	})
}

// What was charged beyond the limit counts for when to come back: the same cost passes then, and not before.
func TestService_WhenToComeBackAfterAChargeBeyondTheLimit(t *testing.T) {
	t.Parallel()
	const text = `
domain: web
descriptors:
- {key: lax, rate_limit: {unit: hour, requests_per_unit: 2, charge: always}}
- {key: tok, rate_limit: {unit: hour, requests_per_unit: 100, charge: always}}
- {key: daily, rate_limit: {unit: day, requests_per_unit: 2, charge: always}}
- {key: bucket, rate_limit: {unit: hour, requests_per_unit: 60, algorithm: token_bucket, charge: always}}
`
	for name, tc := range map[string]struct {
		cost, last string // of three calls, ten minutes apart
		wait       time.Duration
	}{
		"Log":           {"lax=a", "OVER: OVER 0/2", 50 * time.Minute},
		"LogCosts":      {"tok=a | 60", "OVER: OVER 0/100", time.Hour},
		"LogAboveLimit": {"tok=a | 250", "OVER: OVER 0/100", time.Hour},
		"Bucket":        {"bucket=a | 40", "OVER: OVER 0/60", 80 * time.Minute},
		"Window":        {"daily=a", "OVER: OVER 0/2", 24*time.Hour - 20*time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inVirtual(t, text, func(t *testing.T, s *Service, _ redistest.Client) {
				for range 2 {
					s.ask(t, "web", tc.cost)
					time.Sleep(10 * time.Minute)
				}
				got := s.ask(t, "web", tc.cost)
				require.Equal(t, tc.last, says(got))
				wait := got.GetStatuses()[0].GetDurationUntilReset().AsDuration()
				require.InDelta(t, tc.wait, wait, float64(time.Minute)) // members are merged
				time.Sleep(wait)
				if name != "LogAboveLimit" {
					require.Equal(t, ok, s.ask(t, "web", tc.cost).GetOverallCode())
				}
			})
		})
	}
}

// A question that finds more used than the limit says when it finds a permit free.
func TestService_WhenToAskAgain(t *testing.T) {
	t.Parallel()
	const text = `
domain: web
descriptors:
- {key: log, rate_limit: {unit: hour, requests_per_unit: 100}}
- {key: bucket, rate_limit: {unit: hour, requests_per_unit: 60, algorithm: token_bucket}}
- {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 60, algorithm: token_bucket}}
- {key: day, rate_limit: {unit: day, requests_per_unit: 60}}
`
	for key, want := range map[string]time.Duration{
		"log": 40 * time.Minute, "bucket": 42 * time.Minute, "quota": 42 * time.Minute, "day": 24*time.Hour - 20*time.Minute,
	} {
		inVirtual(t, text, func(t *testing.T, s *Service, _ redistest.Client) {
			for range 2 {
				s.ask(t, "web", key+"=a | 60")
				time.Sleep(10 * time.Minute)
			}
			s.ask(t, "web", key+"=a")
			question := key + "=a | 0"
			got := s.ask(t, "web", question)
			require.Equal(t, over, got.GetOverallCode(), key)
			wait := got.GetStatuses()[0].GetDurationUntilReset().AsDuration()
			assert.InDelta(t, want, wait, float64(time.Minute), key) // members are merged
			time.Sleep(wait)
			assert.Equal(t, ok, s.ask(t, "web", question).GetOverallCode(), key)
		})
	}
}

// If one limit can never grant, the others are asked nothing, and say whether they would have refused, as there.
func TestService_WhatElseRefuses(t *testing.T) {
	t.Parallel()
	inVirtual(t, web, func(t *testing.T, s *Service, _ redistest.Client) {
		run(t, s,
			step{"user=ann | 4\nplan=free", "OK: OK 1/5 OK 2/3"},
			step{"none=x\nuser=ann | 2\nuser=bob | 2\nplan=free", "OVER: OVER 0/0 OVER 0/5 OK 5/5 OK 2/3"},
			step{"none=x\nuser=ann\nplan=free | 3", "OVER: OVER 0/0 OK 1/5 OVER 0/3"},
			step{"user=bob | 6\nuser=ann | 2\nplan=bucket | 2\nuser=ann | 0", "OVER: OVER 0/5 OVER 0/5 OK 2/60 OVER 0/5"},
			step{"none=x\nuser=ann | 0\nplan=free | 0", "OVER: OVER 0/0 OK 1/5 OK 2/3"},
		)
		time.Sleep(30 * time.Second)
		got := s.ask(t, "web", "none=x\nuser=ann | 2\nplan=bucket | 2")
		assert.EqualValues(t, 30, got.GetStatuses()[1].GetDurationUntilReset().GetSeconds())
	})
}

// What a call is granted before another limit refuses it is in no call's way that none refuses: as many pass as the scarcest
// limit has, however many come at once and whatever the limits count by.
func TestService_GrantsAllThatTheScarcestLimitHas(t *testing.T) {
	t.Parallel()
	for scarce, text := range map[string]string{
		"log":    "- {key: log, rate_limit: {unit: hour, requests_per_unit: 20}}\n- {key: day, rate_limit: {unit: day, requests_per_unit: 22}}\n- {key: bucket, rate_limit: {unit: day, requests_per_unit: 24, algorithm: token_bucket}}\n",
		"day":    "- {key: log, rate_limit: {unit: hour, requests_per_unit: 22}}\n- {key: day, rate_limit: {unit: day, requests_per_unit: 20}}\n- {key: bucket, rate_limit: {unit: day, requests_per_unit: 24, algorithm: token_bucket}}\n",
		"bucket": "- {key: log, rate_limit: {unit: hour, requests_per_unit: 22}}\n- {key: day, rate_limit: {unit: day, requests_per_unit: 24}}\n- {key: bucket, rate_limit: {unit: day, requests_per_unit: 20, algorithm: token_bucket}}\n",
	} {
		inVirtual(t, "domain: web\ndescriptors:\n"+text, func(t *testing.T, s *Service, rdb redistest.Client) {
			var sent atomic.Uint32
			rdb.AddHook(redistest.Hook(func(_ context.Context, _ []redis.Cmder, next func() error) error {
				time.Sleep(time.Duration(sent.Add(1)*7919%5) * time.Millisecond)
				return next()
			}))
			var granted atomic.Int64
			var calls sync.WaitGroup
			for i := range 200 {
				calls.Go(func() {
					lines := []string{"log=a", "day=a", "bucket=a"}
					slices.Reverse(lines[i%3:])
					if s.ask(t, "web", strings.Join(lines, "\n")).GetOverallCode() == ok {
						granted.Add(1)
					}
				})
			}
			calls.Wait()
			assert.EqualValues(t, 20, granted.Load(), scarce)
			for _, st := range s.ask(t, "web", "log=a | 0\nday=a | 0\nbucket=a | 0").GetStatuses() {
				assert.Equal(t, st.GetCurrentLimit().GetRequestsPerUnit()-20, st.GetLimitRemaining(), scarce)
			}
		})
	}
}

// What descriptors that are charged together are granted is merged, also beside a limit of another kind that refuses some.
func TestService_MergesWhatDescriptorsAreGranted(t *testing.T) {
	t.Parallel()
	const text = `
domain: web
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 10000}}
- {key: plan, rate_limit: {unit: hour, requests_per_unit: 20000}}
- {key: bucket, rate_limit: {unit: minute, requests_per_unit: 900, burst: 10, algorithm: token_bucket}}
`
	inVirtual(t, text, func(t *testing.T, s *Service, rdb redistest.Client) {
		passed := int64(0)
		for i := range 600 {
			descriptors := "user=ann\nplan=free"
			if i%2 == 1 {
				descriptors += "\nbucket=ann | 2"
			}
			if s.ask(t, "web", descriptors).GetOverallCode() == ok {
				passed++
			}
			time.Sleep(50 * time.Millisecond)
		}
		assert.Less(t, passed, int64(600))
		for _, name := range []string{"envoy:{web}:user_ann:minute", "envoy:{web}:plan_free:hour"} {
			l := s.client.RateLimiter(name)
			assert.Equal(t, limitertest.ConfigOf(t, l).Rate-passed, limitertest.Available(t, l), name)
			assert.LessOrEqual(t, rdb.ZCard(t.Context(), limitertest.KeysOf(l).Permits).Val(), int64(128), name)
		}
	})
}
