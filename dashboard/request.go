package dashboard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/httpjson"
	"github.com/rratelimiter/rratelimiter/internal/inspect/rates"
)

// maxBody is the most bytes of a request's body.
const maxBody = 4096

// request asks for a change: its path says which, its query of what, its body how.
type request struct {
	values

	verb   string
	name   string // the limiter's, or the key's whose threshold it is
	hash   string // of thresholds
	client string // if each client has permits of its own
	search string // part of the names of many
	entry  int64  // of the list of changes
}

// values are the members of the body. Those that are left out stay as they are.
type values struct {
	Rate        *int64  `json:"rate,omitempty"`
	IntervalMS  *int64  `json:"interval_ms,omitempty"`
	Type        *string `json:"type,omitempty"`
	KeepAliveMS *int64  `json:"keep_alive_ms,omitempty"`
	KeepState   *bool   `json:"keep_state,omitempty"` // as if true
	ForMS       *int64  `json:"for_ms,omitempty"`     // after that the rate now comes back
	Create      bool    `json:"create,omitempty"`     // if there is no such limiter

	TTLMS     int64  `json:"ttl_ms,omitempty"`
	Permits   int64  `json:"permits,omitempty"`
	Threshold *int64 `json:"threshold,omitempty"`

	// Expect is from the preview: the change is refused if it is no longer so.
	Expect string `json:"expect,omitempty"`
}

// String returns all that is asked for, in one line.
func (r *request) String() string {
	given := r.values
	given.Expect = ""
	body, _ := json.Marshal(given) // numbers, strings and flags only
	return fmt.Sprintf("%q %q %q %q %q %d %s", r.verb, r.name, r.hash, r.client, r.search, r.entry, body)
}

// request reads what is to be changed.
func (c *call) request() (*request, error) {
	r := &request{
		verb: c.asked.Verb, name: c.query.Get("name"), hash: c.query.Get("hash"), client: c.query.Get("client"), search: c.query.Get("search"),
	}
	if r.hash != "" {
		r.name = c.query.Get("key")
	}
	if text := c.query.Get("entry"); text != "" {
		var err error
		if r.entry, err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, httpjson.BadRequest("the entry is no number")
		}
	}
	text, err := httpjson.Body(c.w, c.r, maxBody)
	if err != nil {
		return nil, err
	}
	err = checkObject(text, append(strings.Fields(kinds[r.verb].fields), "expect"))
	if err == nil {
		err = json.Unmarshal(text, &r.values)
	}
	if err != nil {
		return nil, httpjson.BadRequest("the body is not the JSON object that is expected: %v", err)
	}
	return r, c.scope(r)
}

// checkObject refuses what json.Unmarshal would guess at: a name that is there twice or in other letters, and
// null for nothing. A change is no place for guesses.
func checkObject(text []byte, fields []string) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return errors.New("it does not begin with {")
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		at := slices.Index(fields, fmt.Sprint(name))
		if at < 0 {
			return fmt.Errorf("%q means nothing here, or is there twice", name)
		}
		fields = slices.Delete(fields, at, at+1)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
		if string(value) == "null" {
			return fmt.Errorf("%q is null", name)
		}
	}
	if _, err := d.Token(); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows it")
	}
	return nil
}

// maxMillis is the longest time that a time.Duration holds.
const maxMillis = int64((1<<63 - 1) / time.Millisecond)

// checkRate refuses parts of a rate that no limiter can have.
func (v *values) checkRate() error {
	outside := func(n *int64, low, high int64) bool { return n != nil && (*n < low || *n > high) }
	switch {
	case v.Rate == nil && v.IntervalMS == nil && v.Type == nil && v.KeepAliveMS == nil:
		return httpjson.BadRequest("the body changes nothing: it has no rate, interval_ms, type or keep_alive_ms")
	case outside(v.Rate, 1, rratelimiter.MaxRate):
		return httpjson.BadRequest("a rate has 1 to %d permits", int64(rratelimiter.MaxRate))
	case outside(v.IntervalMS, 1, maxMillis):
		return httpjson.BadRequest("an interval has at least 1 ms")
	case outside(v.KeepAliveMS, 0, maxMillis):
		return httpjson.BadRequest("a keep-alive time has at least 0 ms")
	case outside(v.ForMS, 1, engine.MaxOverride.Milliseconds()):
		return httpjson.BadRequest("a rate holds for 1 to %d ms", engine.MaxOverride.Milliseconds())
	case v.ForMS != nil && (v.Type != nil || v.KeepAliveMS != nil || v.Create || v.KeepState != nil && !*v.KeepState):
		return httpjson.BadRequest("for_ms keeps type, keep-alive time and permits in use: leave those out")
	}
	if v.Type != nil {
		if _, ok := typeOf(*v.Type); !ok {
			return httpjson.BadRequest("type must be %q or %q", rratelimiter.Overall, rratelimiter.PerClient)
		}
	}
	return nil
}

// config returns the rate that is asked for, with what is left out as it is now.
func (v *values) config(now rratelimiter.Config) (rratelimiter.Config, error) {
	to := now
	if v.Type != nil {
		to.Type, _ = typeOf(*v.Type)
	}
	if v.Rate != nil {
		to.Rate = *v.Rate
	}
	if v.IntervalMS != nil {
		to.Interval = time.Duration(*v.IntervalMS) * time.Millisecond
	}
	if to = rates.Keep(now, to); v.ForMS != nil {
		to.KeepAlive = 0 // what comes back has its own
	}
	if v.KeepAliveMS != nil {
		to.KeepAlive = time.Duration(*v.KeepAliveMS) * time.Millisecond
	}
	switch {
	case to.Rate == 0 || to.Interval == 0:
		return to, httpjson.BadRequest("a limiter without a rate needs rate and interval_ms")
	case to.KeepAlive != 0 && to.KeepAlive < to.Interval:
		return to, httpjson.BadRequest("the keep-alive time is shorter than the interval")
	}
	return to, nil
}
