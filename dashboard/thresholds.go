package dashboard

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/httpjson"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

const (
	factThreshold = "Threshold"
	noThreshold   = "none: the sliding log's own limit"
	notThreshold  = "not a threshold"

	// thresholdPage is how many fields one HSCAN looks at, and maxThresholds how many
	// are looked at in all, about.
	thresholdPage = 200
	maxThresholds = 1000
)

// threshold is one of a hash.
type threshold struct {
	named

	Text      string `json:"text"` // the threshold, or that the field holds none
	Threshold *int64 `json:"threshold"`
}

// thresholdOf reads a field as sliding logs do: digits only. What else a field holds is
// shown nowhere.
func thresholdOf(text string) (shown string, threshold *int64) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || strings.Trim(text, "0123456789") != "" || len(text) > 32 || n > slidinglog.MaxLimit {
		return notThreshold, nil
	}
	return strconv.FormatInt(n, 10), &n
}

// listThresholds reads a hash of thresholds, as far as it is bounded.
func (c *call) listThresholds() error {
	hash := c.query.Get("hash")
	if err := c.hasThresholds(hash); err != nil {
		return err
	}
	cursor := uint64(0)
	if text := c.query.Get("cursor"); text != "" {
		var err error
		if cursor, err = strconv.ParseUint(text, 10, 64); err != nil {
			return httpjson.BadRequest("the cursor is none that an answer had")
		}
	}
	ctx, cancel := c.cfg.bounded(c.r.Context())
	defer cancel()
	all, foreign := []threshold{}, 0
	for seen := 0; ; {
		if err := c.turn(ctx, otherUnit); err != nil {
			return err
		}
		page, next, err := c.cfg.Redis.HScan(ctx, hash, cursor, "", thresholdPage).Result()
		if redis.HasErrorPrefix(err, "WRONGTYPE") {
			return httpjson.Refuse(http.StatusConflict, "this key is no hash")
		}
		if err != nil {
			return err
		}
		for i := 0; i+1 < len(page); i += 2 {
			t := threshold{named: nameOf(page[i])}
			t.Text, t.Threshold = thresholdOf(page[i+1])
			if t.Threshold == nil && !c.ownField(hash, page[i]) {
				foreign++
				continue
			}
			all = append(all, t)
		}
		seen += len(page) / 2
		if cursor = next; cursor == 0 || seen >= maxThresholds {
			break
		}
	}
	return c.ok(struct {
		Hash       named       `json:"hash"`
		More       bool        `json:"more"`
		Cursor     string      `json:"cursor"`  // where more begin
		Foreign    int         `json:"foreign"` // fields that are no thresholds of such keys
		Thresholds []threshold `json:"thresholds"`
	}{nameOf(hash), cursor != 0, strconv.FormatUint(cursor, 10), foreign, all})
}

// thresholdNow starts a plan about a key's threshold, which do will change.
func (c *call) thresholdNow(ctx context.Context, r *request, do func(context.Context, *slidinglog.Limiter) error) (*plan, error) {
	hash := r.hash
	if is, _, err := c.isLimiter(ctx, hash); err == nil && is {
		return nil, httpjson.Refuse(http.StatusConflict, "this hash is a RateLimiter's own, and none of thresholds")
	}
	text, err := c.cfg.Redis.HGet(ctx, hash, r.name).Result()
	before, number := thresholdOf(text)
	state := "set: " + before
	switch {
	case errors.Is(err, redis.Nil):
		before, state = noThreshold, ""
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return nil, httpjson.Refuse(http.StatusConflict, "this key is no hash")
	case err != nil:
		return nil, err
	case number == nil && !c.ownField(hash, r.name):
		return nil, httpjson.Refuse(http.StatusConflict, "this field is none of a sliding log's key, and holds no threshold")
	}
	p := &plan{name: r.name, before: []fact{{factThreshold, before}, {"Hash", shown(hash)}}, state: state}
	p.do = func(ctx context.Context) error {
		return c.by(ctx, "", func(client *rratelimiter.Client) error {
			return do(ctx, slidinglog.New(client, slidinglog.Config{Limit: 1, Window: time.Second, Thresholds: hash}))
		})
	}
	return p, nil
}

func (c *call) planThreshold(ctx context.Context, r *request) (*plan, error) {
	if r.Threshold == nil || *r.Threshold < 0 || *r.Threshold > slidinglog.MaxLimit {
		return nil, httpjson.BadRequest("a threshold is 0 to %d", int64(slidinglog.MaxLimit))
	}
	p, err := c.thresholdNow(ctx, r, func(ctx context.Context, l *slidinglog.Limiter) error {
		return l.SetThreshold(ctx, r.name, *r.Threshold)
	})
	if err != nil {
		return nil, err
	}
	p.after = []fact{{factThreshold, strconv.FormatInt(*r.Threshold, 10)}, p.before[1]}
	if *r.Threshold == 0 {
		p.warnings = []string{"A threshold of 0 refuses all."}
	}
	return p, nil
}

func (c *call) planUnthreshold(ctx context.Context, r *request) (*plan, error) {
	p, err := c.thresholdNow(ctx, r, func(ctx context.Context, l *slidinglog.Limiter) error { return l.ResetThreshold(ctx, r.name) })
	if err != nil {
		return nil, err
	}
	if p.state == "" {
		return nil, httpjson.Refuse(http.StatusConflict, "this key has no threshold")
	}
	p.after = []fact{{factThreshold, noThreshold}, p.before[1]}
	return p, nil
}
