package envoylimit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
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

// played are scenes with more than steps.
var played = map[string]scene{
	"RefusesRequestsThatMakeNoSense": {then: func(t *testing.T, s *stage) {
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
		assert.Equal(t, "OK: OK", says(s.ShouldRateLimit(t.Context(), request("nowhere", "user=ann | 1 | 1 SECOND"))))
		s.SetConfig(nil)
		s.play("user=ann -> Unavailable")
		for _, client := range []*rratelimiter.Client{nil, rratelimiter.New(nil)} {
			require.ErrorIs(t, New(client, nil).Err(), rratelimiter.ErrInvalidConfig)
		}
		assert.Equal(t, "Internal", says(New(nil, nil).ShouldRateLimit(t.Context(), request("web", "user=ann"))))
	}},

	// Permits taken ahead save round trips, and change no decision.
	"WithLeases": {opts: []Option{WithLeases()}, limits: `
domain: web
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 100000}}
- {key: few, rate_limit: {unit: minute, requests_per_unit: 5}}
`, then: func(t *testing.T, s *stage) {
		calls := limitertest.CountCommands(s.rdb)
		for range 10_000 {
			require.Equal(t, ok, s.ask(t, "user=ann").GetOverallCode())
			time.Sleep(time.Millisecond)
		}
		assert.Less(t, calls.Total(), 1000)
		granted := 0
		for range 50 {
			if s.ask(t, "few=x; user=ann").GetOverallCode() == ok {
				granted++
			}
		}
		assert.Equal(t, 5, granted)
		assert.Equal(t, ok, s.ask(t, "user=ann").GetOverallCode())
	}},

	// What is taken ahead is free for a request that another limit refuses.
	"WithLeasesSaysWhoRefuses": {opts: []Option{WithLeases()}, limits: `
domain: web
descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 40}}, {key: none, rate_limit: {unit: minute}}]
`, then: func(_ *testing.T, s *stage) {
		for left := 39; left >= 0; left-- {
			s.play(fmt.Sprintf("user=ann -> OK: OK %d/40", left))
			s.play(fmt.Sprintf("user=ann; none=x -> OVER: %s %d/40 OVER 0/0", map[bool]string{true: "OK", false: "OVER"}[left > 0], left))
		}
	}},

	// A descriptor without hits of its own has the request's.
	"HitsOfRequestAndDescriptor": {then: func(t *testing.T, s *stage) {
		r := request("web", "user=ann; user=bob | 1; user=eve | 0")
		r.HitsAddend = 3
		assert.Equal(t, "OK: OK 2/5 OK 4/5 OK 5/5", says(s.ShouldRateLimit(t.Context(), r)))
	}},

	// A changed limit holds for the next call, and what was used before counts, but not if a rate was set by hand.
	"SetConfig": {then: func(t *testing.T, s *stage) {
		set := func(limit string) {
			const text = "domain: web\ndescriptors:\n- {key: user, rate_limit: {unit: minute, requests_per_unit: #}}\n- {key: plan, rate_limit: {unit: day, requests_per_unit: #}}"
			s.SetConfig(parsed(t, strings.ReplaceAll(text, "#", limit)))
		}
		s.play("user=ann | 3; plan=free -> OK: OK 2/5 OK 2/3")
		set("9")
		s.play("user=ann; plan=free -> OK: OK 5/9 OK 7/9")
		s.rdb.AddHook(limitertest.Slow(time.Millisecond))
		for _, step := range [][2]string{{"3", "OVER: OVER 0/3"}, {"5", "OK: OK 1/5"}, {"3", "OVER: OVER 0/3"}} {
			set(step[0])
			limitertest.Together(20, func(int) { assert.Equal(t, step[1], says(s.ask(t, "user=ann | 0"), nil)) })
		}
		s.play("user=ann -> OVER: OVER 0/3")
		l := s.client.RateLimiter("envoy:{web}:user_ann:minute")
		require.NoError(t, l.SetRate(t.Context(), rratelimiter.Config{Rate: 20, Interval: time.Minute}, rratelimiter.KeepState()))
		for range 3 {
			s.play("user=ann | 0 -> OK: OK 16/20")
		}
	}},

	// If all requests pass, no header tells Envoy's clients to come back later, whether the Service or its Client says so.
	"WithShadowSendsNoRetryAfter": {then: func(t *testing.T, s *stage) {
		of := New(limitertest.NewClient(t, s.rdb, rratelimiter.WithShadow()), parsed(t, web), WithHeaders())
		for _, s := range []*Service{newService(t, s.rdb, web, WithShadow(), WithHeaders()), of} {
			s.ask(t, "user=ann | 5")
			assert.Equal(t, "OK: OVER 0/5", says(s.ask(t, "user=ann"), nil))
			assert.NotContains(t, headersOf(s.ask(t, "user=ann")), "Retry-After")
		}
	}},

	// Retry-After and reset are whole seconds, rounded up, after which the same request passes.
	"SaysWhenToComeBack": {opts: []Option{WithHeaders()}, then: func(t *testing.T, s *stage) {
		s.play("user=eve | 2 -> OK: OK 3/5")
		got := s.ask(t, "slow=x")
		assert.Equal(t, 90*time.Second, wait(got, 0))
		assert.EqualValues(t, 90, got.GetStatuses()[0].GetCurrentLimit().GetUnitMultiplier().GetValue())
		assert.Equal(t, "SECOND", got.GetStatuses()[0].GetCurrentLimit().GetUnit().String())
		time.Sleep(30500 * time.Millisecond)
		assert.Equal(t, 30*time.Second, wait(s.ask(t, "none=x; user=eve | 4; plan=bucket | 2"), 1), "of what is only looked at, too")
		assert.Equal(t, map[string]string{
			"RateLimit-Limit": "1", "RateLimit-Remaining": "0", "RateLimit-Reset": "60", "Retry-After": "60",
		}, headersOf(s.ask(t, "slow=x; user=ann")))
		time.Sleep(time.Minute)
		s.play("slow=x -> OK: OK 0/1")
	}},

	// Of several limits that refuse, headers show the last one, and those of quotas only if no other limit refuses, as there.
	"WhichLimitHeadersShow": {opts: []Option{WithHeaders()}, limits: `
domain: web
descriptors:
- {key: a, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: b, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: c, rate_limit: {unit: hour, requests_per_unit: 30}}
- {key: q, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 3}}
- {key: s, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 4}}
- {key: free, rate_limit: {unlimited: true}}
`, then: func(t *testing.T, s *stage) {
		for _, tc := range []struct{ request, limit, remaining string }{
			{"a=x | 9; b=x | 9; c=x", "2", "0"},
			{"b=x | 9; a=x | 9; c=x", "1", "0"},
			{"a=x | 9; q=x | 9; b=x", "1", "0"},
			{"q=x | 9; a=x | 9", "1", "0"},
			{"q=x | 9; b=x | 1", "3", "0"},
			{"s=x | 9; q=x | 9", "4", "0"},
			{"c=x | 1; b=y | 1; free=x; other=x", "2", "1"},
		} {
			headers := headersOf(s.ask(t, tc.request))
			assert.Equal(t, []string{tc.limit, tc.remaining}, []string{headers["RateLimit-Limit"], headers["RateLimit-Remaining"]}, tc.request)
		}
		assert.Empty(t, headersOf(s.ask(t, "free=x; other=x")))
	}},

	// Metadata of limits that grant are merged. They are as envoyproxy/ratelimit reads them, by YAML 1.1.
	"Metadata": {limits: `
domain: web
descriptors:
- {key: a, metadata: {tier: {name: a, n: 1}}, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: b, metadata: {tier: {name: b, m: 2}, list: [x]}, rate_limit: {unit: hour, requests_per_unit: 9}}
- {key: free, metadata: {tier: x}, rate_limit: {unlimited: true}}
- key: c
  metadata: &m
    1: {true: x, 2: [~, 0x10, 1.5, {3: x}]}
    on: no
    quoted: "yes"
    since: 2001-01-01
    twice: first
    twice: &t [1]
    again: *t
  rate_limit: {unit: hour, requests_per_unit: 1}
- {key: d, metadata: {<<: *m, on: 5}, rate_limit: {unit: hour, requests_per_unit: 1}}
`, then: func(t *testing.T, s *stage) {
		metadata := func(text string) any { return s.ask(t, text).GetDynamicMetadata().AsMap()["metadata"] }
		assert.Equal(t, map[string]any{"tier": map[string]any{"name": "a", "n": 1.0, "m": 2.0}, "list": []any{"x"}}, metadata("a=x; b=x"))
		assert.Equal(t, map[string]any{"tier": map[string]any{"name": "b", "m": 2.0}, "list": []any{"x"}}, metadata("a=x; b=x"))
		assert.Nil(t, s.ask(t, "other=x; free=x").GetDynamicMetadata())
		want := map[string]any{
			"1":  map[string]any{"true": "x", "2": []any{nil, 16.0, 1.5, map[string]any{"3": "x"}}},
			"on": false, "quoted": "yes", "since": "2001-01-01", "twice": []any{1.0}, "again": []any{1.0},
		}
		assert.Equal(t, want, metadata("c=x"))
		want["on"] = 5.0
		assert.Equal(t, want, metadata("d=x"))
	}},

	// What was given back since another descriptor refused is shown as a question would find it.
	"FiguresOfWhatWentBack": {limits: kinds, then: func(t *testing.T, s *stage) {
		for range 2 { // counters that nothing has used, and others
			s.ask(t, "once=x")
			time.Sleep(10 * time.Minute)
			for _, key := range []string{"log", "held", "day", "bucket"} {
				refused := s.ask(t, "once=x; "+key+"=x")
				require.Equal(t, over, refused.GetOverallCode())
				assert.Equal(t, s.ask(t, key+"=x | 0").GetStatuses()[0].String(), refused.GetStatuses()[1].String(), key)
				s.ask(t, key+"=x")
			}
			time.Sleep(5 * time.Minute)
		}
	}},
}

// Counters in several slots of a cluster are asked apart, and all or none are charged nevertheless.
func TestService_OnACluster(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "a cluster")
	rdb := redistest.StartCluster(t, 3, 0).Client(t, nil)
	for _, hash := range []string{"domain", "descriptor"} {
		s := &stage{T: t, rdb: rdb, Service: newService(t, rdb, "hash: "+hash+web)}
		s.play(strings.ReplaceAll(`
			user=a#; user=b# | 5 -> OK: OK 4/5 OK 0/5
			user=a#; user=b#; user=c# -> OVER: OK 4/5 OVER 0/5 OK 5/5
			user=a# -> OK: OK 3/5`, "#", redistest.Name(t)+hash))
	}
}

func headersOf(r *ratelimitv3.RateLimitResponse) map[string]string {
	all := map[string]string{}
	for _, h := range r.GetResponseHeadersToAdd() {
		all[h.GetKey()] = h.GetValue()
	}
	return all
}

// Fixed windows begin as there, at multiples of the unit since 1970 began; a calendar's windows end with its day, week or month.
func TestService_WindowsEnd(t *testing.T) {
	t.Parallel()
	for lines, seconds := range map[string]int64{
		"unit: second, algorithm: fixed_window": 1, "unit: minute, algorithm: fixed_window": 60, "unit: hour, algorithm: fixed_window": 3600,
		"unit: day": 86400, "unit: week": 7 * 86400, "unit: month": 30 * 86400, "unit: year": 365 * 86400, "window: 36h": 36 * 3600,
		"unit: day, calendar: UTC": 86400, "unit: week, calendar: UTC": 0, "unit: month, calendar: UTC": 0,
	} {
		onStage(t, "domain: web\ndescriptors:\n- {key: k, rate_limit: {"+lines+", requests_per_unit: 1}}", func(t *testing.T, s *stage) {
			if seconds == 0 { // it is Saturday, the first of January
				end := map[bool]int{true: 3, false: 32}[strings.Contains(lines, "week")]
				assert.Equal(t, time.Until(time.Date(2000, 1, end, 0, 0, 0, 0, time.UTC)), wait(s.ask(t, "k=x"), 0), lines)
				return
			}
			for _, after := range []time.Duration{0, 100*time.Second + 300*time.Millisecond, 1000 * time.Hour} {
				time.Sleep(after)
				want := seconds - time.Now().Unix()%seconds // as CalculateReset there
				for range 2 {
					assert.Equal(t, time.Duration(want)*time.Second, wait(s.ask(t, "k=x"), 0), "%s after %v", lines, after)
				}
			}
		})
	}
}

// After as long as an answer says, the same call passes, and not before: a question that finds more used than the limit, and a
// charge, for which what was charged beyond the limit counts.
func TestService_PassesWhenItSays(t *testing.T) {
	t.Parallel()
	const text = `
domain: web
descriptors:
- {key: few, rate_limit: {unit: hour, requests_per_unit: 2, charge: always}}
- {key: log, rate_limit: {unit: hour, requests_per_unit: 100, charge: always}}
- {key: bucket, rate_limit: {unit: hour, requests_per_unit: 60, algorithm: token_bucket, charge: always}}
- {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 60, algorithm: token_bucket}}
- {key: day, rate_limit: {unit: day, requests_per_unit: 60, charge: always}}
`
	type row struct {
		first, then string // two calls, each with ten minutes after it, and one
		wait        time.Duration
	}
	limitertest.Each(t, map[string]row{
		"log": {"few=a", "few=a", 50 * time.Minute}, "log with cost": {"log=a | 60", "log=a | 60", time.Hour},
		"log above the limit": {"log=a | 250", "log=a | 250", time.Hour}, "bucket": {"bucket=a | 40", "bucket=a | 40", 80 * time.Minute},
		"day": {"day=a | 40", "day=a", 24*time.Hour - 20*time.Minute}, "log, asked": {"log=a | 60", "log=a | 0", 40 * time.Minute},
		"bucket, asked": {"bucket=a | 60", "bucket=a | 0", 41 * time.Minute}, "quota, asked": {"quota=a | 60", "quota=a | 0", 41 * time.Minute},
		"day, asked": {"day=a | 60", "day=a | 0", 24*time.Hour - 20*time.Minute},
	}, func(t *testing.T, tc row) {
		onStage(t, text, func(t *testing.T, s *stage) {
			for range 2 {
				s.ask(t, tc.first)
				time.Sleep(10 * time.Minute)
			}
			got := s.ask(t, tc.then)
			require.Equal(t, over, got.GetOverallCode())
			assert.Zero(t, got.GetStatuses()[0].GetLimitRemaining())
			assert.InDelta(t, tc.wait, wait(got, 0), float64(time.Minute)) // members are merged
			time.Sleep(wait(got, 0))
			if !strings.Contains(tc.then, "250") {
				assert.Equal(t, ok, s.ask(t, tc.then).GetOverallCode())
			}
		})
	})
}

// What a call is granted before another limit refuses it is in no call's way that none refuses: as many pass as the scarcest
// limit has, however many come at once and whatever the limits count by.
func TestService_GrantsAllThatTheScarcestLimitHas(t *testing.T) {
	t.Parallel()
	for _, most := range [][]any{{20, 22, 24}, {22, 20, 24}, {22, 24, 20}} {
		text := fmt.Sprintf(`
domain: web
descriptors:
- {key: log, rate_limit: {unit: hour, requests_per_unit: %d}}
- {key: day, rate_limit: {unit: day, requests_per_unit: %d}}
- {key: bucket, rate_limit: {unit: day, requests_per_unit: %d, algorithm: token_bucket}}`, most...)
		onStage(t, text, func(t *testing.T, s *stage) {
			var sent atomic.Uint32
			s.rdb.AddHook(redistest.BeforeCommands(func(...redis.Cmder) { time.Sleep(time.Duration(sent.Add(1)*7919%5) * time.Millisecond) }))
			var granted atomic.Int64
			limitertest.Together(200, func(i int) {
				lines := []string{"log=a", "day=a", "bucket=a"}
				slices.Reverse(lines[i%3:])
				if s.ask(t, strings.Join(lines, "; ")).GetOverallCode() == ok {
					granted.Add(1)
				}
			})
			assert.EqualValues(t, 20, granted.Load(), most)
			for _, st := range s.ask(t, "log=a | 0; day=a | 0; bucket=a | 0").GetStatuses() {
				assert.Equal(t, st.GetCurrentLimit().GetRequestsPerUnit()-20, st.GetLimitRemaining(), most)
			}
		})
	}
}

// What a stream has cost is charged though Envoy's deadline is over before Redis answers.
func TestReservation_IsSettledToTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, limitertest.FarAway(t, 50*time.Millisecond), llm)
		id := reservation(s.ask(t, "user=ann"))
		for _, text := range []string{"user=ann, rrl_reservation=" + id + " | 150", "user=bob, rrl_reservation=none | 150"} {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			_, err := s.ShouldRateLimit(ctx, request("web", text))
			cancel()
			require.NoError(t, err)
		}
		assert.Equal(t, "OK: OK 50/200 OK 50/200", says(s.ask(t, "user=ann | 0; user=bob | 0"), nil))
	})
}

// Observers, and so metrics, learn what a call has granted, and which limits have refused it: nothing of others then.
func TestService_TellsObserversWhoRefuses(t *testing.T) {
	t.Parallel()
	const text = `
domain: web
descriptors:
- {key: full, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: zero, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: free, rate_limit: {unit: hour, requests_per_unit: 100}}
- {key: day, rate_limit: {unit: day, requests_per_unit: 100}}
- {key: bucket, rate_limit: {unit: hour, requests_per_unit: 100, algorithm: token_bucket}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: tok, rate_limit: {unit: hour, requests_per_unit: 100, estimate: 10}}
`
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		told := &limitertest.Recorder{}
		s := New(limitertest.NewClient(t, rdb, rratelimiter.WithObserver(told)), parsed(t, text))
		const all = "free=a; day=a; bucket=a; "
		for _, tc := range []struct{ request, want string }{
			{all + "full=a", "day granted 1, free granted 1, full granted 1, bucket granted 1"},
			{all + "full=a", "full refused 1"},
			{all + "zero=a", "zero too_costly 1"},
			{all + "full=a | 2", "full too_costly 2"},
			{"shadow=a; free=a", "free granted 1, shadow granted 1 (shadow)"},
			{"shadow=a; free=a", "free granted 1, shadow refused 1 (shadow)"},
			{"quota=a; free=a | 3", "free granted 3, quota granted 1"},
			{"quota=a; free=a", "quota refused 1"},
			{"free=a | 0", "free granted 0"},
			{"free=a | -1", ""},
			{"tok=a", "tok granted 10"},
			{"tok=a, rrl_reservation=none | 5", "tok granted 5"},
			{"free=a | 1; free=a | 2", "free granted 3"},
			{"other=a", ""},
		} {
			s.ask(t, tc.request)
			var got []string
			for _, d := range told.Decisions() {
				line := fmt.Sprintf("%s %v %d", strings.TrimPrefix(d.Limiter, "web."), d.Outcome, d.Permits)
				if d.Shadow {
					line += " (shadow)"
				}
				got = append(got, line)
			}
			assert.Equal(t, tc.want, strings.Join(got, ", "), tc.request)
		}
	})
}

// in20ms returns the answer to a call whose caller waits as long as Envoy does by default, and how long it took.
func (s *stage) in20ms(text string) (string, time.Duration) {
	ctx, cancel := context.WithTimeout(s.Context(), 20*time.Millisecond)
	defer cancel()
	start := time.Now()
	r, err := s.ShouldRateLimit(ctx, request("web", text))
	require.NoError(s, ctx.Err())
	return says(r, err), time.Since(start)
}

// delay makes calls to Redis take as long as away says, from the one after so many on.
func (s *stage) delay(prompt int64, away *atomic.Int64) {
	var calls atomic.Int64
	s.rdb.AddHook(redistest.BeforeCommands(func(...redis.Cmder) {
		if calls.Add(1) > prompt {
			time.Sleep(time.Duration(away.Load()))
		}
	}))
}

// What a domain says of failures reaches Envoy before it gives up, which is after 20 ms by default, from the first call on.
// What Redis grants afterwards goes back, and calls that were given up end those to a Redis that is silent.
func TestFailure_AnswersInTheCallersTime(t *testing.T) {
	t.Parallel()
	const all = "log=ann; held=ann; day=ann; bucket=ann"
	limitertest.Each(t, map[string][2]string{
		"none": {"", "Unavailable"}, "closed": {"failure: closed", "OVER:" + strings.Repeat(" OVER", 4)},
		"open": {"failure: open", "OK:" + strings.Repeat(" OK", 4)}, "local": {"failure: local\nshare: 1", "OK: OK 7/8 OK 6/8 OK 7/8 OK 7/8"},
	}, func(t *testing.T, failure [2]string) {
		onStage(t, failure[0]+kinds, func(t *testing.T, s *stage) {
			for key := range strings.SplitSeq(all, "; ") { // scripts are loaded
				s.ask(t, strings.Replace(key, "ann", "eve", 1))
			}
			var away atomic.Int64
			s.delay(0, &away)
			away.Store(int64(15 * time.Millisecond))
			got, _ := s.in20ms("log=bob")
			assert.Equal(t, "OK: OK 7/8", got)
			away.Store(int64(30 * time.Millisecond))
			got, _ = s.in20ms(all)
			assert.Equal(t, failure[1], got)
			away.Store(0)
			s.play("wait 1m\n log=ann | 0; held=ann | 0; day=ann | 0; bucket=ann | 0 -> OK: OK 8/8 OK 8/8 OK 8/8 OK 8/8")
			away.Store(int64(time.Hour))
			for range 10 {
				_, _ = s.in20ms("log=ann")
			}
			for text := range strings.SplitSeq("log=a; log=a | 2; log=a | 0; log=a | -1; day=a | -1; held=a, rrl_reservation=none | 2", "; ") {
				_, took := s.in20ms(text)
				assert.LessOrEqual(t, took, 5*time.Millisecond, text)
			}
			away.Store(0)
			time.Sleep(2 * time.Hour)
		})
	})
}

// So do answers to calls that charge to the end, or give back what one limit granted: the rest is done with Redis after the answer.
func TestFailure_AnswersInTheCallersTimeWhatGoesOn(t *testing.T) {
	t.Parallel()
	const closed, open, local = "failure: closed", "failure: open", "failure: local"
	for _, tc := range []struct {
		call   string
		prompt int64             // how many calls Redis answers at once, before it is slow
		want   map[string]string // by what the domain says
		then   string            // what is used in the end
	}{
		{"lax=ann", 0, map[string]string{"": "Unavailable", closed: "OVER: OVER", open: "OK: OK", local: "OK: OK 7/8"}, "lax=ann | 0 -> OK: OK 7/8"},
		{"log=ann | 9", 1, map[string]string{"": "Unavailable", closed: "OVER: OVER", open: "OK: OK", local: "OVER: OVER 0/8"}, "log=ann | 0 -> OVER: OVER 0/8"},
		{"log=ann | -1", 0, map[string]string{"": "Unavailable", closed: "OVER: OVER", open: "OK: OK", local: "OK: OK"}, "log=ann | 0 -> OK: OK 8/8"},
		{"once=y; full=x", 2, map[string]string{"": "OVER: OK 0/1 OVER 0/1"}, "once=y | 0 -> OK: OK 1/1"},
		{"full=y | 0", 1, map[string]string{"": "OVER: OVER 0/1"}, "full=y | 0 -> OVER: OVER 0/1"},
	} {
		for failure, want := range tc.want {
			t.Run(failure+tc.call, func(t *testing.T) {
				t.Parallel()
				onStage(t, failure+kinds, func(t *testing.T, s *stage) {
					for _, text := range []string{"lax=eve", "log=eve", "lax=eve | 9", "log=eve | -1", "full=x", "full=x | 0", "full=y | 2", "once=x", "once=z; full=x"} { // scripts are loaded
						s.ask(t, text)
					}
					var away atomic.Int64
					away.Store(int64(30 * time.Millisecond))
					s.delay(tc.prompt, &away)
					got, _ := s.in20ms(tc.call)
					assert.Equal(t, want, got)
					away.Store(0)
					s.play("wait 1m\n" + tc.then)
				})
			})
		}
	}
}
