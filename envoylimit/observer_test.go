package envoylimit

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

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
