package admin

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"unicode/utf8"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/httpjson"
	"github.com/rratelimiter/rratelimiter/limit"
)

// problemOf returns how an error is answered, and whether to log it: what
// Redis or the network said is for the log alone.
func (c *call) problemOf(err error) (r *httpjson.Error, loud bool) {
	if r, ok := errors.AsType[*httpjson.Error](err); ok {
		return r, false
	}
	switch {
	case c.err != nil:
		return &httpjson.Error{Status: http.StatusInternalServerError, Detail: "the Config of this handler is not valid: see the log"}, true
	case errors.Is(err, limit.ErrInvalidConfig), errors.Is(err, limit.ErrInvalidPermits):
		return &httpjson.Error{Status: http.StatusBadRequest, Detail: err.Error()}, true
	case errors.Is(err, rratelimiter.ErrNotInitialized):
		return &httpjson.Error{Status: http.StatusNotFound, Detail: "this limiter has no rate: PUT gives it one"}, false
	case errors.Is(err, limit.ErrCorrupt), errors.Is(err, limit.ErrUnsupported):
		return &httpjson.Error{Status: http.StatusConflict, Detail: err.Error()}, true
	}
	byClient := errors.Is(err, context.Canceled)
	return &httpjson.Error{Status: http.StatusServiceUnavailable, Detail: "Redis can't be asked"}, !byClient
}

func (c *call) fail(err error) {
	r, loud := c.problemOf(err)
	if loud {
		c.log(slog.LevelError, "admin request failed", slog.String("method", c.r.Method), slog.String("path", c.r.URL.Path),
			slog.Int("status", r.Status), slog.Any("error", err))
	}
	r.Write(c.w)
}

func (c *call) ok(body any) error {
	httpjson.OK(c.w, body)
	return nil
}

// checkQuery refuses what is missing, unknown, given twice, or can't be shown
// again in JSON.
func (e endpoint) checkQuery(query url.Values) error {
	for _, name := range e.params {
		switch values := query[name]; {
		case len(values) != 1 || values[0] == "":
			return httpjson.BadRequest("the query must have one %s", name)
		case !utf8.ValidString(values[0]):
			return httpjson.BadRequest("the %s in the query is not UTF-8", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if !slices.Contains(e.params, name) {
			return httpjson.BadRequest("the query has %q, which means nothing here", name)
		}
	}
	return nil
}
