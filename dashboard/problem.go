package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limit"
)

// problem is an error that says how it is answered.
type problem struct {
	status int
	detail string
}

func (p *problem) Error() string { return p.detail }

// errBadRequest is every problem that is the request's own.
var errBadRequest = errors.New("bad request")

func (p *problem) Is(target error) bool {
	return target == errBadRequest && p.status == http.StatusBadRequest
}

func refuse(status int, format string, args ...any) error {
	return &problem{status, fmt.Sprintf(format, args...)}
}

func badRequest(format string, args ...any) error {
	return refuse(http.StatusBadRequest, format, args...)
}

// problemOf tells how an error is answered. What Redis or the network said is for the
// log, which loud asks for.
func problemOf(err error) (p *problem, loud bool) {
	if p, ok := errors.AsType[*problem](err); ok {
		return p, false
	}
	switch {
	case errors.Is(err, limit.ErrUnknownOutcome):
		return &problem{http.StatusBadGateway, "Redis did not answer: whether this is changed is not known"}, true
	case errors.Is(err, limit.ErrInvalidConfig), errors.Is(err, limit.ErrInvalidPermits):
		return &problem{http.StatusBadRequest, err.Error()}, false
	case errors.Is(err, rratelimiter.ErrNotInitialized):
		return &problem{http.StatusNotFound, "there is no such limiter"}, false
	case errors.Is(err, limit.ErrCorrupt), errors.Is(err, limit.ErrUnsupported):
		return &problem{http.StatusConflict, err.Error()}, false
	}
	return &problem{http.StatusServiceUnavailable, "Redis can't be asked: the log has why"}, !errors.Is(err, context.Canceled)
}

// fail answers with an error, as RFC 9457 has it.
func (c *call) fail(err error) {
	p, loud := problemOf(err)
	if c.err != nil {
		p, loud = &problem{http.StatusInternalServerError, "this dashboard is not set up as it should be: see the log"}, true
	}
	if loud {
		c.log(slog.LevelError, "dashboard request failed", slog.Int("status", p.status), slog.Any("error", err))
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

// log tells the Logger, with who asks for what.
func (c *call) log(level slog.Level, message string, attrs ...slog.Attr) {
	about := []slog.Attr{slog.String("who", c.who), slog.String("method", c.r.Method), slog.String("path", c.r.URL.Path)}
	c.cfg.Logger.LogAttrs(c.r.Context(), level, message, append(about, attrs...)...)
}
