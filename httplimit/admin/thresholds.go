package admin

import (
	"cmp"
	"errors"
	"log/slog"
	"net/http"
	"slices"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/httpjson"
	"github.com/rratelimiter/rratelimiter/limit"
)

type threshold struct {
	Threshold int64 `json:"threshold"`
}

type keyThreshold struct {
	Key string `json:"key"`
	threshold
}

// slidingLog returns the sliding log that the request names.
func (c *call) slidingLog() (SlidingLog, error) {
	log, ok := c.cfg.SlidingLogs[c.asked.Limiter]
	if !ok {
		return nil, httpjson.Refuse(http.StatusNotFound, "no sliding log of this name is offered here")
	}
	return log, nil
}

func (c *call) listThresholds(log SlidingLog) error {
	set, err := log.Thresholds(c.r.Context())
	fault := ""
	switch {
	case errors.Is(err, limit.ErrCorrupt) && set != nil:
		fault = err.Error()
	case err != nil:
		return err
	}
	all := make([]keyThreshold, 0, len(set))
	for key, n := range set {
		all = append(all, keyThreshold{key, threshold{n}})
	}
	slices.SortFunc(all, func(a, b keyThreshold) int { return cmp.Compare(a.Key, b.Key) })
	return c.ok(struct {
		Thresholds []keyThreshold `json:"thresholds"`
		Error      string         `json:"error,omitempty"` // about those that can't be read
	}{all, fault})
}

func (c *call) showThreshold(log SlidingLog) error {
	n, err := log.Threshold(c.r.Context(), c.asked.Key)
	if err != nil {
		return err
	}
	return c.ok(threshold{n})
}

func (c *call) putThreshold(log SlidingLog) error {
	f, err := c.body()
	if err != nil {
		return err
	}
	var t threshold
	given, err := f.integer("threshold", 0, rratelimiter.MaxRate, &t.Threshold)
	if err != nil {
		return err
	}
	if !given {
		return httpjson.BadRequest("the body has no threshold")
	}
	if err := f.end(); err != nil {
		return err
	}
	err = c.changeThreshold(log, func() (slog.Attr, error) {
		return slog.Int64("after", t.Threshold), log.SetThreshold(c.r.Context(), c.asked.Key, t.Threshold)
	})
	if err != nil {
		return err
	}
	return c.ok(t)
}

func (c *call) deleteThreshold(log SlidingLog) error {
	err := c.changeThreshold(log, func() (slog.Attr, error) {
		if err := log.ResetThreshold(c.r.Context(), c.asked.Key); err != nil {
			return slog.String("after", "default"), err
		}
		if n, err := log.Threshold(c.r.Context(), c.asked.Key); err == nil {
			return slog.Int64("after", n), nil
		}
		return slog.String("after", "default"), nil
	})
	if err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// changeThreshold makes a change and logs it with what held before and what
// change says that holds after it. A field that can't be read is no reason to
// leave it so.
func (c *call) changeThreshold(log SlidingLog, change func() (after slog.Attr, err error)) error {
	end, err := c.begin()
	if err != nil {
		return err
	}
	defer end()
	n, err := log.Threshold(c.r.Context(), c.asked.Key)
	before := slog.Int64("before", n)
	if err != nil {
		if !errors.Is(err, limit.ErrCorrupt) {
			return err
		}
		before = slog.Any("before", err)
	}
	after, err := change()
	return c.changed(before, after, err)
}
