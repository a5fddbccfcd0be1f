package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/rratelimiter/rratelimiter/internal/httpjson"
	"github.com/rratelimiter/rratelimiter/limit"
)

// begin waits until no other change is under way, and returns what ends this
// one.
func (c *call) begin() (end func(), err error) {
	select {
	case c.changing <- struct{}{}:
		return func() { <-c.changing }, nil
	case <-c.r.Context().Done():
		return nil, fmt.Errorf("waiting for other changes: %w", c.r.Context().Err())
	}
}

// changed logs the result of a change, and returns the error to answer.
func (c *call) changed(before, after slog.Attr, err error, more ...slog.Attr) error {
	attrs := append([]slog.Attr{before, after}, more...)
	if err == nil {
		c.log(slog.LevelInfo, "limit changed", attrs...)
		return nil
	}
	r, _ := c.problemOf(err)
	message := "limit not changed"
	if errors.Is(err, limit.ErrUnknownOutcome) || errors.Is(err, context.DeadlineExceeded) {
		r = &httpjson.Error{Status: http.StatusBadGateway, Detail: "Redis did not answer: whether the limit is changed is not known"}
		message = "limit perhaps changed"
	}
	c.log(slog.LevelError, message, append(attrs, slog.Int("status", r.Status), slog.Any("error", err))...)
	return r
}
