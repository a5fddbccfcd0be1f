package dashboard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/httpjson"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
)

const (
	maxRows   = 200
	someRows  = 50
	maxOffset = 1_000_000
	maxSearch = 1024

	// silence is after how long without an event a viewer learns that Redis does not
	// answer: the goroutine that asks it can't be interrupted.
	silence = 4 * time.Second

	// recheck is how often Authorize is asked about a stream that goes on.
	recheck = time.Minute

	// patience is how long one answer is waited for.
	patience = 10 * time.Second
)

// viewer returns what the request wants to see.
func (c *call) viewer() (*viewer, error) {
	switch strings.TrimSuffix(c.path, "/stream") {
	case "/limiter":
		name := c.asked.Limiter
		return &viewer{kind: limiterEvent, name: name, view: look.View{Name: name, Rows: 1}}, c.within(name)
	case "/others":
		view, err := c.view(c.query, "name")
		return &viewer{kind: othersEvent, others: &otherView{view.Filter, view.Offset, view.Rows}}, err
	}
	view, err := c.view(c.query, "use")
	return &viewer{kind: listEvent, view: view}, err
}

// view reads which part of a list is wanted.
func (c *call) view(query url.Values, sort string) (v look.View, err error) {
	v = look.View{
		Sort: sort, Filter: query.Get("search"), Rows: someRows, Reverse: query.Get("reverse") == "true", Refusing: c.cfg.Observer.refusing,
	}
	if v.Offset, err = number(query, "offset", 0, maxOffset, 0); err != nil {
		return v, err
	}
	if v.Rows, err = number(query, "limit", 1, maxRows, someRows); err != nil {
		return v, err
	}
	if len(v.Filter) > maxSearch {
		return v, httpjson.BadRequest("search has more than %d bytes", maxSearch)
	}
	switch given := query.Get("sort"); {
	case given == "refusals":
		v.Sort, v.Weight = look.ByWeight, c.cfg.Observer.pace
	case slices.Contains(look.Sorts(), given):
		v.Sort = given
	case given != "":
		return v, httpjson.BadRequest("sort is one of refusals, %s", strings.Join(look.Sorts(), ", "))
	}
	return v, nil
}

func number(query url.Values, name string, low, high, otherwise int) (int, error) {
	text := query.Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		return 0, httpjson.BadRequest("%s is a whole number from %d to %d", name, low, high)
	}
	return n, nil
}

// once answers with the first event.
func (c *call) once() error {
	v, err := c.viewer()
	if err != nil {
		return err
	}
	e, err := c.next(v)
	if err != nil {
		return err
	}
	if e.kind == faultEvent {
		return httpjson.Refuse(http.StatusServiceUnavailable, "Redis can't be read: the log has why")
	}
	c.w.Header().Set("Content-Type", "application/json")
	_, _ = c.w.Write(append(e.data, '\n'))
	return nil
}

// next waits for one event. It has left before that is sent: no one reads on for who
// takes an answer slowly.
func (c *call) next(v *viewer) (event, error) {
	leave, err := c.join(v)
	if err != nil {
		return event{}, err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(c.r.Context(), patience)
	defer cancel()
	select {
	case e := <-v.events:
		return e, nil
	case <-v.ended:
		return event{}, c.busy(errLostPlace)
	case <-ctx.Done():
		return event{}, httpjson.Refuse(http.StatusServiceUnavailable, "Redis did not answer in time")
	}
}

// stream answers with one event after the other, until the viewer leaves.
func (c *call) stream() error {
	v, err := c.viewer()
	if err != nil {
		return err
	}
	c.w.Header().Set("Content-Type", "text/event-stream")
	if c.r.Method == http.MethodHead {
		return nil // an answer without a body would not end either
	}
	leave, err := c.join(v)
	if err != nil {
		return err
	}
	defer leave()
	to := http.NewResponseController(c.w)
	c.w.Header().Set("X-Accel-Buffering", "no") // nginx would gather them
	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	text := []byte("retry: 1000\n\n")
	asked := time.Now()
	for {
		// Who was logged out meanwhile is to see no more.
		if time.Since(asked) >= recheck {
			if asked = time.Now(); c.authorize(c.asked) != nil {
				return nil
			}
		}
		// A server's own limit for a whole answer is not meant for one without end.
		// Who does not take an event in that time has gone.
		_ = to.SetWriteDeadline(time.Now().Add(patience))
		if _, err := c.w.Write(text); err != nil {
			return nil // the viewer has gone
		}
		if err := to.Flush(); err != nil {
			if errors.Is(err, http.ErrNotSupported) {
				c.log(slog.LevelError, "dashboard can't stream: a handler around it hides http.Flusher", slog.Any("error", err))
			}
			return nil
		}
		select {
		case <-c.r.Context().Done():
			return nil
		case <-v.ended:
			return nil
		case e := <-v.events:
			text = fmt.Appendf(nil, "event: %s\ndata: %s\n\n", e.kind, e.data)
		case <-quiet.C:
			e := faultOf(context.DeadlineExceeded)
			text = fmt.Appendf(nil, "event: %s\ndata: %s\n\n", e.kind, e.data)
		}
		quiet.Reset(silence)
	}
}

// reason says in a few words why Redis can't be read, and no address.
func reason(err error) string {
	if said, ok := errors.AsType[redis.Error](err); ok {
		return said.Error()
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return "it does not answer in time"
	}
	return "there is no connection"
}
