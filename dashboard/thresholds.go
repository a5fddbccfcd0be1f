package dashboard

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/answer"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

const (
	factThreshold = "Threshold"
	noThreshold   = "none: the sliding log's own limit"

	// thresholdPage is how many thresholds one HSCAN looks for, and maxThresholds how
	// many are listed.
	thresholdPage = 200
	maxThresholds = 1000
)

// threshold is one of a hash.
type threshold struct {
	named

	Text      string `json:"text"` // as it is in Redis, for display
	Threshold *int64 `json:"threshold"`
}

// listThresholds reads a hash of thresholds, as far as it is bounded.
func (c *call) listThresholds() error {
	hash, err := nameFrom(c.r.URL.Query().Get("hash"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), timeout)
	defer cancel()
	all := []threshold{}
	var cursor uint64
	for {
		if err := c.turn(ctx, otherUnit); err != nil {
			return err
		}
		page, next, err := c.cfg.Redis.HScan(ctx, hash, cursor, "", thresholdPage).Result()
		if redis.HasErrorPrefix(err, "WRONGTYPE") {
			return answer.Refuse(http.StatusConflict, "this key is no hash")
		}
		if err != nil {
			return err
		}
		for i := 0; i+1 < len(page); i += 2 {
			t := threshold{named: nameOf(page[i]), Text: shown(page[i+1])}
			if n, err := strconv.ParseInt(page[i+1], 10, 64); err == nil && n >= 0 {
				t.Threshold = &n
			}
			all = append(all, t)
		}
		if cursor = next; cursor == 0 || len(all) >= maxThresholds {
			break
		}
	}
	return c.ok(struct {
		Hash       named       `json:"hash"`
		More       bool        `json:"more"`
		Thresholds []threshold `json:"thresholds"`
	}{nameOf(hash), cursor != 0, all})
}

// thresholdNow starts a plan about a key's threshold.
func (c *call) thresholdNow(ctx context.Context, r *request) (p *plan, l *slidinglog.Limiter, err error) {
	hash, err := nameFrom(r.Hash)
	if err != nil {
		return nil, nil, err
	}
	if is, err := c.isLimiter(ctx, hash); err == nil && is {
		return nil, nil, answer.Refuse(http.StatusConflict, "this hash is a RateLimiter's own, and none of thresholds")
	}
	text, err := c.cfg.Redis.HGet(ctx, hash, r.name).Result()
	before, state := cut(text, maxTold), "set: "+text
	switch {
	case errors.Is(err, redis.Nil):
		before, state = noThreshold, ""
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return nil, nil, answer.Refuse(http.StatusConflict, "this key is no hash")
	case err != nil:
		return nil, nil, err
	}
	p = &plan{name: r.name, before: []fact{{factThreshold, before}, {"Hash", shown(hash)}}, state: state}
	l = slidinglog.New(c.cfg.Redis, slidinglog.Config{Limit: 1, Window: time.Second, Thresholds: hash})
	return p, l, nil
}

func (c *call) planThreshold(ctx context.Context, r *request) (*plan, error) {
	p, l, err := c.thresholdNow(ctx, r)
	if err != nil {
		return nil, err
	}
	if r.Threshold < 0 || r.Threshold > slidinglog.MaxLimit {
		return nil, answer.BadRequest("a threshold is 0 to %d", int64(slidinglog.MaxLimit))
	}
	p.after = []fact{{factThreshold, strconv.FormatInt(r.Threshold, 10)}, p.before[1]}
	if r.Threshold == 0 {
		p.warnings = []string{"A threshold of 0 refuses all."}
	}
	p.do = func(ctx context.Context) error { return l.SetThreshold(ctx, r.name, r.Threshold) }
	return p, nil
}

func (c *call) planUnthreshold(ctx context.Context, r *request) (*plan, error) {
	p, l, err := c.thresholdNow(ctx, r)
	if err != nil {
		return nil, err
	}
	if p.state == "" {
		return nil, answer.Refuse(http.StatusConflict, "this key has no threshold")
	}
	p.after = []fact{{factThreshold, noThreshold}, p.before[1]}
	p.do = func(ctx context.Context) error { return l.ResetThreshold(ctx, r.name) }
	return p, nil
}
