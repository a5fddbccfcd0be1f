package envoylimit

import (
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

// newService returns a Service of a Client of its own.
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

// ask returns the answer to a request in the domain web.
func (s *Service) ask(t testing.TB, text string) *ratelimitv3.RateLimitResponse {
	t.Helper()
	r, err := s.ShouldRateLimit(t.Context(), request("web", text))
	require.NoError(t, err)
	return r
}

// reservation returns the id of what an answer has reserved.
func reservation(r *ratelimitv3.RateLimitResponse) string {
	id, _ := r.GetDynamicMetadata().AsMap()[reservationKey].(string)
	return id
}

// wait returns when a descriptor's status says to come back.
func wait(r *ratelimitv3.RateLimitResponse, descriptor int) time.Duration {
	return r.GetStatuses()[descriptor].GetDurationUntilReset().AsDuration()
}

// says returns an answer in words: the code, and each descriptor's code with what is left of the limit, as "OK 3/5"; of an
// error its code.
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
			d, err := time.ParseDuration(rest)
			require.NoError(s, err)
			time.Sleep(d)
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

// call plays the step of a request.
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
	require.Equal(s, reserves, reservation(r) != "", line)
	if reserves {
		s.ids[id] = reservation(r)
	}
}

// names returns the counters that Redis has.
func (s *stage) names() (all []string) {
	for _, key := range redistest.Keys(s, s.rdb, "envoy:*") {
		if kind := s.rdb.Type(s.Context(), key).Val(); kind == "hash" || kind == "string" && key[len(key)-6:] != ":value" {
			all = append(all, key)
		}
	}
	return all
}
