package envoylimit

import "github.com/rratelimiter/rratelimiter"

// Option configures a [Service].
type Option func(*Service)

// WithLeases makes the Service take permits ahead and remember refusals, as [rratelimiter.WithLease] and
// [rratelimiter.WithRefusalCache] do, so that a descriptor in much use costs no round trip. The descriptors of one request
// are then asked apart, and what some granted goes back if another refuses. What has an estimate takes nothing ahead, and
// neither do fixed windows and token buckets.
func WithLeases() Option {
	return func(s *Service) {
		s.ahead = []rratelimiter.LimiterOption{rratelimiter.WithLease(rratelimiter.Lease{}), rratelimiter.WithRefusalCache()}
	}
}

// WithHeaders adds RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset to answers, as LIMIT_RESPONSE_HEADERS_ENABLED
// does in envoyproxy/ratelimit, of the limit that refused or has the least left, and Retry-After to refusals.
func WithHeaders() Option {
	return func(s *Service) { s.headers = true }
}

// WithShadow lets all requests pass, as SHADOW_MODE does in envoyproxy/ratelimit: limits count, and statuses and metrics say what
// they refuse. A request that a limit refuses is charged to none. A Client with [rratelimiter.WithShadow] does the same.
func WithShadow() Option {
	return func(s *Service) { s.shadow = true }
}
