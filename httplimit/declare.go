package httplimit

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// Rate is a limit declared beside a route, like @RateLimit(period = 30, threshold = 2) in
// Java.
type Rate struct {
	// Period is the window. 0: one minute.
	Period time.Duration

	// Threshold is how many permits a window has. 0: 3.
	Threshold int64
}

// Declare returns a function that makes middleware of a rate, so that the limit can be read
// beside the route:
//
//	rate := httplimit.Declare(func(r httplimit.Rate) limit.Limiter {
//		return slidinglog.New(client, slidinglog.Config{Limit: r.Threshold, Window: r.Period})
//	}, httplimit.WithPrefix("limit:"), httplimit.WithKey(httplimit.User(userOf), httplimit.Path()))
//	mux.Handle("GET /hello", rate(httplimit.Rate{Period: 30 * time.Second, Threshold: 2})(hello))
//
// newLimiter gets the rate with its defaults filled in. The options are those of New; options
// given with a rate come after them. The default key is the client, route and rate, so a rate
// that is changed in the code starts with new counts. If you choose another key or prefix, make
// sure that no two rates share a key: 3 an hour and 50 a second at the same key spoil each other.
// GET and POST of one path share a key with Path, and with Route under routers whose patterns
// have no method.
func Declare(newLimiter func(Rate) limit.Limiter, opts ...Option) func(Rate, ...Option) func(http.Handler) http.Handler {
	return func(rate Rate, more ...Option) func(http.Handler) http.Handler {
		all := slices.Concat([]Option{WithKey(ClientIP(ClientIPConfig{}), Route(), rate.key())}, opts, more)
		if err := rate.validate(newLimiter); err != nil {
			return New(nil, append(all, func(*settings) error { return err })...)
		}
		if rate.Period == 0 {
			rate.Period = time.Minute
		}
		if rate.Threshold == 0 {
			rate.Threshold = 3
		}
		return New(newLimiter(rate), all...)
	}
}

func (r Rate) validate(newLimiter func(Rate) limit.Limiter) error {
	switch {
	case newLimiter == nil:
		return errors.New("Declare: the function that makes limiters is nil")
	case r.Period < 0:
		return fmt.Errorf("Declare: the period %v is below 0", r.Period)
	case r.Threshold < 0:
		return fmt.Errorf("Declare: the threshold %d is below 0", r.Threshold)
	}
	return nil
}

// key keeps rates apart on routers whose patterns leave out the method.
func (r Rate) key() KeyFunc {
	text := fmt.Sprintf("%d/%v", cmp.Or(r.Threshold, 3), cmp.Or(r.Period, time.Minute))
	return func(*http.Request) (string, error) { return text, nil }
}
