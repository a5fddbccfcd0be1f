package dashboard

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/httpjson"
)

// maxBody is the most bytes of a request's body: an id of the longest name, twice.
const maxBody = 64 << 10

// request asks for a change. Fields that an action does not use are left out.
type request struct {
	Action string `json:"action"`
	ID     string `json:"id"`     // the limiter's, or the key's whose threshold it is
	Search string `json:"search"` // part of the names of many

	Rate        int64  `json:"rate"`
	IntervalMS  int64  `json:"interval_ms"`
	Type        string `json:"type"`
	KeepAliveMS int64  `json:"keep_alive_ms"`
	KeepState   bool   `json:"keep_state"`

	TTLMS     int64  `json:"ttl_ms"`
	Permits   int64  `json:"permits"`
	Client    string `json:"client"` // an id, if each client has permits of its own
	Hash      string `json:"hash"`   // of thresholds, an id
	Threshold int64  `json:"threshold"`
	Entry     int64  `json:"entry"` // of the list of changes

	// Expect is from the preview: the change is refused if it is no longer so.
	Expect string `json:"expect"`

	name string // that ID stands for
}

// request reads the body.
func (c *call) request() (*request, error) {
	text, err := httpjson.Body(c.w, c.r, maxBody)
	if err != nil {
		return nil, err
	}
	var r request
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return nil, httpjson.BadRequest("the body is not the JSON object that is expected: %v", err)
	}
	if d.More() {
		return nil, httpjson.BadRequest("something follows the body's object")
	}
	if r.Action != "undo" && r.Action != many {
		if r.name, err = nameFrom(r.ID); err != nil {
			return nil, err
		}
	}
	if err := c.scope(&r); err != nil {
		return nil, err
	}
	return &r, nil
}

// maxMillis is the longest time that a time.Duration holds.
const maxMillis = int64((1<<63 - 1) / time.Millisecond)

// config returns the rate that is asked for.
func (r *request) config() (rratelimiter.Config, error) {
	kind, ok := typeOf(r.Type)
	switch {
	case !ok:
		return rratelimiter.Config{}, httpjson.BadRequest("type must be %q or %q", rratelimiter.Overall, rratelimiter.PerClient)
	case r.Rate < 1 || r.Rate > rratelimiter.MaxRate:
		return rratelimiter.Config{}, httpjson.BadRequest("a rate has 1 to %d permits", int64(rratelimiter.MaxRate))
	case r.IntervalMS < 1 || r.IntervalMS > maxMillis:
		return rratelimiter.Config{}, httpjson.BadRequest("an interval has at least 1 ms")
	case r.KeepAliveMS < 0 || r.KeepAliveMS > maxMillis:
		return rratelimiter.Config{}, httpjson.BadRequest("a keep-alive time has at least 0 ms")
	case r.KeepAliveMS != 0 && r.KeepAliveMS < r.IntervalMS:
		return rratelimiter.Config{}, httpjson.BadRequest("the keep-alive time is shorter than the interval")
	}
	return rratelimiter.Config{
		Type: kind, Rate: r.Rate, Interval: time.Duration(r.IntervalMS) * time.Millisecond,
		KeepAlive: time.Duration(r.KeepAliveMS) * time.Millisecond,
	}, nil
}
