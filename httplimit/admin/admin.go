// Package admin serves a handler that lists, shows and changes limits while they run: the rates of
// RateLimiters and the thresholds of sliding logs. Changes take effect at the next decision, in every
// process.
//
//	mux.Handle("/admin/", http.StripPrefix("/admin", admin.New(admin.Config{
//		Authorize:    authorize,
//		Client:       client,
//		RateLimiters: []string{"orders"},
//		SlidingLogs:  map[string]admin.SlidingLog{"web": web},
//	})))
//
// It speaks JSON; GET /openapi.json describes it:
//
//	GET                 /limiters                   what there is
//	GET, PUT, PATCH     /rate?name=N                the rate of one RateLimiter
//	GET                 /clients?name=N             who has its permits in use
//	GET                 /thresholds?limiter=L       the thresholds of one sliding log
//	GET, PUT, DELETE    /threshold?limiter=L&key=K  the threshold of one key
package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Config says what a handler may change, and who may use it.
type Config struct {
	// Authorize decides every request, before anything else happens. Without it all requests are
	// refused.
	Authorize Authorize

	// Challenge is the WWW-Authenticate header of a 401, which tells callers how to authenticate.
	// "" stands for Bearer.
	Challenge string

	// Client has the RateLimiters. It may be nil if there are none.
	Client *rratelimiter.Client

	// RateLimiters are the names of the RateLimiters that can be shown and changed.
	RateLimiters []string

	// Prefixes allows all RateLimiters whose names are longer than one of these prefixes and begin
	// with it, such as those of Client.Keyed. They are not listed one by one. A name whose Redis keys
	// would collide with another's is refused, as in Client.Keyed. Such limiters are deleted, changed
	// rate included, if they get no request for their keepAlive time.
	Prefixes []string

	// SlidingLogs are the sliding logs whose thresholds can be shown and changed, by their names in
	// requests. Logs with the same hash of thresholds have the same thresholds: one set for a key under
	// one name holds in all of them, and only the default limits differ. If Authorize must allow a
	// caller one log and not the other, it must decide by [Access].Key, or each log needs its own hash.
	SlidingLogs map[string]SlidingLog

	// Logger receives every change, with before and after, and every refusal. nil stands for
	// slog.Default.
	Logger *slog.Logger

	// Timeout bounds the time of one request at Redis. 0 stands for 5 s.
	Timeout time.Duration
}

// SlidingLog is the part of a slidinglog.Limiter that the handler uses.
type SlidingLog interface {
	SetThreshold(ctx context.Context, key string, threshold int64) error
	Threshold(ctx context.Context, key string) (int64, error)
	ResetThreshold(ctx context.Context, key string) error
	Thresholds(ctx context.Context) (map[string]int64, error)
}

// Authorize returns the caller's name, for the log, or an error if the caller may not do this: one that
// wraps [ErrUnauthenticated] (the answer is 401) or any other (403). The error is logged, not shown.
//
// The handler answers to any Host. That is safe if Authorize asks for a credential,
// such as a token, a login or a certificate. If it goes by the network address alone,
// it must compare r.Host with the names of the server too: a website can point its own
// name at the server, and then its script asks from the browsers of visitors within
// the network.
type Authorize func(r *http.Request, asked Access) (actor string, err error)

// ErrUnauthenticated is returned by Authorize if it does not know the caller.
var ErrUnauthenticated = errors.New("not authenticated")

// Action is what a request does.
type Action string

// What a request can do.
const (
	Look   Action = "look"
	Change Action = "change"
)

// Kind is the kind of limiter that a request is about.
type Kind string

// What a request can be about.
const (
	RateLimiters Kind = "rate-limiter"
	SlidingLogs  Kind = "sliding-log"
)

// Access describes what a request is about to do.
type Access struct {
	Action Action

	// Kind is "" for the list of all limiters, the API's description, and paths
	// that the handler does not serve.
	Kind Kind

	// Limiter is the name of the RateLimiter or of the sliding log, whether or not it can be changed;
	// "" if the request names none or several.
	Limiter string

	// Key is the key of the threshold, "" if the request names none or several. For sliding logs that
	// share one hash of thresholds it is all that distinguishes them: see Config.SlidingLogs.
	Key string
}

const defaultTimeout = 5 * time.Second

// handler is what New returns.
type handler struct {
	cfg      Config
	err      error         // of cfg
	changing chan struct{} // holds one token: changes are made one after another
}

// New returns the handler. It serves the paths above relative to its root: mount it with
// http.StripPrefix. A bad Config (no Authorize, an empty name, ...) does not panic: every request is
// then answered with 500, the error is logged, and nothing is shown or changed.
//
// Changes are made one after another, so the value logged as before is the one that the change
// replaced, unless another process or program changes it too.
func New(cfg Config) http.Handler {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	cfg.RateLimiters = slices.Clone(cfg.RateLimiters)
	cfg.Prefixes = slices.Clone(cfg.Prefixes)
	slices.Sort(cfg.RateLimiters)
	slices.Sort(cfg.Prefixes)
	cfg.SlidingLogs = maps.Clone(cfg.SlidingLogs)
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	cfg.Challenge = cmp.Or(cfg.Challenge, "Bearer")
	return &handler{cfg: cfg, err: cfg.validate(), changing: make(chan struct{}, 1)}
}

func (c *Config) validate() error {
	invalid := func(what string) error { return fmt.Errorf("%w: admin.Config: %s", limit.ErrInvalidConfig, what) }
	switch {
	case c.Authorize == nil:
		return invalid("there is no Authorize")
	case c.Timeout < 0:
		return invalid("Timeout is below 0")
	case c.Client == nil && len(c.RateLimiters)+len(c.Prefixes) > 0:
		return invalid("there is no Client for the RateLimiters")
	case slices.Contains(c.RateLimiters, ""), slices.Contains(c.Prefixes, ""):
		return invalid("a name or prefix of RateLimiters is empty")
	}
	for name, log := range c.SlidingLogs {
		v := reflect.ValueOf(log)
		if name == "" || log == nil || v.Kind() == reflect.Pointer && v.IsNil() {
			return invalid(fmt.Sprintf("the sliding log %q has no name or is nil", name))
		}
	}
	return nil
}
