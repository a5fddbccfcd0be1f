package envoylimit

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

const web = `
domain: web
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 5}}
- {key: user, value: vip, rate_limit: {unlimited: true}}
- {key: user, value: good}
- {key: plan, value: free, rate_limit: {unit: day, requests_per_unit: 3}}
- {key: plan, value: bucket, rate_limit: {unit: minute, requests_per_unit: 60, algorithm: token_bucket, burst: 2}}
- {key: plan, value: year, rate_limit: {unit: year, requests_per_unit: 60, algorithm: token_bucket, burst: 300}}
- {key: none, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: file, value: a/*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: slow, rate_limit: {window: 90s, requests_per_unit: 1}}
`

// The answers to those cases of envoyproxy/ratelimit's tests and README that are the same here.
func TestService_AnswersAsThere(t *testing.T) {
	t.Parallel()
	inVirtual(t, web, func(t *testing.T, s *Service, _ redistest.Client) {
		run(t, s,
			step{"user=ann", "OK: OK 4/5"},
			step{"user=ann | 3", "OK: OK 1/5"},
			step{"user=bob", "OK: OK 4/5"},
			step{"other=ann", "OK: OK"},
			step{"user=vip", "OK: OK"},
			step{"user=good", "OK: OK"},
			step{"user=ann\nother=x\nuser=vip", "OK: OK 0/5 OK OK"}, //nolint:dupword // two descriptors
			step{"user=ann", "OVER: OVER 0/5"},
			step{"none=x", "OVER: OVER 0/0"},
			step{"file=a/x", "OK: OK 1/2"},
			step{"file=a/y", "OK: OK 0/2"},
			step{"file=a/z", "OVER: OVER 0/2"},
			step{"plan=free", "OK: OK 2/3"},
			step{" ", "OK: OK"},
		)
		unlimited := s.ask(t, "web", "user=vip").GetStatuses()[0]
		assert.Equal(t, uint32(1<<32-1), unlimited.GetLimitRemaining())
		assert.Equal(t, "OK: OK", says(s.ask(t, "nowhere", "user=ann | 1 | 1 SECOND")))
	})
}

func TestService_RefusesRequestsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	inVirtual(t, web, func(t *testing.T, s *Service, _ redistest.Client) {
		for text, r := range map[string]*ratelimitv3.RateLimitRequest{
			"the rate limit domain must not be empty":          request("", "user=ann"),
			"the rate limit descriptor list must not be empty": {Domain: "web"},
			"the limit of a descriptor has the unit UNKNOWN":   request("web", "user=ann | 1 | 5 UNKNOWN"),
			"takes more than 292 years to fill":                request("web", "plan=year | 1 | 1 YEAR"),
		} {
			_, err := s.ShouldRateLimit(t.Context(), r)
			assert.Equal(t, codes.InvalidArgument, status.Code(err))
			require.ErrorContains(t, err, text)
		}
		s.SetConfig(nil)
		_, err := s.ShouldRateLimit(t.Context(), request("web", "user=ann"))
		assert.Equal(t, codes.Unavailable, status.Code(err))
		assert.Equal(t, codes.Internal, status.Code(second(New(nil, nil).ShouldRateLimit(t.Context(), request("web", "user=ann")))))
	})
}

func second[T any](_ T, err error) error { return err }

// If one descriptor refuses, none is charged, whatever they count by.
func TestService_AllOrNone(t *testing.T) {
	t.Parallel()
	inVirtual(t, web, func(t *testing.T, s *Service, _ redistest.Client) {
		run(t, s,
			step{"user=ann | 4\nuser=bob\nplan=free\nplan=bucket", "OK: OK 1/5 OK 4/5 OK 2/3 OK 1/60"},
			step{"user=ann\nuser=bob\nplan=free\nplan=bucket", "OK: OK 0/5 OK 3/5 OK 1/3 OK 0/60"},
		)
		for range 3 {
			run(t, s,
				step{"user=ann\nuser=bob\nplan=free", "OVER: OVER 0/5 OK 3/5 OK 1/3"},
				step{"plan=bucket\nuser=bob\nplan=free", "OVER: OVER 0/60 OK 3/5 OK 1/3"},
			)
		}
		run(t, s,
			step{"user=bob", "OK: OK 2/5"},
			step{"plan=free", "OK: OK 0/3"},
			step{"plan=free\nuser=bob\nuser=eve", "OVER: OVER 0/3 OK 2/5 OK 5/5"},
		)
	})
}

// Counters in several slots of a cluster are asked apart, and all or none are charged nevertheless.
func TestService_OnACluster(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "a cluster")
	rdb := redistest.StartCluster(t, 3, 0).Client(t, nil)
	for _, head := range []string{"hash: domain\n", "hash: descriptor\n"} {
		s := newService(t, rdb, head+strings.TrimPrefix(web, "\n"))
		name := redistest.Name(t) + head[6:12]
		run(t, s,
			step{"user=a" + name + "\nuser=b" + name + " | 5", "OK: OK 4/5 OK 0/5"},
			step{"user=a" + name + "\nuser=b" + name + "\nuser=c" + name, "OVER: OK 4/5 OVER 0/5 OK 5/5"},
			step{"user=a" + name, "OK: OK 3/5"},
		)
	}
}

// Permits taken ahead save round trips, and change no decision.
func TestService_WithLeases(t *testing.T) {
	t.Parallel()
	const text = `
domain: web
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 100000}}
- {key: few, rate_limit: {unit: minute, requests_per_unit: 5}}
`
	inVirtual(t, text, func(t *testing.T, s *Service, rdb redistest.Client) {
		calls := 0
		rdb.AddHook(redistest.BeforeCommands(func(cmds ...redis.Cmder) { calls += len(cmds) }))
		for range 10_000 {
			require.Equal(t, ok, s.ask(t, "web", "user=ann").GetOverallCode())
			time.Sleep(time.Millisecond)
		}
		assert.Less(t, calls, 1000)
		granted := 0
		for range 50 {
			if s.ask(t, "web", "few=x\nuser=ann").GetOverallCode() == ok {
				granted++
			}
		}
		assert.Equal(t, 5, granted)
		assert.Equal(t, ok, s.ask(t, "web", "user=ann").GetOverallCode())
	}, WithLeases())
}

// A charge beyond the limit leaves nothing to be taken ahead.
func TestService_WithLeasesChargesBeyondTheLimit(t *testing.T) {
	t.Parallel()
	inVirtual(t, "domain: web\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 10}}]", func(t *testing.T, s *Service, _ redistest.Client) {
		for _, st := range []step{
			{"user=ann | 4", "OK: OK 6/10"}, {"user=ann", "OK: OK 5/10"}, {"user=ann", "OK: OK 4/10"}, {"user=ann", "OK: OK 3/10"},
			{"user=ann", "OK: OK 2/10"},
			{"user=ann | 3", "OVER: OVER 0/10"}, {"user=ann", "OVER: OVER 0/10"}, {"user=ann | 0", "OVER: OVER 0/10"},
			{"user=ann | -1", "OK: OK"}, {"user=ann | 0", "OK: OK 0/10"},
		} {
			run(t, s, st)
			time.Sleep(time.Millisecond)
		}
	}, WithLeases())
}

// What is taken ahead is free for a request that another limit refuses.
func TestService_WithLeasesSaysWhoRefuses(t *testing.T) {
	t.Parallel()
	inVirtual(t, "domain: web\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 40}}, {key: none, rate_limit: {unit: minute}}]",
		func(t *testing.T, s *Service, _ redistest.Client) {
			for left := 39; left >= 0; left-- {
				run(t, s, step{"user=ann", fmt.Sprintf("OK: OK %d/40", left)})
				want := fmt.Sprintf("OVER: OK %d/40 OVER 0/0", left)
				if left == 0 {
					want = "OVER: OVER 0/40 OVER 0/0"
				}
				run(t, s, step{"user=ann\nnone=x", want})
				time.Sleep(time.Millisecond)
			}
		}, WithLeases())
}

func TestService_CostAboveTheLimitIsRefusedAndNotCharged(t *testing.T) {
	t.Parallel()
	inVirtual(t, web, func(t *testing.T, s *Service, _ redistest.Client) {
		run(t, s,
			step{"user=ann | 6\nuser=bob", "OVER: OVER 0/5 OK 5/5"},
			step{"user=ann | 9999999999\nuser=bob", "OVER: OVER 0/5 OK 5/5"},
			step{"user=ann | 6\nplan=free", "OVER: OVER 0/5 OK 3/3"},
			step{"none=x\nuser=ann", "OVER: OVER 0/0 OK 5/5"},
			step{"user=ann", "OK: OK 4/5"},
		)
	})
}

func TestService_HitsOfRequestAndDescriptor(t *testing.T) {
	t.Parallel()
	inVirtual(t, web, func(t *testing.T, s *Service, _ redistest.Client) {
		r := request("web", "user=ann\nuser=bob | 1\nuser=eve | 0")
		r.HitsAddend = 3
		got, err := s.ShouldRateLimit(t.Context(), r)
		require.NoError(t, err)
		assert.Equal(t, "OK: OK 2/5 OK 4/5 OK 5/5", says(got))
		// One counter twice is summed, and given once.
		run(t, s,
			step{"user=tom | 2\nuser=tom\nuser=tom", "OK: OK 1/5 OK 1/5 OK 1/5"}, //nolint:dupword // two descriptors
			step{"user=tom\nuser=tom", "OVER: OVER 0/5 OVER 0/5"},                //nolint:dupword // two descriptors
			step{"user=tom\nuser=tom | 0", "OK: OK 0/5 OK 0/5"},                  //nolint:dupword // two descriptors
		)
	})
}

// A question costs nothing, and is over only if more is used than the limit, or that is 0.
func TestService_Questions(t *testing.T) {
	t.Parallel()
	inVirtual(t, web, func(t *testing.T, s *Service, _ redistest.Client) {
		for _, key := range []string{"user=ann", "plan=free"} {
			n := map[string]string{"user=ann": "5", "plan=free": "3"}[key]
			run(t, s,
				step{key + " | 0", "OK: OK " + n + "/" + n},
				step{key + " | " + n, "OK: OK 0/" + n},
				step{key + " | 0", "OK: OK 0/" + n},
				step{key + " | 0\nuser=bob", "OK: OK 0/" + n + " OK 4/5"},
				step{key + " | 2", "OVER: OVER 0/" + n},
				step{key + " | 0", "OVER: OVER 0/" + n},
				step{key + " | 0\nuser=bob", "OVER: OVER 0/" + n + " OK 4/5"},
				step{"user=bob | -1", "OK: OK"},
			)
		}
		time.Sleep(24 * time.Hour)
		run(t, s,
			step{"user=ann | 0\nplan=free | 0\nplan=bucket | 0", "OK: OK 5/5 OK 3/3 OK 2/60"},
			step{"none=x | 0\nuser=ann", "OVER: OVER 0/0 OK 5/5"}, // nothing counts what a limit of 0 was charged
		)
	})
}

// A token quota that asks with 0 before and charges after: what was used counts, though it is too much.
func TestService_ChargesWhatWasUsed(t *testing.T) {
	t.Parallel()
	const text = `
domain: web
descriptors:
- {key: tokens, rate_limit: {unit: hour, requests_per_unit: 100}}
- {key: daily, rate_limit: {unit: day, requests_per_unit: 100}}
- {key: bucket, rate_limit: {unit: hour, requests_per_unit: 100, algorithm: token_bucket}}
- {key: strict, rate_limit: {unit: hour, requests_per_unit: 100, charge: granted}}
- {key: lax, rate_limit: {unit: hour, requests_per_unit: 2, charge: always}}
- {key: calls, rate_limit: {unit: hour, requests_per_unit: 100}}
`
	inVirtual(t, text, func(t *testing.T, s *Service, rdb redistest.Client) {
		for _, key := range []string{"tokens", "daily", "bucket"} {
			run(t, s,
				step{key + "=ann | 60", "OK: OK 40/100"},
				step{key + "=ann | 0", "OK: OK 40/100"},
				step{key + "=ann | 60", "OVER: OVER 0/100"},
				step{key + "=ann | 0", "OVER: OVER 0/100"},
				step{key + "=ann | -30", "OK: OK"},
				step{key + "=ann | 0", "OK: OK 10/100"},
				step{key + "=bob | 250", "OVER: OVER 0/100"},
				step{key + "=bob | -149", "OK: OK"},
				step{key + "=bob | 0", "OVER: OVER 0/100"},
				step{key + "=bob | -1", "OK: OK"},
				step{key + "=bob | 0", "OK: OK 0/100"},
			)
		}
		run(t, s,
			step{"strict=ann | 60", "OK: OK 40/100"},
			step{"strict=ann | 60", "OVER: OVER 0/100"},
			step{"strict=ann | 0", "OK: OK 40/100"},
			step{"lax=ann\ncalls=ann", "OK: OK 1/2 OK 99/100"},
			step{"lax=ann\ncalls=ann", "OK: OK 0/2 OK 98/100"},
			step{"lax=ann\ncalls=ann", "OVER: OVER 0/2 OK 98/100"},
			step{"lax=ann | 0", "OVER: OVER 0/2"},
			step{"tokens=eve | 60\ncalls=eve", "OK: OK 40/100 OK 99/100"},
			step{"tokens=eve | 60\ncalls=eve", "OVER: OVER 0/100 OK 99/100"},
		)
		run(t, s, step{"tokens=eve | 0", "OK: OK 40/100"})
		require.Equal(t, "100", rdb.Get(t.Context(), "envoy:{web}:daily_bob:day").Val())
	})
}

func TestService_OverridesCountAtTheCounterOfEntriesAndUnit(t *testing.T) {
	t.Parallel()
	inVirtual(t, web, func(t *testing.T, s *Service, rdb redistest.Client) {
		run(t, s,
			step{"user=ann", "OK: OK 4/5"},
			step{"user=ann | | 10 MINUTE", "OK: OK 8/10"},
			step{"user=ann | | 2 MINUTE", "OVER: OVER 0/2"},
			step{"user=ann", "OK: OK 2/5"},
			step{"user=ann | | 2 HOUR", "OK: OK 1/2"},
			step{"user=ann | | 1 DAY", "OK: OK 0/1"},
			step{"user=ann | | 1 DAY", "OVER: OVER 0/1"},
			step{"unknown=x | | 1 SECOND", "OK: OK 0/1"},
			step{"unknown=x | | 1 SECOND", "OVER: OVER 0/1"},
			step{"user=vip | | 0 HOUR", "OVER: OVER 0/0"},
			step{" | | 1 YEAR", "OK: OK 0/1"},
			step{" | | 1 YEAR", "OVER: OVER 0/1"},
			step{"user=bob | | 10 MINUTE\nuser=bob | 2 | 2 MINUTE", "OVER: OVER 0/2 OVER 0/2"}, // one counter has the lowest of its limits
		)
		assert.ElementsMatch(t, []string{"envoy:{web}:user_ann:minute", "envoy:{web}:user_ann:hour", "envoy:{web}:user_ann:day", "envoy:{web}:unknown_x:second", "envoy:{web}:year"},
			names(t, rdb))
	})
}

// A question is about the limit that it comes with, also if a request had another before or the configuration has changed,
// but not if its rate was set by hand.
func TestService_QuestionsAfterAnotherLimit(t *testing.T) {
	t.Parallel()
	inVirtual(t, web, func(t *testing.T, s *Service, rdb redistest.Client) {
		run(t, s,
			step{"user=ann | 4 | 10 MINUTE", "OK: OK 6/10"},
			step{"user=ann | 0", "OK: OK 1/5"},
			step{"user=ann | 3 | 10 MINUTE", "OK: OK 3/10"},
			step{"user=ann | 0", "OVER: OVER 0/5"},
			step{"user=ann | 0\nuser=bob", "OVER: OVER 0/5 OK 5/5"},
			step{"user=ann | 0 | 8 MINUTE", "OK: OK 1/8"},
			step{"none=x\nuser=ann", "OVER: OVER 0/0 OVER 0/5"},
		)
		s.SetConfig(parsed(t, "domain: web\ndescriptors:\n- {key: user, rate_limit: {unit: minute, requests_per_unit: 9}}"))
		run(t, s, step{"user=ann | 0", "OK: OK 2/9"})
		l := s.client.RateLimiter("envoy:{web}:user_ann:minute")
		require.NoError(t, l.SetRate(t.Context(), rratelimiter.Config{Rate: 20, Interval: time.Minute}, rratelimiter.KeepState()))
		for range 3 {
			run(t, s, step{"user=ann | 0", "OK: OK 13/20"})
		}
	})
}

// So are all of those that come at once.
func TestService_QuestionsAtOnceAfterAnotherLimit(t *testing.T) {
	t.Parallel()
	inVirtual(t, web, func(t *testing.T, s *Service, rdb redistest.Client) {
		run(t, s, step{"user=ann | 4", "OK: OK 1/5"})
		rdb.AddHook(redistest.Hook(func(_ context.Context, _ []redis.Cmder, next func() error) error {
			time.Sleep(time.Millisecond)
			return next()
		}))
		for _, n := range []string{"3", "5", "3"} {
			s.SetConfig(parsed(t, "domain: web\ndescriptors:\n- {key: user, rate_limit: {unit: minute, requests_per_unit: "+n+"}}"))
			want := map[string]string{"3": "OVER: OVER 0/3", "5": "OK: OK 1/5"}[n]
			var calls sync.WaitGroup
			for range 20 {
				calls.Go(func() { assert.Equal(t, want, says(s.ask(t, "web", "user=ann | 0"))) })
			}
			calls.Wait()
		}
	})
}

// names returns the counters that Redis has.
func names(t *testing.T, rdb redistest.Client) (all []string) {
	t.Helper()
	for _, key := range redistest.Keys(t, rdb, "envoy:*") {
		if kind := rdb.Type(t.Context(), key).Val(); kind == "hash" || kind == "string" && key[len(key)-6:] != ":value" {
			all = append(all, key)
		}
	}
	return all
}

func TestService_ShadowQuotaReplaces(t *testing.T) {
	t.Parallel()
	const text = `
domain: web
descriptors:
- {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: a, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: b, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: user, rate_limit: {name: usual, unit: hour, requests_per_unit: 1}}
- {key: user, value: vip, rate_limit: {replaces: [{name: usual}], unit: hour, requests_per_unit: 9}}
- {key: free, rate_limit: {unlimited: true, replaces: [{name: usual}]}}
- {key: c, quota_mode: true, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
`
	inVirtual(t, text, func(t *testing.T, s *Service, _ redistest.Client) {
		run(t, s,
			step{"shadow=x", "OK: OK 0/1"},
			step{"shadow=x\nuser=ann", "OK: OK 0/1 OK 0/1"},
			step{"shadow=y\nuser=ann", "OVER: OK 1/1 OVER 0/1"},
			step{"a=x\nb=x", "OK: OK 0/1 OK 1/2"},
			step{"a=x\nb=x", "OK: OVER 0/1 OK 0/2"},
			step{"a=x\nb=x\nuser=bob", "OVER: OVER 0/1 OVER 0/2 OK 1/1"},
			step{"a=x\nc=x", "OK: OVER 0/1 OK 0/0"},     // not all quotas, since c is only watched
			step{"user=bob\nuser=vip", "OK: OK OK 8/9"}, //nolint:dupword // two descriptors
			step{"user=bob\nfree=x", "OK: OK OK"},       //nolint:dupword // two descriptors
			step{"user=bob", "OK: OK 0/1"},
			// An override counts though the same counter has a lower limit that refuses nothing.
			step{"shadow=z | | 5 HOUR\nshadow=z", "OK: OK 3/5 OK 3/5"},
			step{"shadow=z\nshadow=z | | 5 HOUR", "OK: OK 1/5 OK 1/5"},       //nolint:dupword // two descriptors
			step{"shadow=z\nshadow=z | | 5 HOUR", "OVER: OVER 0/5 OVER 0/5"}, //nolint:dupword // two descriptors
			step{"a=z\na=z | | 5 HOUR", "OK: OK 3/5 OK 3/5"},                 //nolint:dupword // two descriptors
		)
	})
}

// WithShadow, of the Service or its Client, lets all pass, and statuses say what limits refuse.
func TestService_WithShadow(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		of := limitertest.NewClient(t, rdb, rratelimiter.WithShadow())
		for name, s := range map[string]*Service{
			"ann": newService(t, rdb, web, WithShadow(), WithHeaders()),
			"bob": New(of, parsed(t, strings.ReplaceAll(web, "free", "cheap")), WithHeaders()),
		} {
			plan := map[string]string{"ann": "free", "bob": "cheap"}[name]
			run(t, s,
				step{"user=" + name + " | 5\nplan=" + plan, "OK: OK 0/5 OK 2/3"},
				step{"user=" + name + "\nplan=" + plan, "OK: OVER 0/5 OK 2/3"},
				step{"none=x", "OK: OVER 0/0"},
			)
			for _, h := range s.ask(t, "web", "user="+name).GetResponseHeadersToAdd() {
				assert.NotEqual(t, "Retry-After", h.GetKey())
			}
		}
	})
}

// Fixed windows begin as there: at multiples of the unit since 1970 began, so that of a week on a Thursday.
func TestService_WindowsAsThere(t *testing.T) {
	t.Parallel()
	for lines, seconds := range map[string]int64{
		"unit: second, algorithm: fixed_window": 1, "unit: minute, algorithm: fixed_window": 60, "unit: hour, algorithm: fixed_window": 3600,
		"unit: day": 86400, "unit: week": 7 * 86400, "unit: month": 30 * 86400, "unit: year": 365 * 86400, "window: 36h": 36 * 3600,
	} {
		inVirtual(t, "domain: web\ndescriptors:\n- {key: k, rate_limit: {"+lines+", requests_per_unit: 1}}", func(t *testing.T, s *Service, _ redistest.Client) {
			for _, after := range []time.Duration{0, 100*time.Second + 300*time.Millisecond, 1000 * time.Hour} {
				time.Sleep(after)
				want := seconds - time.Now().Unix()%seconds // as CalculateReset there
				for range 2 {
					reset := s.ask(t, "web", "k=x").GetStatuses()[0].GetDurationUntilReset()
					assert.Equal(t, want, reset.GetSeconds(), "%s after %v", lines, after)
				}
			}
		})
	}
}

// A calendar's windows end with its day, week or month.
func TestService_Calendars(t *testing.T) {
	t.Parallel()
	for unit, days := range map[string]int64{"day": 1, "week": 2, "month": 31} { // it is Saturday, the first of January
		text := "domain: web\ndescriptors:\n- {key: k, rate_limit: {unit: " + unit + ", calendar: UTC, requests_per_unit: 1}}"
		inVirtual(t, text, func(t *testing.T, s *Service, _ redistest.Client) {
			got := s.ask(t, "web", "k=x")
			assert.Equal(t, days*24*60*60, got.GetStatuses()[0].GetDurationUntilReset().GetSeconds(), unit)
		})
	}
}

// Retry-After and reset are whole seconds, rounded up, after which the same request passes.
func TestService_SaysWhenToComeBack(t *testing.T) {
	t.Parallel()
	inVirtual(t, web, func(t *testing.T, s *Service, _ redistest.Client) {
		got := s.ask(t, "web", "slow=x")
		assert.EqualValues(t, 90, got.GetStatuses()[0].GetDurationUntilReset().GetSeconds())
		assert.EqualValues(t, 90, got.GetStatuses()[0].GetCurrentLimit().GetUnitMultiplier().GetValue())
		assert.Equal(t, "SECOND", got.GetStatuses()[0].GetCurrentLimit().GetUnit().String())
		time.Sleep(30500 * time.Millisecond)
		got = s.ask(t, "web", "slow=x\nuser=ann")
		assert.EqualValues(t, 60, got.GetStatuses()[0].GetDurationUntilReset().GetSeconds())
		headers := map[string]string{}
		for _, h := range got.GetResponseHeadersToAdd() {
			headers[h.GetKey()] = h.GetValue()
		}
		assert.Equal(t, map[string]string{
			"RateLimit-Limit": "1", "RateLimit-Remaining": "0", "RateLimit-Reset": "60", "Retry-After": "60",
		}, headers)
		time.Sleep(time.Minute)
		assert.Equal(t, "OK: OK 0/1", says(s.ask(t, "web", "slow=x")))
	}, WithHeaders())
}

// Of several limits that refuse, headers show the last one, and those of quotas only if no other limit refuses, as there.
func TestService_WhichLimitHeadersShow(t *testing.T) {
	t.Parallel()
	const text = `
domain: web
descriptors:
- {key: a, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: b, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: c, rate_limit: {unit: hour, requests_per_unit: 30}}
- {key: q, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 3}}
- {key: s, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 4}}
- {key: free, rate_limit: {unlimited: true}}
`
	inVirtual(t, text, func(t *testing.T, s *Service, _ redistest.Client) {
		for _, tc := range []struct{ request, limit, remaining string }{
			{"a=x | 9\nb=x | 9\nc=x", "2", "0"},
			{"b=x | 9\na=x | 9\nc=x", "1", "0"},
			{"a=x | 9\nq=x | 9\nb=x", "1", "0"},
			{"q=x | 9\na=x | 9", "1", "0"},
			{"q=x | 9\nb=x | 1", "3", "0"},
			{"s=x | 9\nq=x | 9", "4", "0"},
			{"c=x | 1\nb=y | 1\nfree=x\nother=x", "2", "1"},
		} {
			headers := s.ask(t, "web", tc.request).GetResponseHeadersToAdd()
			require.NotEmpty(t, headers, tc.request)
			assert.Equal(t, []string{tc.limit, tc.remaining}, []string{headers[0].GetValue(), headers[1].GetValue()}, tc.request)
		}
		assert.Empty(t, s.ask(t, "web", "free=x\nother=x").GetResponseHeadersToAdd())
	}, WithHeaders())
}

// The counters of a domain are in one slot of a cluster, or with hash: descriptor where their first value leads.
func TestService_NamesOfCounters(t *testing.T) {
	t.Parallel()
	const tail = `
descriptors:
- {key: k, rate_limit: {unit: hour, requests_per_unit: 9}}
- {key: k, value: "a*", share_threshold: true, descriptors: [{key: l, rate_limit: {unit: day, requests_per_unit: 9}}]}
`
	for head, want := range map[string][]string{
		"domain: web":                     {"envoy:{web}:k_x:hour", "envoy:{web}:k_%3A%7BIP%7D%20y:hour", "envoy:{web}:k_a*:l_b:day", "envoy:{web}:k_:hour"},
		"domain: web\nhash: descriptor\n": {"envoy:{web:x}:k_x:hour", "envoy:{web:%3A%7BIP%7D%20y}:k_%3A%7BIP%7D%20y:hour", "envoy:{web:a*}:k_a*:l_b:day", "envoy:{web}:k_:hour"},
	} {
		inVirtual(t, head+tail, func(t *testing.T, s *Service, rdb redistest.Client) {
			run(t, s, step{"k=x\nk=:{::1} y\nk=ab, l=b\nk=", "OK: OK 8/9 OK 8/9 OK 8/9 OK 8/9"})
			for i, name := range want {
				want[i] = strings.ReplaceAll(name, "IP", "%3A%3A1")
			}
			assert.ElementsMatch(t, want, names(t, rdb))
		})
	}
}

func TestService_Metadata(t *testing.T) {
	t.Parallel()
	const text = `
domain: web
descriptors:
- {key: a, metadata: {tier: {name: a, n: 1}}, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: b, metadata: {tier: {name: b, m: 2}, list: [x]}, rate_limit: {unit: hour, requests_per_unit: 9}}
- {key: free, metadata: {tier: x}, rate_limit: {unlimited: true}}
`
	inVirtual(t, text, func(t *testing.T, s *Service, _ redistest.Client) {
		tier := func(r *ratelimitv3.RateLimitResponse) any { return r.GetDynamicMetadata().AsMap()["metadata"] }
		assert.Equal(t, map[string]any{"tier": map[string]any{"name": "a", "n": 1.0, "m": 2.0}, "list": []any{"x"}}, tier(s.ask(t, "web", "a=x\nb=x")))
		assert.Equal(t, map[string]any{"tier": map[string]any{"name": "b", "m": 2.0}, "list": []any{"x"}}, tier(s.ask(t, "web", "a=x\nb=x")))
		assert.Nil(t, s.ask(t, "web", "other=x\nfree=x").GetDynamicMetadata())
	})
}

// Metadata are as envoyproxy/ratelimit reads them, by YAML 1.1.
func TestService_MetadataAsThere(t *testing.T) {
	t.Parallel()
	const text = `
domain: web
descriptors:
- key: a
  metadata: &m
    1: {true: x, 2: [~, 0x10, 1.5, {3: x}]}
    on: no
    quoted: "yes"
    since: 2001-01-01
    twice: first
    twice: &t [1]
    again: *t
  rate_limit: {unit: hour, requests_per_unit: 1}
- {key: b, metadata: {<<: *m, on: 5}, rate_limit: {unit: hour, requests_per_unit: 1}}
`
	inVirtual(t, text, func(t *testing.T, s *Service, _ redistest.Client) {
		want := map[string]any{
			"1":  map[string]any{"true": "x", "2": []any{nil, 16.0, 1.5, map[string]any{"3": "x"}}},
			"on": false, "quoted": "yes", "since": "2001-01-01", "twice": []any{1.0}, "again": []any{1.0},
		}
		assert.Equal(t, map[string]any{"metadata": want}, s.ask(t, "web", "a=x").GetDynamicMetadata().AsMap())
		want["on"] = 5.0
		assert.Equal(t, map[string]any{"metadata": want}, s.ask(t, "web", "b=x").GetDynamicMetadata().AsMap())
	})
}

// A changed limit holds for the next call, and what was used before counts.
func TestService_SetConfig(t *testing.T) {
	t.Parallel()
	inVirtual(t, web, func(t *testing.T, s *Service, _ redistest.Client) {
		run(t, s, step{"user=ann | 4\nplan=free", "OK: OK 1/5 OK 2/3"})
		s.SetConfig(parsed(t, "domain: web\ndescriptors:\n- {key: user, rate_limit: {unit: minute, requests_per_unit: 9}}\n- {key: plan, rate_limit: {unit: day, requests_per_unit: 9}}"))
		run(t, s, step{"user=ann\nplan=free", "OK: OK 4/9 OK 7/9"})
		s.SetConfig(parsed(t, web))
		run(t, s, step{"user=ann", "OVER: OVER 0/5"})
	})
}
