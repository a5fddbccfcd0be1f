package envoylimit

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"
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

// request returns a request written "key=value, key=value | hits | override" with a descriptor a line. Hits are a number,
// below 0 to give back; an override is "number unit". What is left out is not sent.
func request(domain, text string) *ratelimitv3.RateLimitRequest {
	r := &ratelimitv3.RateLimitRequest{Domain: domain}
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		words := strings.Split(line, "|")
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

// ask returns the answer to a request.
func (s *Service) ask(t testing.TB, domain, text string) *ratelimitv3.RateLimitResponse {
	t.Helper()
	r, err := s.ShouldRateLimit(t.Context(), request(domain, text))
	require.NoError(t, err)
	return r
}

// says returns an answer in words: the code, and each descriptor's code with what is left of the limit, as "OK 3/5".
func says(r *ratelimitv3.RateLimitResponse) string {
	text := map[ratelimitv3.RateLimitResponse_Code]string{ok: "OK", over: "OVER"}
	all := text[r.GetOverallCode()] + ":"
	for _, s := range r.GetStatuses() {
		all += " " + text[s.GetCode()]
		if l := s.GetCurrentLimit(); l != nil {
			all += fmt.Sprintf(" %d/%d", s.GetLimitRemaining(), l.GetRequestsPerUnit())
		}
	}
	return all
}

// step is a request and the answer to it.
type step struct{ request, want string }

// run runs steps one after the other.
func run(t *testing.T, s *Service, steps ...step) {
	t.Helper()
	for i, st := range steps {
		require.Equal(t, st.want, says(s.ask(t, "web", st.request)), "step %d: %s", i+1, st.request)
	}
}

// inVirtual runs a test in a bubble with a Service.
func inVirtual(t *testing.T, text string, test func(t *testing.T, s *Service, rdb redistest.Client), opts ...Option) {
	t.Helper()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) { test(t, newService(t, rdb, text, opts...), rdb) })
}
