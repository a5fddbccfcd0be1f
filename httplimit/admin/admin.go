// Package admin serves a handler that lists, shows and changes limits while
// they run: the rates of RateLimiters and the thresholds of sliding logs. What
// is changed takes effect at the next decision, in every process.
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

// Config says what a handler may touch, and who may ask it.
type Config struct {
	// Authorize decides about every request, before anything else is done for
	// it. Without one, no request gets through.
	Authorize Authorize

	// Challenge is the WWW-Authenticate of a 401, so that callers know how to
	// say who they are. "" stands for Bearer.
	Challenge string

	// Client has the RateLimiters. It may be nil where there are none.
	Client *rratelimiter.Client

	// RateLimiters are the names of those that can be shown and changed.
	RateLimiters []string

	// Prefixes does the same for all whose names are longer than one of these
	// and begin with it, such as those of Client.Keyed. They are not listed one
	// by one, and what would share Redis keys with another of them is refused, as
	// it is there. Mind that they go, changed rate and all, when nobody has asked
	// them for their keepAlive time.
	Prefixes []string

	// SlidingLogs are those whose thresholds can be shown and changed, by the
	// names that requests call them. Those of which the hash of thresholds is the
	// same have the same thresholds: what is set for a key by one name holds for
	// that key in all of them, and only the default limits differ. Whom Authorize
	// should let change one and not the other, it must tell by [Access].Key, or
	// each needs a hash of its own.
	SlidingLogs map[string]SlidingLog

	// Logger receives every change, with before and after, and what was
	// refused. nil stands for slog.Default.
	Logger *slog.Logger

	// Timeout bounds what one request does on Redis. 0 stands for 5 s.
	Timeout time.Duration
}

// SlidingLog is what the handler needs of a slidinglog.Limiter.
type SlidingLog interface {
	SetThreshold(ctx context.Context, key string, threshold int64) error
	Threshold(ctx context.Context, key string) (int64, error)
	ResetThreshold(ctx context.Context, key string) error
	Thresholds(ctx context.Context) (map[string]int64, error)
}

// Authorize says who asks, for the log, or why that one may not: by an error
// that wraps [ErrUnauthenticated] (the answer is a 401) or any other (a 403).
// The error is logged and not shown.
//
// The handler answers to any Host. That is safe if Authorize asks for a credential,
// such as a token, a login or a certificate. If it goes by the network address alone,
// it must compare r.Host with the names of the server too: a website can point its own
// name at the server, and then its script asks from the browsers of visitors within
// the network.
type Authorize func(r *http.Request, asked Access) (actor string, err error)

// ErrUnauthenticated is what Authorize returns where it is not known who asks.
var ErrUnauthenticated = errors.New("not authenticated")

// Action is what a request is about to do.
type Action string

// What a request can do.
const (
	Look   Action = "look"
	Change Action = "change"
)

// Kind is what a request is about.
type Kind string

// What a request can be about.
const (
	RateLimiters Kind = "rate-limiter"
	SlidingLogs  Kind = "sliding-log"
)

// Access is what a request asks for.
type Access struct {
	Action Action

	// Kind is "" for the list of all limiters, the API's description, and paths
	// that the handler does not serve.
	Kind Kind

	// Limiter is the name of the RateLimiter or of the sliding log, whether it
	// can be touched or not; "" where the request names none or several.
	Limiter string

	// Key is the key whose threshold it is, "" where the request names none or
	// several. It is all that sets apart sliding logs which share one hash of
	// thresholds: see Config.SlidingLogs.
	Key string
}

const defaultTimeout = 5 * time.Second

// handler is what New returns.
type handler struct {
	cfg      Config
	err      error         // of cfg
	changing chan struct{} // holds one token: changes are made one after another
}

// New returns the handler. It serves the paths above from the root of what it
// is given: mount it by http.StripPrefix. A Config with faults (no Authorize,
// an empty name, ...) does not panic: every request is then answered with a
// 500, the fault is logged, and nothing is shown or changed.
//
// Changes are made one after another, so that what is logged as before is what
// the change replaced, other processes and other ways of changing aside.
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
