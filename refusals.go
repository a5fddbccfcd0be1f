package rratelimiter

import (
	"errors"
	"fmt"

	"github.com/rratelimiter/rratelimiter/internal/notify"
)

// WithRefusalCache has a handle remember that permits were refused. The
// guarantee: a limiter known to be exhausted is not asked again before the moment
// that the server named.
//
// It counts for Take and for TryAcquire with a timeout of 0 or less, of at least
// as many permits as were refused; more than the limiter is known to have in an
// interval are asked for, and so is what Take can't answer with figures. Take's
// RetryAfter and ResetAfter are less by the time that has passed; for more permits
// than were refused, RetryAfter is the least that it can be. Permits that the
// Client takes since, by whichever call, end what is known of the figures, not the
// refusal: Take asks, TryAcquire does not. What others have taken since, and what
// has come free while not all of the permits were, the figures leave out.
//
// The moment is counted from when the refused request was sent, so that nobody is
// refused whom Redis would grant. A Release, Reset, SetRate, UpdateRate, Delete, Rename or
// change of the time to live through the same Client ends the refusal early, as
// do permits that the Client gives back; those of other Go programs do so with
// [WithNotices]. What Redisson releases or sets is noticed at the moment named, not
// before. A limiter with a time to live is asked when half of that is over, if
// that comes first; to know, a refusal for more than 100ms costs one more, small
// script call.
//
// What is remembered belongs to the handle, and handles of one name do not share
// it.
func WithRefusalCache(opts ...RefusalOption) LimiterOption {
	return limiterOption(func(l *RateLimiter) (err error) {
		l.facts.Refusals = l.client.engine.NewRefusals(l.keys.Config)
		for _, opt := range opts {
			if opt != nil {
				err = errors.Join(err, opt(l))
			}
		}
		return err
	})
}

// RefusalOption configures WithRefusalCache.
type RefusalOption func(*RateLimiter) error

// WithNotices has the handle tell other programs of what it changes by Release,
// SetRate and the like, and end its refusals when it is told: by PUBLISH and
// SUBSCRIBE on the channel "{name}:changed", braces as in the limiter's keys. The
// guarantee: at best a refusal ends with the change; where the message is lost
// or nobody is subscribed yet, at the moment that the server named.
//
// A Client subscribes by one connection, for all its limiters, as long as it
// remembers refusals. A Redis given to New that can't Subscribe and Publish, as
// go-redis' clients can, is ErrUnsupported. On a cluster messages go to all
// nodes. An ACL must allow the commands and the channel.
func WithNotices() RefusalOption {
	return func(l *RateLimiter) error {
		if !notify.Can(l.client.rdb) {
			return fmt.Errorf("%w: %w: WithNotices: a %T has no Subscribe and Publish", ErrInvalidConfig, ErrUnsupported, l.client.rdb)
		}
		l.facts.Channel = notify.Channel(l.keys.Value)
		return nil
	}
}
