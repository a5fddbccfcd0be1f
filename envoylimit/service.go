package envoylimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/door"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/recent"
	"github.com/rratelimiter/rratelimiter/limit"
)

// keyPrefix is how the names of all counters begin.
const keyPrefix = "envoy:"

// Service is a rate limit service, to be registered in a gRPC server by ratelimitv3.RegisterRateLimitServiceServer. It is
// safe for concurrent use. Several with the same configuration, in other programs too, share the counters of one Redis.
type Service struct {
	ratelimitv3.UnimplementedRateLimitServiceServer

	ahead   []rratelimiter.LimiterOption
	headers bool
	shadow  bool

	client *rratelimiter.Client
	err    error          // of the Client
	logs   logs           // makes RateLimiters
	policy *outage.Policy // the Client's
	others *recent.Map[otherKey, other]
	active atomic.Pointer[active]
}

// logs makes the RateLimiters of counters.
type logs interface {
	At(key string, cfg rratelimiter.Config, name string) (*rratelimiter.RateLimiter, outage.Asker)
}

// active is the configuration in use.
type active struct {
	*Config

	policies map[string]*outage.Policy // of domains
}

// New returns a Service whose counters are in the Client's Redis. It does no I/O. The Client has the observer, the log, the
// call timeout and so on; what its WithFailure says counts for domains that say nothing. config may be nil: until
// [Service.SetConfig], calls fail.
func New(client *rratelimiter.Client, config *Config, opts ...Option) *Service {
	s := &Service{client: client, others: recent.New[otherKey, other](maxOthers)}
	for _, opt := range opts {
		if opt != nil {
			opt(s)
		}
	}
	if client == nil {
		s.client, s.err = rratelimiter.New(nil), fmt.Errorf("%w: envoylimit.New: the Client is nil", limit.ErrInvalidConfig)
	}
	none := func(string) rratelimiter.Config { return rratelimiter.Config{} } // At says what the rate is
	keyed := s.client.KeyedFunc(keyPrefix, none, s.ahead...)
	of, _ := door.Behind[outage.Keyed](keyed)
	s.logs, _ = of.(logs)
	behind, _ := door.Behind[func(string, []rratelimiter.LimiterOption) engine.Behind](s.client)
	s.policy = behind(keyPrefix, nil).Policy
	s.shadow = s.shadow || s.policy.Shadow
	s.err = errors.Join(s.err, keyed.Err())
	s.SetConfig(config)
	return s
}

// Err returns the error that every call returns because of a bad Client, and nil otherwise. It does no I/O.
func (s *Service) Err() error { return s.err }

// SetConfig replaces the configuration. Calls under way end with the one before. Counters stay: a limit that has changed
// counts what was used before.
func (s *Service) SetConfig(config *Config) {
	if config == nil {
		s.active.Store(nil)
		return
	}
	a := &active{Config: config, policies: map[string]*outage.Policy{}}
	fails := limit.FailClosed() // at once if Redis is known not to decide
	for name, d := range config.domains {
		policy := *s.policy
		policy.Failure, policy.Shadow = cmp.Or(d.failure, policy.Failure, &fails), false
		a.policies[name] = &policy
	}
	s.active.Store(a)
}

// ShouldRateLimit answers a request of Envoy's. If Redis does not decide, the error is codes.Unavailable, unless the
// domain's failure says otherwise; for a request without domain or descriptors, or a limit without a known unit, it is
// codes.InvalidArgument.
func (s *Service) ShouldRateLimit(ctx context.Context, r *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	a := s.active.Load()
	switch {
	case s.err != nil:
		return nil, status.Error(codes.Internal, s.err.Error())
	case a == nil:
		return nil, status.Error(codes.Unavailable, "no rate limit configuration was loaded")
	case r.GetDomain() == "":
		return nil, status.Error(codes.InvalidArgument, "the rate limit domain must not be empty")
	case len(r.GetDescriptors()) == 0:
		return nil, status.Error(codes.InvalidArgument, "the rate limit descriptor list must not be empty")
	}
	c := &call{service: s, policy: a.policies[r.GetDomain()], domain: a.domains[r.GetDomain()]}
	if err := c.read(r); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	err := c.decide(ctx)
	c.report(ctx, err == nil)
	if err != nil {
		if (c.domain.closed || s.shadow) && errors.Is(err, limit.ErrUnavailable) && ctx.Err() == nil {
			return c.undecided(), nil
		}
		return nil, statusOf(ctx, err)
	}
	return c.response(), nil
}

// statusOf returns how a call ends that was not decided.
func statusOf(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case errors.Is(err, limit.ErrUnavailable):
		return status.Error(codes.Unavailable, err.Error())
	default:
		return status.Error(codes.Internal, err.Error())
	}
}
