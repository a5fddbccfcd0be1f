package httplimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A policy in shadow, or one whose limiter is, shows in no header, and counts as refused what all others let pass.
func TestPolicyShadow_CountsWhatTheOthersLetPass(t *testing.T) {
	t.Parallel()
	for name, shadow := range map[string]httplimit.Policy{
		"policy":  {Shadow: true},
		"limiter": {},
		"foreign": {Shadow: true, Limiter: &returner{Fake: middlewaretest.Budget(2, time.Minute)}},
	} {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			var own, told limitertest.Recorder
			client := rratelimiter.New(rdb, rratelimiter.WithObserver(&own), limitertest.Patient())
			if shadow.Name = "watches"; shadow.Limiter == nil {
				var opts []rratelimiter.LimiterOption
				if !shadow.Shadow {
					opts = append(opts, rratelimiter.WithShadow())
				}
				shadow.Limiter = client.Keyed("", rratelimiter.PerMinute(2), append(opts, rratelimiter.WithName("watches"))...)
			}
			var errs middlewaretest.Errors
			handler := httplimit.New(client.Keyed("", rratelimiter.PerMinute(4)), httplimit.WithHashTag(), hearing(&errs),
				httplimit.WithLegacyHeaders(), httplimit.WithObserver(&told), httplimit.WithPolicy(shadow)).Handler(hello)
			for i, want := range []int{200, 200, 200, 200, 429, 429} {
				w := serve(handler, newRequest(t))
				assert.Equal(t, want, w.Code, name)
				assert.Len(t, members(t, w.Header(), "RateLimit"), 1)
				assert.NotContains(t, w.Header().Get("RateLimit-Policy"), "watches")
				assert.Equal(t, "4", w.Header().Get("X-RateLimit-Limit"))
				if want == http.StatusTooManyRequests {
					assert.Equal(t, []any{"default"}, problem(t, w)["violated-policies"], i)
				}
			}
			errs.Check(t)
			for of, recorder := range map[string]*limitertest.Recorder{"middleware": &told, "limiter": &own} {
				var outcomes []limit.Outcome
				for _, d := range recorder.Decisions() {
					if d.Limiter == "watches" {
						assert.True(t, d.Shadow)
						assert.Equal(t, map[string]string{"middleware": "http:watches:{192.0.2.1}", "limiter": ""}[of], d.Key)
						assert.Equal(t, []int64{2, max(0, 1-int64(len(outcomes)))}, []int64{d.Limit, d.Remaining})
						outcomes = append(outcomes, d.Outcome)
					}
				}
				if name == "foreign" && of == "limiter" {
					assert.Empty(t, outcomes)
					continue
				}
				assert.Equal(t, []limit.Outcome{limit.Granted, limit.Granted, limit.Refused, limit.Refused}, outcomes, name+", "+of)
			}
		})
	}
}

// A limit of a day is tried out beside that of a minute: it refuses nothing, and an observer sees what it would refuse.
func ExamplePolicy_shadow() {
	handler := httplimit.New(httplimit.Local(100, time.Minute),
		httplimit.WithObserver(wouldRefuse{}),
		httplimit.WithPolicy(httplimit.Policy{Name: "day", Limiter: httplimit.Local(1, 24*time.Hour), Shadow: true})).Handler(hello)
	for range 2 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody)) // from 192.0.2.1
		fmt.Println(w.Code)
	}
	// Output:
	// 200
	// "day" would refuse http:day:192.0.2.1
	// 200
}

// wouldRefuse prints what policies in shadow would refuse.
type wouldRefuse struct{ limit.NoObserver }

func (wouldRefuse) Decided(_ context.Context, d limit.Decided) {
	if d.Shadow && d.Outcome == limit.Refused {
		fmt.Printf("%q would refuse %s\n", d.Limiter, d.Key)
	}
}
