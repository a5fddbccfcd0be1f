package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"unicode/utf8"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limit"
)

// problem is an error that says how it is answered.
type problem struct {
	status int
	detail string
	quiet  bool // nothing for the log, or logged already
}

func (p *problem) Error() string { return p.detail }

// refuse returns what ends a request by that status and leaves nothing for the
// log.
func refuse(status int, format string, args ...any) error {
	return &problem{status: status, detail: fmt.Sprintf(format, args...), quiet: true}
}

func badRequest(format string, args ...any) error {
	return refuse(http.StatusBadRequest, format, args...)
}

// problemOf tells how an error is answered. What Redis or the network said is
// for the log.
func (c *call) problemOf(err error) *problem {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	p := &problem{detail: err.Error()}
	switch {
	case c.err != nil:
		p.status, p.detail = http.StatusInternalServerError, "this handler is not set up as it should be: see the log"
	case errors.Is(err, limit.ErrInvalidConfig), errors.Is(err, limit.ErrInvalidPermits):
		p.status = http.StatusBadRequest
	case errors.Is(err, rratelimiter.ErrNotInitialized):
		p.status, p.detail, p.quiet = http.StatusNotFound, "this limiter has no rate: PUT gives it one", true
	case errors.Is(err, limit.ErrCorrupt), errors.Is(err, limit.ErrUnsupported):
		p.status = http.StatusConflict
	default:
		p.status, p.detail = http.StatusServiceUnavailable, "Redis can't be asked"
		p.quiet = errors.Is(err, context.Canceled) // by the client
	}
	return p
}

// fail answers with an error, as RFC 9457 has it.
func (c *call) fail(err error) {
	p := c.problemOf(err)
	if !p.quiet {
		c.log(slog.LevelError, "admin request failed", slog.String("method", c.r.Method), slog.String("path", c.r.URL.Path),
			slog.Int("status", p.status), slog.Any("error", err))
	}
	c.answer("application/problem+json", p.status, struct {
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail,omitempty"`
	}{http.StatusText(p.status), p.status, p.detail})
}

func (c *call) ok(body any) error {
	c.answer("application/json", http.StatusOK, body)
	return nil
}

func (c *call) answer(contentType string, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		status, text = http.StatusInternalServerError, nil
	}
	c.w.Header().Set("Content-Type", contentType)
	c.w.WriteHeader(status)
	_, _ = c.w.Write(append(text, '\n')) // who has gone is told nothing
}

// checkQuery refuses what is missing, unknown, given twice, or can't be shown
// again in JSON.
func (e endpoint) checkQuery(query url.Values) error {
	for _, name := range e.params {
		switch values := query[name]; {
		case len(values) != 1 || values[0] == "":
			return badRequest("the query must have one %s", name)
		case !utf8.ValidString(values[0]):
			return badRequest("the %s in the query is not UTF-8", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if !slices.Contains(e.params, name) {
			return badRequest("the query has %q, which means nothing here", name)
		}
	}
	return nil
}
