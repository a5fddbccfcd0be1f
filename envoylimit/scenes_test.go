package envoylimit

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func newService(t testing.TB, rdb rratelimiter.Redis, text string, opts ...Option) *Service {
	t.Helper()
	s := New(limitertest.NewClient(t, rdb), parsed(t, text), opts...)
	require.NoError(t, s.Err())
	return s
}

// request returns a request written "key=value, key=value | hits | override; ...", with a descriptor between semicolons.
// Hits are a number, below 0 to give back; an override is "number unit". What is left out is not sent.
func request(domain, text string) *ratelimitv3.RateLimitRequest {
	r := &ratelimitv3.RateLimitRequest{Domain: domain}
	for one := range strings.SplitSeq(text, "; ") {
		words := strings.Split(one, "|")
		d := &commonv3.RateLimitDescriptor{}
		if e := strings.TrimSpace(words[0]); e != "" {
			d.Entries = entries(e)
		}
		if len(words) > 1 && strings.TrimSpace(words[1]) != "" {
			n, err := strconv.ParseInt(strings.TrimSpace(words[1]), 10, 64)
			if err != nil {
				panic(err)
			}
			d.HitsAddend, d.IsNegativeHits = wrapperspb.UInt64(uint64(max(n, -n))), n < 0
		}
		if len(words) > 2 {
			number, unit, _ := strings.Cut(strings.TrimSpace(words[2]), " ")
			n, _ := strconv.ParseUint(number, 10, 32)
			d.Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{
				RequestsPerUnit: uint32(n), Unit: typev3.RateLimitUnit(typev3.RateLimitUnit_value[unit]),
			}
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return r
}

func (s *Service) ask(t testing.TB, text string) *ratelimitv3.RateLimitResponse {
	t.Helper()
	return limitertest.Must(s.ShouldRateLimit(t.Context(), request("web", text)))(t)
}

func reservation(r *ratelimitv3.RateLimitResponse) string {
	id, _ := r.GetDynamicMetadata().AsMap()[reservationKey].(string)
	return id
}

// wait returns when a descriptor's status says to come back.
func wait(r *ratelimitv3.RateLimitResponse, descriptor int) time.Duration {
	return r.GetStatuses()[descriptor].GetDurationUntilReset().AsDuration()
}

// says returns an answer in words: the code, and each descriptor's code with what is left of the limit, as "OK 3/5"; of an error its code.
func says(r *ratelimitv3.RateLimitResponse, err error) string {
	if err != nil {
		return status.Code(err).String()
	}
	text := map[ratelimitv3.RateLimitResponse_Code]string{ok: "OK", over: "OVER"}
	all := text[r.GetOverallCode()] + ":"
	for _, s := range r.GetStatuses() {
		all += " " + text[s.GetCode()]
		if l := s.GetCurrentLimit(); l != nil {
			all += fmt.Sprintf(" %d/%d", s.GetLimitRemaining(), l.GetRequestsPerUnit())
		} else if s.GetLimitRemaining() == 1<<32-1 {
			all += " endless"
		}
	}
	return all
}

// stage is where the steps of a test are played: in a bubble, with a Redis that can be down.
type stage struct {
	*testing.T
	*Service

	rdb  redistest.Client
	down atomic.Bool
	ids  map[string]string // of reservations
}

// onStage runs a test in a bubble, with a Service.
func onStage(t *testing.T, config string, test func(t *testing.T, s *stage), opts ...Option) {
	t.Helper()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		s := &stage{T: t, rdb: rdb, ids: map[string]string{}}
		s.Service = newService(t, rdb, config, opts...)
		rdb.AddHook(redistest.FailWhile(&s.down, errors.New("connection refused")))
		test(t, s)
		if s.down.Swap(false) {
			time.Sleep(time.Minute) // for the last probe
		}
	})
}

// play plays steps, a line each:
//
//	key=value | 3; key=value -> OK: OK 2/5 OK 4/5   a request and what is answered
//	... -> OK: OK 2/5 as $a                         the answer has a reservation, whose id is $a from now on; others have none
//	wait 1m                                         time passes
//	down, up                                        Redis does not answer any more, or does again
//	other                                           another Service of the same limits goes on
//	spoil NAME                                      a key holds something else
//	keys NAME, ...                                  the counters that Redis has
func (s *stage) play(steps string) {
	s.Helper()
	for line := range strings.Lines(steps) {
		line = strings.TrimSpace(line)
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "", "//":
		case "wait":
			time.Sleep(limitertest.Must(time.ParseDuration(rest))(s))
		case "down", "up":
			s.down.Store(word == "down")
		case "other":
			config := s.active.Load().Config
			s.Service = New(limitertest.NewClient(s, s.rdb), config)
		case "spoil":
			require.NoError(s, s.rdb.Del(s.Context(), rest).Err())
			require.NoError(s, s.rdb.SAdd(s.Context(), rest, 1).Err())
		case "keys":
			require.ElementsMatch(s, strings.Split(rest, ", "), s.names())
		default:
			s.call(line)
		}
	}
}

func (s *stage) call(line string) {
	s.Helper()
	text, want, found := strings.Cut(line, "->")
	require.True(s, found, line)
	want, id, reserves := strings.Cut(strings.TrimSpace(want), " as ")
	for name, is := range s.ids {
		text = strings.ReplaceAll(text, name, is)
	}
	r, err := s.ShouldRateLimit(s.Context(), request("web", text))
	require.Equal(s, want, says(r, err), line)
	time.Sleep(time.Millisecond) // what is taken ahead comes meanwhile
	require.Equal(s, reserves, reservation(r) != "", line)
	if reserves {
		s.ids[id] = reservation(r)
	}
}

func (s *stage) names() (all []string) {
	for _, key := range redistest.Keys(s, s.rdb, "envoy:*") {
		if kind := s.rdb.Type(s.Context(), key).Val(); kind == "hash" || kind == "string" && key[len(key)-6:] != ":value" {
			all = append(all, key)
		}
	}
	return all
}

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
- {key: watched, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: exact, rate_limit: {unit: day, requests_per_unit: 7, algorithm: fixed_window}}
- {key: lax, rate_limit: {unit: hour, requests_per_unit: 9, charge: always}}
`

const llm = `
domain: web
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 200, estimate: 100, hold: 60s}}
- {key: team, rate_limit: {unit: day, requests_per_unit: 1000, estimate: 100}}
- {key: user_calls, rate_limit: {unit: minute, requests_per_unit: 30}}
- {key: lax, rate_limit: {unit: hour, requests_per_unit: 9, charge: always}}
`

// outages are limits of all kinds, which domains add what they say of failures to.
const outages = `
domain: web
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 4}}
- {key: plan, rate_limit: {unit: day, requests_per_unit: 4}}
- {key: tokens, rate_limit: {unit: hour, requests_per_unit: 4, estimate: 1}}
- {key: watched, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 4}}
`

// kinds is limits that count in each way.
const kinds = `
domain: web
descriptors:
- {key: log, rate_limit: {unit: hour, requests_per_unit: 8}}
- {key: held, rate_limit: {unit: hour, requests_per_unit: 8, estimate: 2}}
- {key: day, rate_limit: {unit: day, requests_per_unit: 8}}
- {key: bucket, rate_limit: {unit: hour, requests_per_unit: 8, algorithm: token_bucket}}
- {key: lax, rate_limit: {unit: hour, requests_per_unit: 8, charge: always}}
- {key: full, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: once, rate_limit: {unit: day, requests_per_unit: 1}}
`

// scene is steps, as [stage.play] has them, and what comes then, with the limits of web unless it says others.
type scene struct {
	limits string
	opts   []Option
	steps  string
	then   func(t *testing.T, s *stage) // nil: no more
}

// Any calls of limits with all kinds of counters, modes and charges are answered as a model says: TestService_AsTheModel.
// These are the cases beside it.
//
//nolint:dupword // what descriptors that are alike are answered
var scenes = map[string]scene{
	// The answers to those cases of envoyproxy/ratelimit's tests and README that are the same here.
	"AnswersAsThere": {steps: `
		user=ann -> OK: OK 4/5
		user=ann | 3 -> OK: OK 1/5
		user=bob -> OK: OK 4/5
		other=ann -> OK: OK
		user=vip -> OK: OK endless
		user=good -> OK: OK
		user=ann; other=x; user=vip -> OK: OK 0/5 OK OK endless
		user=ann -> OVER: OVER 0/5
		none=x -> OVER: OVER 0/0
		file=a/x -> OK: OK 1/2
		file=a/y -> OK: OK 0/2
		file=a/z -> OVER: OVER 0/2
		plan=free -> OK: OK 2/3
		user=eve | 9999999999; user=bob -> OVER: OVER 0/5 OK 4/5
		| -> OK: OK`},

	// A charge beyond the limit leaves nothing to be taken ahead.
	"LeasesAndChargesBeyondTheLimit": {opts: []Option{WithLeases()}, limits: `
domain: web
descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 10}}]`, steps: `
		user=ann | 4 -> OK: OK 6/10
		user=ann -> OK: OK 5/10
		user=ann -> OK: OK 4/10
		user=ann -> OK: OK 3/10
		user=ann -> OK: OK 2/10
		user=ann | 3 -> OVER: OVER 0/10
		user=ann -> OVER: OVER 0/10
		user=ann | 0 -> OVER: OVER 0/10
		user=ann | -1 -> OK: OK
		user=ann | 0 -> OK: OK 0/10`},

	// What would be taken ahead is left to reservations.
	"LeasesAndChargesOfReservations": {limits: llm, opts: []Option{WithLeases()}, steps: `
		user=ann, rrl_reservation=none | 10 -> OK: OK
		user=ann, rrl_reservation=none | 10 -> OK: OK
		user=ann, rrl_reservation=none | 30 -> OK: OK
		user=ann | 0 -> OK: OK 150/200
		user=ann | 150 -> OK: OK 0/200 as $a`},

	// One counter, of entries and unit, has the lowest of the limits that a call brings for it.
	"Overrides": {steps: `
		user=ann -> OK: OK 4/5
		user=ann | | 10 MINUTE -> OK: OK 8/10
		user=ann | | 2 MINUTE -> OVER: OVER 0/2
		user=ann -> OK: OK 2/5
		user=ann | | 2 HOUR -> OK: OK 1/2
		user=ann | | 1 DAY -> OK: OK 0/1
		user=ann | | 1 DAY -> OVER: OVER 0/1
		unknown=x | | 1 SECOND -> OK: OK 0/1
		unknown=x | | 1 SECOND -> OVER: OVER 0/1
		user=vip | | 0 HOUR -> OVER: OVER 0/0
		| | 1 YEAR -> OK: OK 0/1
		| | 1 YEAR -> OVER: OVER 0/1
		user=bob | | 10 MINUTE; user=bob | 2 | 2 MINUTE -> OVER: OVER 0/2 OVER 0/2
		keys envoy:{web}:user_ann:minute, envoy:{web}:user_ann:hour, envoy:{web}:user_ann:day, envoy:{web}:unknown_x:second, envoy:{web}:year`},

	// A question is about the limit that it comes with, also if a request had another before.
	"QuestionsAfterAnotherLimit": {steps: `
		user=ann | 4 | 10 MINUTE -> OK: OK 6/10
		user=ann | 0 -> OK: OK 1/5
		user=ann | 3 | 10 MINUTE -> OK: OK 3/10
		user=ann | 0 -> OVER: OVER 0/5
		user=ann | 0; user=bob -> OVER: OVER 0/5 OK 5/5
		user=ann | 0 | 8 MINUTE -> OK: OK 1/8
		none=x; user=ann -> OVER: OVER 0/0 OVER 0/5`},

	// An override counts though the same counter has a lower limit. Quotas that are only watched refuse nothing.
	"ShadowQuotaReplaces": {limits: `
domain: web
descriptors:
- {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: a, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: user, rate_limit: {name: usual, unit: hour, requests_per_unit: 1}}
- {key: user, value: vip, rate_limit: {replaces: [{name: usual}], unit: hour, requests_per_unit: 9}}
- {key: free, rate_limit: {unlimited: true, replaces: [{name: usual}]}}
- {key: c, quota_mode: true, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}`, steps: `
		a=x -> OK: OK 0/1
		a=x; c=x -> OK: OVER 0/1 OK 0/0
		user=bob; user=vip -> OK: OK OK 8/9
		user=bob; free=x -> OK: OK OK endless
		user=bob -> OK: OK 0/1
		shadow=z | | 5 HOUR; shadow=z -> OK: OK 3/5 OK 3/5
		shadow=z; shadow=z | | 5 HOUR -> OK: OK 1/5 OK 1/5
		shadow=z; shadow=z | | 5 HOUR -> OVER: OVER 0/5 OVER 0/5
		a=z; a=z | | 5 HOUR -> OK: OK 3/5 OK 3/5`},

	// WithShadow lets all pass, and statuses say what limits refuse.
	"WithShadow": {opts: []Option{WithShadow()}, steps: `
		user=ann | 5; plan=free -> OK: OK 0/5 OK 2/3
		user=ann; plan=free -> OK: OVER 0/5 OK 2/3
		none=x -> OK: OVER 0/0`},

	// The counters of a domain are in one slot of a cluster. A key that holds '_' shares no counter with another key.
	"Names": {limits: `
domain: web
descriptors:
- {key: k, rate_limit: {unit: hour, requests_per_unit: 9}}
- {key: k_x, rate_limit: {unit: hour, requests_per_unit: 5}}
- {key: k%5Fx, rate_limit: {unit: hour, requests_per_unit: 7}}
- {key: k, value: "a*", share_threshold: true, descriptors: [{key: l, rate_limit: {unit: day, requests_per_unit: 9}}]}`, steps: `
		k=x_y; k=:{::1} y; k=ab, l=b; k= -> OK: OK 8/9 OK 8/9 OK 8/9 OK 8/9
		k_x=y | 3; k%5Fx=y -> OK: OK 2/5 OK 6/7
		keys envoy:{web}:k_x_y:hour, envoy:{web}:k_%3A%7B%3A%3A1%7D%20y:hour, envoy:{web}:k_a*:l_b:day, envoy:{web}:k_:hour, envoy:{web}:k%5Fx_y:hour, envoy:{web}:k%255Fx_y:hour`},

	// With hash: descriptor they are where their first value leads.
	"NamesByDescriptor": {limits: `
domain: web
hash: descriptor
descriptors:
- {key: k, rate_limit: {unit: hour, requests_per_unit: 9}}
- {key: k, value: "a*", share_threshold: true, descriptors: [{key: l, rate_limit: {unit: day, requests_per_unit: 9}}]}`, steps: `
		k=x; k=:{::1} y; k=ab, l=b; k= -> OK: OK 8/9 OK 8/9 OK 8/9 OK 8/9
		keys envoy:{web:x}:k_x:hour, envoy:{web:%3A%7B%3A%3A1%7D%20y}:k_%3A%7B%3A%3A1%7D%20y:hour, envoy:{web:a*}:k_a*:l_b:day, envoy:{web}:k_:hour`},

	// If permits can't be given back, the call fails, and what others granted goes back.
	"GivesBackToWhatIsNoCounter": {steps: `
		spoil envoy:{web}:exact_x:day
		user=ann; exact=x | -1 -> Internal
		plan=free; exact=x | -1 -> Internal
		plan=bucket; exact=x | -1 -> Internal
		user=ann | 0; plan=free | 0; plan=bucket | 2 -> OK: OK 5/5 OK 3/3 OK 0/60`},

	// Giving back to a counter that Redis does not have does nothing.
	"GivesBackToNoCounter": {steps: `
		user=ann | -1 -> OK: OK
		user=ann | -9; user=bob -> OK: OK OK 4/5
		plan=free | -1; plan=bucket | -1; none=x | -1; exact=x | -9 -> OK: OK OK OK OK
		keys envoy:{web}:user_bob:minute, envoy:{web}:plan_bucket:minute.token_bucket, envoy:{web}:plan_bucket:minute.token_bucket_time
		user=ann | 0; plan=free | 0; exact=x | 0 -> OK: OK 5/5 OK 3/3 OK 7/7
		user=ann -> OK: OK 4/5`},

	// The first call reserves, the one at the stream's end settles, by any Service, once.
	"SettlesLess":             settled("37", "1s", "OK: OK 163/200 OK 963/1000"),
	"SettlesMore":             settled("150", "1s", "OK: OK 50/200 OK 850/1000"),
	"SettlesEverything":       settled("300", "1s", "OVER: OVER 0/200 OK 700/1000"),
	"SettlesNothing":          settled("0", "1s", "OK: OK 200/200 OK 1000/1000"),
	"SettlesNoCost":           settled("", "1s", "OK: OK 100/200 OK 900/1000"),
	"SettlesNoCostAfterHold":  settled("", "61s", "OK: OK 200/200 OK 900/1000"),
	"SettlesAfterTheHold":     settled("37", "61s", "OK: OK 163/200 OK 963/1000"),
	"SettlesAfterTheInterval": settled("37", "61m", "OK: OK 163/200 OK 963/1000"),

	// What several descriptors of a call settle of one reservation is summed; several are settled apart, each once.
	"SettlesTheSum": {limits: llm, steps: `
		team=a | 50; team=a | 60 -> OK: OK 890/1000 OK 890/1000 as $a
		team=a -> OK: OK 790/1000 as $b
		team=a, rrl_reservation=$a | 300; team=a, rrl_reservation=$a | 200 -> OK: OK OK
		team=a | 0 -> OK: OK 400/1000
		team=a, rrl_reservation=$a | 5; team=a, rrl_reservation=$b | 20; team=a, rrl_reservation=none | 30 -> OK: OK OK OK
		team=a | 0 -> OK: OK 450/1000`},

	// The request's cost is the estimate. What refuses beside a reservation charges nothing; an override reserves only what there is.
	"EstimateOfTheRequest": {limits: llm, steps: `
		user=ann | 150; user_calls=ann -> OK: OK 50/200 OK 29/30 as $a
		user=ann; user_calls=ann -> OVER: OVER 0/200 OK 29/30
		user=bob | | 500 HOUR -> OK: OK 400/500 as $b
		user=zoe | | 50 HOUR -> OK: OK 0/50 as $c
		user=bob; user_calls=ann | 30 -> OVER: OK 100/200 OVER 0/30`},

	// An id that is none, or of another counter, settles nothing: what was used is charged.
	"NoReservation": {limits: llm, steps: `
		user=a, rrl_reservation=none | 250; user=b, rrl_reservation= | 250; user=c, rrl_reservation=AQ | 250 -> OK: OK OK OK
		user=d, rrl_reservation=AAAA | 250; user=e, rrl_reservation=x! | 250; user=f, rrl_reservation=AQIDBAXIAA | 250 -> OK: OK OK OK
		user=a | 0; user=b | 0; user=c | 0 -> OVER: OVER 0/200 OVER 0/200 OVER 0/200
		user=d | 0; user=e | 0; user=f | 0 -> OVER: OVER 0/200 OVER 0/200 OVER 0/200
		user=ann -> OK: OK 100/200 as $a
		user=bob, rrl_reservation=$a | 10 -> OK: OK
		user=bob | 0; user=ann | 0 -> OK: OK 190/200 OK 100/200`},

	// What was spent is charged though another limit of the call can't be asked.
	"SettlesThoughAnotherLimitFails": {limits: llm, steps: `
		spoil envoy:{web}:user%5Fcalls_ann:minute
		user=ann -> OK: OK 100/200 as $a
		user_calls=ann; lax=ann | 4; user=ann, rrl_reservation=$a | 150; team=red -> Internal
		user=ann | 0; lax=ann | 0; team=red | 0 -> OK: OK 50/200 OK 5/9 OK 1000/1000`},

	// While Redis is away a call is answered as its domain says. Nothing is reserved, what is over stays a question, and a
	// limit in shadow refuses nothing. What settles or gives back refuses nothing either, so it fails only if other calls do.
	"Unavailable": {limits: outages, steps: `
		tokens=a -> OK: OK 3/4 as $a
		down
		user=ann; plan=x -> Unavailable
		tokens=x -> Unavailable
		watched=x -> OK: OK
		tokens=x | 0 -> Unavailable
		plan=x | 5 -> Unavailable
		tokens=x, rrl_reservation=none | 5 -> Unavailable
		tokens=a, rrl_reservation=$a | 2 -> Unavailable
		user=ann | -1 -> Unavailable
		up
		wait 1m
		user=bob; plan=y -> OK: OK 3/4 OK 3/4`},
	"FailureClosed": {limits: "failure: closed" + outages, steps: `
		tokens=a -> OK: OK 3/4 as $a
		down
		user=ann; plan=x -> OVER: OVER OVER
		tokens=x -> OVER: OVER
		user=ann; watched=x -> OVER: OVER OK
		watched=x -> OK: OK
		tokens=x | 0 -> OVER: OVER
		tokens=a, rrl_reservation=$a | 2 -> OVER: OVER
		user=ann | -1 -> OVER: OVER`},
	"FailureOpen": {limits: "failure: open" + outages, steps: `
		tokens=a -> OK: OK 3/4 as $a
		down
		user=ann; plan=x -> OK: OK OK
		tokens=x -> OK: OK
		watched=x; plan=x | 5 -> OVER: OK OVER 0/4
		tokens=a, rrl_reservation=$a | 2 -> OK: OK
		user=ann | -1 -> OK: OK`},

	// A local limiter has its share, and counts what is spent too, as far as that goes.
	"FailureLocal": {limits: "failure: local\nshare: 0.500" + outages, steps: `
		tokens=a -> OK: OK 3/4 as $a
		down
		user=ann; plan=x -> OK: OK 1/2 OK 1/2
		user=ann; plan=x -> OK: OK 0/2 OK 0/2
		user=ann -> OVER: OVER 0/2
		tokens=x -> OK: OK 1/2
		watched=x -> OK: OK 1/2
		user=eve | 1 -> OK: OK 1/2
		user=eve | 3 -> OVER: OVER 0/2
		user=eve -> OVER: OVER 0/2
		tokens=a, rrl_reservation=$a | 2 -> OK: OK
		user=ann | -1 -> OK: OK
		up
		wait 1m
		user=bob; plan=y -> OK: OK 3/4 OK 3/4`},

	// A Service that lets all pass does so while Redis is away, too.
	"ShadowUnavailable":   {opts: []Option{WithShadow()}, steps: "down\n user=ann; other=x -> OK: OK OK"},
	"ShadowFailureClosed": {limits: "failure: closed" + web, opts: []Option{WithShadow()}, steps: "down\n user=ann; other=x -> OK: OVER OK"},
	"ShadowFailureOpen":   {limits: "failure: open" + web, opts: []Option{WithShadow()}, steps: "down\n user=ann; other=x -> OK: OK OK"},

	// A limit in shadow refuses nothing, even if giving back finds no Redis, or a key that holds something else.
	"GivesBackInShadow": {limits: `
domain: web
descriptors:
- {key: log, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 5}}
- {key: window, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 5}}
- {key: bucket, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 5, algorithm: token_bucket}}`, steps: `
		log=a | 2; window=a | 2; bucket=a | 2 -> OK: OK 3/5 OK 3/5 OK 3/5
		log=a | -1; window=a | -1; bucket=a | -1 -> OK: OK OK OK
		down
		log=a | -1; window=a | -1; bucket=a | -1 -> OK: OK OK OK
		up
		wait 1m
		spoil envoy:{web}:log_a:hour
		spoil envoy:{web}:window_a:day
		spoil envoy:{web}:bucket_a:hour.token_bucket
		log=a | -1; window=a | -1; bucket=a | -1 -> OK: OK OK OK`},
}

// settled is a scene in which other Services settle what one has reserved, with what it has cost, and what is left then.
func settled(cost, after, left string) scene {
	again := `
		other
		user=ann, rrl_reservation=$a | ` + cost + `; team=red, rrl_reservation=$a | ` + cost + ` -> OK: OK ` + `OK
		user=ann | 0; team=red | 0 -> ` + left
	return scene{limits: llm, steps: `
		user_calls=ann; user=ann; team=red -> OK: OK 29/30 OK 100/200 OK 900/1000 as $a
		wait ` + after + again + again}
}

func TestService_Scenes(t *testing.T) {
	t.Parallel()
	for _, all := range []map[string]scene{scenes, played} {
		limitertest.Each(t, all, func(t *testing.T, sc scene) {
			onStage(t, cmp.Or(sc.limits, web), func(t *testing.T, s *stage) {
				s.play(sc.steps)
				if sc.then != nil {
					sc.then(t, s)
				}
			}, sc.opts...)
		})
	}
}
