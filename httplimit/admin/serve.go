package admin

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/httpjson"
)

// call is a request on its way.
type call struct {
	*handler

	w     http.ResponseWriter
	r     *http.Request
	asked Access
	actor string
}

// endpoint is what a path offers.
type endpoint struct {
	kind    Kind
	params  []string // of the query, all needed
	methods map[string]func(*call) error
}

const (
	paramName    = "name"
	paramLimiter = "limiter"
	paramKey     = "key"
)

var endpoints = map[string]endpoint{
	"/openapi.json": {methods: map[string]func(*call) error{http.MethodGet: (*call).describe}},
	"/limiters":     {methods: map[string]func(*call) error{http.MethodGet: (*call).list}},
	"/rate": {kind: RateLimiters, params: []string{paramName}, methods: map[string]func(*call) error{
		http.MethodGet:   on((*call).limiter, (*call).showRate),
		http.MethodPut:   on((*call).limiter, (*call).putRate),
		http.MethodPatch: on((*call).limiter, (*call).patchRate),
	}},
	"/clients": {kind: RateLimiters, params: []string{paramName}, methods: map[string]func(*call) error{
		http.MethodGet: on((*call).limiter, (*call).listClients),
	}},
	"/thresholds": {kind: SlidingLogs, params: []string{paramLimiter}, methods: map[string]func(*call) error{
		http.MethodGet: on((*call).slidingLog, (*call).listThresholds),
	}},
	"/threshold": {kind: SlidingLogs, params: []string{paramLimiter, paramKey}, methods: map[string]func(*call) error{
		http.MethodGet:    on((*call).slidingLog, (*call).showThreshold),
		http.MethodPut:    on((*call).slidingLog, (*call).putThreshold),
		http.MethodDelete: on((*call).slidingLog, (*call).deleteThreshold),
	}},
}

// on returns what finds the limiter that the request names, and then does
// something with it.
func on[L any](find func(*call) (L, error), do func(*call, L) error) func(*call) error {
	return func(c *call) error {
		limiter, err := find(c)
		if err != nil {
			return err
		}
		return do(c, limiter)
	}
}

// sameOrigin keeps web pages of other origins from using a browser's
// credentials.
var sameOrigin = http.NewCrossOriginProtection()

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	c := &call{handler: h, w: w, r: r}
	if err := c.serve(); err != nil {
		c.fail(err)
	}
}

func (c *call) serve() error {
	if c.err != nil {
		return c.err
	}
	e, found := endpoints[c.r.URL.Path]
	method := c.r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	query, err := url.ParseQuery(c.r.URL.RawQuery)
	c.asked = Access{Action: Change, Kind: e.kind, Limiter: single(query, e.limiterParam()), Key: single(query, paramKey)}
	if method == http.MethodGet {
		c.asked.Action = Look
	}
	if err := c.authorize(); err != nil {
		return err
	}
	run := e.methods[method]
	switch {
	case !found:
		return httpjson.Refuse(http.StatusNotFound, "there is no such path: see openapi.json")
	case run == nil:
		c.w.Header().Set("Allow", e.allowed())
		return httpjson.Refuse(http.StatusMethodNotAllowed, "allowed are %s", e.allowed())
	case err != nil:
		return httpjson.BadRequest("the query can't be read: %v", err)
	}
	if err := e.checkQuery(query); err != nil {
		return err
	}
	ctx := c.r.Context()
	if c.asked.Action == Change {
		// A caller who goes away must not leave a change without its log.
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	c.r = c.r.WithContext(ctx)
	return run(c)
}

func (c *call) authorize() error {
	actor, err := c.cfg.Authorize(c.r, c.asked)
	c.actor = actor
	if err == nil {
		err = sameOrigin.Check(c.r)
	}
	if err == nil {
		return nil
	}
	c.log(slog.LevelWarn, "admin request refused", slog.String("method", c.r.Method), slog.String("path", c.r.URL.Path), slog.Any("error", err))
	if errors.Is(err, ErrUnauthenticated) {
		c.w.Header().Set("WWW-Authenticate", c.cfg.Challenge)
		return httpjson.Refuse(http.StatusUnauthorized, "")
	}
	return httpjson.Refuse(http.StatusForbidden, "")
}

// log tells the Logger, by what the request asks and who does.
func (c *call) log(level slog.Level, message string, attrs ...slog.Attr) {
	about := []slog.Attr{slog.String("actor", c.actor), slog.String("action", string(c.asked.Action))}
	if c.asked.Kind != "" {
		about = append(about, slog.String("kind", string(c.asked.Kind)), slog.String("limiter", c.asked.Limiter))
	}
	if c.asked.Key != "" {
		about = append(about, slog.String("key", c.asked.Key))
	}
	c.cfg.Logger.LogAttrs(c.r.Context(), level, message, append(about, attrs...)...)
}

func single(query url.Values, name string) string {
	if values := query[name]; len(values) == 1 {
		return values[0]
	}
	return ""
}

func (e endpoint) limiterParam() string {
	if e.kind == RateLimiters {
		return paramName
	}
	return paramLimiter
}

func (e endpoint) allowed() string {
	methods := []string{http.MethodHead}
	for method := range e.methods {
		methods = append(methods, method)
	}
	slices.Sort(methods)
	return strings.Join(methods, ", ")
}
