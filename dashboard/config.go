package dashboard

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Config says what a handler shows, and who may see and change it.
type Config struct {
	// Redis has the limiters: one server, a cluster or a ring.
	Redis redis.UniversalClient

	// Authorize decides every request, before anything else happens. Without it all requests are refused.
	Authorize Authorize

	// Challenge is the WWW-Authenticate header of a 401, which tells programs how to authenticate.
	// The default is Bearer.
	Challenge string

	// Write offers changes. Without it nothing can be changed, whatever Authorize says.
	Write bool

	// Hosts are the host names and addresses by which browsers and programs reach the handler, without
	// ports. A request for another "Host" gets a 421: otherwise a web site whose own name leads here
	// could read the page. localhost, loopback addresses, and the address at which the connection arrived need
	// not be listed. "*" stands for any name: use it only if Authorize requires a login for looking.
	Hosts []string

	// Pattern limits the page to limiters whose names match it, in the syntax of SCAN; ""
	// matches all. Other limiters can be neither seen nor changed.
	Pattern string

	// Others are limiters of keys to show. The page can't recognise their keys by itself. Pattern
	// does not apply to them.
	Others []Other

	// Observer counts the refusals of the Clients and limiters that report to it, since Redis
	// has no record of them.
	Observer *Observer

	// Reads bounds, roughly, the commands a second that all pages together send to Redis. A SCAN
	// counts as 50. The default is 2000.
	Reads int

	// RedissonVersion names the oldest Redisson that shares the limiters: see
	// rratelimiter.WithRedissonVersion.
	RedissonVersion string

	// Server is the server's name on the page and in the review of each change, without any password.
	// The default is the addresses that Redis was given.
	Server string

	// Logger receives every change, with who, before and after, and every refusal. nil stands for
	// slog.Default.
	Logger *slog.Logger

	// patience is how long tests wait for Redis: longer than a machine may stall. 0 stands for
	// timeout, and for script.DefaultTimeout if a Client waits.
	patience time.Duration
}

// Other describes the keys of a fixed window, a sliding log or a token bucket that begin with
// Prefix.
type Other struct {
	Name    string // its name on the page
	Prefix  string
	Limiter Peeker // a *fixedwindow.Limiter and the like

	// Thresholds is the hash of thresholds of a sliding log, "" for none. The page shows and
	// changes no other thresholds.
	Thresholds string
}

// Peeker is the part of a limiter that the page uses.
type Peeker interface {
	Peek(ctx context.Context, key string, n int64) (limit.Decision, error)
}

// Action is what a request does.
type Action string

// What a request can do.
const (
	Look   Action = "look"
	Change Action = "change"
)

// Access describes what a request is about to do. Names are as the request has them, whether or not
// there is such a limiter or key; "" if it has none.
type Access struct {
	Action Action

	// Verb says which change: the end of the request's path, such as "rate" or "delete".
	Verb string

	// Limiter is the name of a RateLimiter. A change of many ("rates") has none, nor has a list: refuse
	// them to users who may not change or see all within Config.Pattern.
	Limiter string

	Hash string // of thresholds
	Key  string // whose threshold it is, or which is looked at
}

// Authorize returns the user's name, for the list of changes and the log, or an error if the user may
// not do this: one that wraps [ErrUnauthenticated] (the answer is 401) or any other (403). The error is
// logged, not shown.
//
// The page asks by an Access that is a Change and nothing else whether to offer changes.
type Authorize func(r *http.Request, asked Access) (who string, err error)

// ErrUnauthenticated is returned by Authorize if it does not know the user.
var ErrUnauthenticated = errors.New("not authenticated")

// WithToken returns an Authorize that lets everyone look, and lets a request change limiters if it has
// the token, as "Authorization: Bearer TOKEN" or "Dashboard-Token: TOKEN". The page asks for it and
// sends it. If the token is empty, no one can change anything.
func WithToken(token string) Authorize {
	return WithTokens("", token)
}

// WithTokens is like WithToken, with a token for looking. Browsers ask for it as the password
// of HTTP's Basic authentication, with any user name; programs can send it like the token for
// changes, which allows looking as well. If look is empty, everyone can look.
func WithTokens(look, change string) Authorize {
	tried := &guesses{}
	return func(r *http.Request, asked Access) (string, error) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		given, found := strings.CutPrefix(r.Header.Get("Authorization"), bearer)
		if !found {
			given = r.Header.Get("Dashboard-Token")
		}
		_, password, _ := r.BasicAuth()
		address := addressOf(r.RemoteAddr)
		if (given != "" || password != "") && tried.busy(address) {
			return "", errGuessing
		}
		known := func(token string) bool { return token == "" || same(token, look) || same(token, change) }
		refusal := errNoLookToken
		switch {
		case same(given, change):
			return "holder of the token, at " + host, nil
		case asked.Action == Change:
			refusal = fmt.Errorf("%w: the token is missing or wrong", ErrUnauthenticated)
		case look == "", same(given, look), same(password, look), same(password, change):
			return host, nil
		}
		if !known(given) || !known(password) {
			refusal = fmt.Errorf("%w: %w", refusal, tried.wrong(r.Context(), address))
		}
		return "", refusal
	}
}

const bearer = "Bearer "

// errNoLookToken makes browsers ask for the token.
var errNoLookToken = fmt.Errorf("%w: the token for looking is missing or wrong", ErrUnauthenticated)

// same reports whether a token is the right one. An empty one never is. Hashes are compared, so
// that the time tells nothing of the length either.
func same(given, want string) bool {
	g, w := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(want))
	return want != "" && subtle.ConstantTimeCompare(g[:], w[:]) == 1
}

const (
	defaultReads = 2000
	minReads     = 100

	// timeout bounds what one request does on Redis.
	timeout = 5 * time.Second
)

// bounded returns ctx with the timeout.
func (c *Config) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, cmp.Or(c.patience, timeout))
}

// callTimeout is how long one call of a Client may take.
func (c *Config) callTimeout() time.Duration { return cmp.Or(c.patience, script.DefaultTimeout) }

func (c *Config) withDefaults() {
	c.Reads = cmp.Or(c.Reads, defaultReads)
	c.Server = cmp.Or(c.Server, addresses(c.Redis))
	c.Challenge = cmp.Or(c.Challenge, "Bearer")
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Others = slices.Clone(c.Others)
}

// addresses returns those that a client was given, "" for a client that is nil.
func addresses(rdb redis.UniversalClient) string {
	var all []string
	switch c := rdb.(type) {
	case *redis.Client:
		if c != nil {
			all = []string{c.Options().Addr}
		}
	case *redis.ClusterClient:
		if c != nil {
			all = c.Options().Addrs
		}
	case *redis.Ring:
		if c != nil {
			all = slices.Sorted(maps.Values(c.Options().Addrs))
		}
	}
	return strings.Join(all, ", ")
}

func (c *Config) validate() error {
	invalid := func(what string) error { return fmt.Errorf("%w: dashboard.Config: %s", limit.ErrInvalidConfig, what) }
	missing := true // also a nil client in an interface that is none
	switch rdb := c.Redis.(type) {
	case *redis.Client:
		missing = rdb == nil
	case *redis.ClusterClient:
		missing = rdb == nil
	case *redis.Ring:
		missing = rdb == nil
	}
	if missing {
		return invalid(fmt.Sprintf("Redis is %T and should be a *redis.Client, a *redis.ClusterClient or a *redis.Ring that is not nil", c.Redis))
	}
	switch {
	case c.Authorize == nil:
		return invalid("Authorize is nil")
	case c.Reads < minReads:
		return invalid(fmt.Sprintf("Reads is below %d", minReads))
	}
	if slices.ContainsFunc(c.Hosts, func(host string) bool { return host == "" || strings.Contains(host, "/") }) {
		return invalid("Hosts must be host names or addresses, such as limits.example.com, neither empty nor URLs")
	}
	for i, o := range c.Others {
		if o.Name == "" || o.Prefix == "" || o.Limiter == nil {
			return invalid(fmt.Sprintf("Others[%d] lacks a name, a prefix or its limiter", i))
		}
	}
	if c.RedissonVersion != "" {
		_, err := redisson.RulesFor(c.RedissonVersion)
		return err
	}
	return nil
}
