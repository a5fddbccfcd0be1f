package dashboard

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/httpjson"
	"github.com/rratelimiter/rratelimiter/limit"
)

// badlyAsked reports whether an error is the request's own.
func badlyAsked(err error) bool {
	r, ok := errors.AsType[*httpjson.Error](err)
	return ok && r.Status == http.StatusBadRequest
}

// problemOf returns how an error is answered. What Redis or the network said is for the
// log, which loud asks for.
func problemOf(err error) (r *httpjson.Error, loud bool) {
	if r, ok := errors.AsType[*httpjson.Error](err); ok {
		return r, false
	}
	switch {
	case errors.Is(err, limit.ErrUnknownOutcome):
		return &httpjson.Error{Status: http.StatusBadGateway, Detail: "Redis did not answer: whether this is changed is not known"}, true
	case errors.Is(err, limit.ErrInvalidConfig), errors.Is(err, limit.ErrInvalidPermits):
		return &httpjson.Error{Status: http.StatusBadRequest, Detail: unquoted(err).Error()}, false
	case errors.Is(err, rratelimiter.ErrNotInitialized):
		return &httpjson.Error{Status: http.StatusNotFound, Detail: "there is no such limiter"}, false
	case errors.Is(err, limit.ErrCorrupt), errors.Is(err, limit.ErrUnsupported):
		return &httpjson.Error{Status: http.StatusConflict, Detail: unquoted(err).Error()}, false
	}
	return &httpjson.Error{Status: http.StatusServiceUnavailable, Detail: "Redis can't be asked: the log has why"}, !errors.Is(err, context.Canceled)
}

func (c *call) fail(err error) {
	r, loud := problemOf(err)
	if c.err != nil {
		r, loud = &httpjson.Error{Status: http.StatusInternalServerError, Detail: "the Config of this dashboard is not valid: see the log"}, true
	}
	if loud {
		c.log(slog.LevelError, "dashboard request failed", c.names(), slog.Int("status", r.Status), slog.Any("error", unquoted(err)))
	}
	r.Write(c.w)
}

func (c *call) ok(body any) error {
	httpjson.OK(c.w, body)
	return nil
}

// log writes to the Logger, with who asks for what.
func (c *call) log(level slog.Level, message string, attrs ...slog.Attr) {
	about := []slog.Attr{slog.String("who", c.who), slog.String("method", c.r.Method), slog.String("path", c.r.URL.Path)}
	c.cfg.Logger.LogAttrs(c.r.Context(), level, message, append(about, attrs...)...)
}

// logRefusal writes that a request is not answered, and what it was about.
func (c *call) logRefusal(err error) {
	c.log(slog.LevelWarn, "dashboard request refused", c.names(), slog.Any("error", err))
}

// names are what the request is about.
func (c *call) names() slog.Attr {
	var attrs []slog.Attr
	for _, name := range [][2]string{{"limiter", c.asked.Limiter}, {"hash", c.asked.Hash}, {"key", c.asked.Key}} {
		if name[1] != "" {
			attrs = append(attrs, slog.String(name[0], cut(name[1], maxTold)))
		}
	}
	return slog.GroupAttrs("", attrs...)
}
