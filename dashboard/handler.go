package dashboard

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/httpjson"
)

// handler is what Handler and API return.
type handler struct {
	cfg      Config
	err      error    // of cfg
	page     bool     // at /, with the API at /api/
	hosts    []string // of cfg, as hostOf has them
	poller   *poller
	audit    audit
	changing chan struct{} // holds one token: changes are made one after another
	reviews  reviews
	turns    turns
}

// Handler returns the handler of the page, with the API that it uses at /api/. It serves paths
// relative to its root: mount it with http.StripPrefix, on a path that ends in a slash. A bad
// Config does not panic: every request is then answered with a 500, and the error is logged.
//
// It needs no closing: it reads from Redis only while requests are under way.
func Handler(cfg Config) http.Handler { return newHandler(cfg, true) }

// API is like Handler without the page: what the page asks for is at the root, such as
// GET /limiters. GET /openapi.json describes it.
func API(cfg Config) http.Handler { return newHandler(cfg, false) }

func newHandler(cfg Config, page bool) *handler {
	cfg.withDefaults()
	h := &handler{cfg: cfg, err: cfg.validate(), page: page, changing: make(chan struct{}, 1)}
	h.reviews.looking = make(chan struct{}, 1)
	for _, host := range cfg.Hosts {
		name, _ := hostOf(host)
		h.hosts = append(h.hosts, name)
	}
	h.poller = newPoller(h)
	return h
}

// call is a request on its way.
type call struct {
	*handler

	w     http.ResponseWriter
	r     *http.Request
	path  string // of the API
	query url.Values
	asked Access
	who   string
}

// policy lets the page use its own files and nothing else, and no site frame it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

// sameOrigin keeps web pages of other origins from using a browser's credentials.
var sameOrigin = http.NewCrossOriginProtection()

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("Content-Security-Policy", policy)
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	c := &call{handler: h, w: w, r: r}
	if err := c.serve(); err != nil {
		c.fail(err)
	}
}

func (c *call) serve() error {
	if c.err != nil {
		return c.err
	}
	if err := c.checkHost(); err != nil {
		return err
	}
	e := c.endpoint()
	query, unreadable := url.ParseQuery(c.r.URL.RawQuery)
	c.query, c.asked = query, c.accessOf(e, query)
	if !e.file || c.asked.Action == Change {
		if err := c.checkOrigin(); err != nil {
			return err
		}
	}
	if err := c.authorize(c.asked); err != nil {
		return err
	}
	if e.run == nil {
		return httpjson.Refuse(http.StatusNotFound, "there is no such path: see openapi.json")
	}
	if !e.allows(c.r.Method) {
		c.w.Header().Set("Allow", e.allowed())
		return httpjson.Refuse(http.StatusMethodNotAllowed, "allowed is %s", e.allowed())
	}
	if unreadable != nil && !e.file {
		return httpjson.BadRequest("the query can't be read")
	}
	if err := e.check(query); err != nil {
		return err
	}
	return e.run(c)
}

// checkOrigin refuses what a page of another site asks for, except to be led here. It
// could not read the answers, but would take streams and commands.
func (c *call) checkOrigin() error {
	judged := *c.r
	judged.Method = http.MethodPost // of GET it has no opinion
	if err := sameOrigin.Check(&judged); err != nil {
		c.logRefusal(err)
		return httpjson.Refuse(http.StatusForbidden, "the request comes from another site")
	}
	return nil
}

func (c *call) authorize(asked Access) error {
	who, err := c.cfg.Authorize(c.r, asked)
	c.who = who
	if err != nil {
		c.logRefusal(err)
		if errors.Is(err, errGuessing) {
			c.w.Header().Set("Retry-After", retryGuesses)
			return httpjson.Refuse(http.StatusTooManyRequests, "too many wrong tokens come from this address")
		}
		if errors.Is(err, ErrUnauthenticated) {
			challenge := c.cfg.Challenge
			if errors.Is(err, errNoLookToken) && !strings.HasPrefix(c.r.Header.Get("Authorization"), bearer) {
				challenge = `Basic realm="rate limiters: the token is the password", charset="UTF-8"`
			}
			c.w.Header().Set("WWW-Authenticate", challenge)
			return httpjson.Refuse(http.StatusUnauthorized, "the token or login is missing or wrong")
		}
		return httpjson.Refuse(http.StatusForbidden, "")
	}
	if asked.Action == Change && !c.cfg.Write {
		return httpjson.Refuse(http.StatusForbidden, "nothing can be changed here")
	}
	return nil
}

// about describes the handler to the page.
func (c *call) about() error {
	others := []string{}
	thresholds := []named{}
	for _, o := range c.cfg.Others {
		others = append(others, o.Name)
		if hash := nameOf(o.Thresholds); o.Thresholds != "" && !slices.Contains(thresholds, hash) {
			thresholds = append(thresholds, hash)
		}
	}
	_, err := c.cfg.Authorize(c.r, Access{Action: Change})
	return c.ok(struct {
		Server     string   `json:"server"`
		Write      bool     `json:"write"`
		Allowed    bool     `json:"allowed"` // the asker may change now, without more
		Refusals   bool     `json:"refusals"`
		Others     []string `json:"others"`
		Thresholds []named  `json:"thresholds"`
		Pattern    string   `json:"pattern"`
	}{c.cfg.Server, c.cfg.Write, c.cfg.Write && err == nil, c.cfg.Observer != nil, others, thresholds, c.cfg.Pattern})
}

// begin waits until nothing else is under way that holds the token, and returns what ends
// this.
func begin(ctx context.Context, token chan struct{}) (end func(), err error) {
	select {
	case token <- struct{}{}:
		return func() { <-token }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
