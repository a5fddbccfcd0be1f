package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/httpjson"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

// maxBody is the most bytes of a request's body.
const maxBody = 4096

// fields are the members of a JSON object, as they were written. Each reader
// removes what it has read; end refuses the rest.
type fields map[string]json.RawMessage

// body reads the request's JSON object. Unlike json.Unmarshal it refuses a name
// given twice, and names in other letters than ours are unknown: a change is no
// place for guesses.
func (c *call) body() (fields, error) {
	text, err := httpjson.Body(c.w, c.r, maxBody)
	if err != nil {
		return nil, err
	}
	f, err := parseObject(text)
	if err != nil {
		return nil, httpjson.BadRequest("the body is not the JSON object that is expected: %v", err)
	}
	return f, nil
}

func parseObject(text []byte) (fields, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil, errors.New("it does not begin with {")
	}
	f := make(fields)
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		name, ok := token.(string)
		if !ok {
			return nil, errors.New("a name is missing")
		}
		if _, twice := f[name]; twice {
			return nil, fmt.Errorf("%q is there twice", name)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		f[name] = value
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows it")
	}
	return f, nil
}

// take removes a member and reports whether it was there.
func (f fields) take(name string) (string, bool) {
	value, ok := f[name]
	delete(f, name)
	return string(value), ok
}

func (f fields) end() error {
	if len(f) == 0 {
		return nil
	}
	return httpjson.BadRequest("the body has %q, which means nothing here", slices.Sorted(maps.Keys(f))[0])
}

// integer reads a whole number between low and high into v, and reports whether
// it was there.
func (f fields) integer(name string, low, high int64, v *int64) (bool, error) {
	text, ok := f.take(name)
	if !ok {
		return false, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high {
		return true, httpjson.BadRequest("%s must be a whole number from %d to %d", name, low, high)
	}
	*v = n
	return true, nil
}

// duration reads text such as "1m30s", or a number of milliseconds. A duration
// is a whole number of milliseconds, at least low.
func (f fields) duration(name string, low time.Duration, v *time.Duration) (bool, error) {
	text, ok := f.take(name)
	if !ok {
		return false, nil
	}
	d, err := parseDuration(text)
	if err != nil || d < low || d%time.Millisecond != 0 {
		return true, httpjson.BadRequest(`%s must be a whole number of milliseconds, or text such as "1m30s" that is one; at least %d ms`, name, low.Milliseconds())
	}
	*v = d
	return true, nil
}

func parseDuration(text string) (time.Duration, error) {
	var written string
	if err := json.Unmarshal([]byte(text), &written); err == nil && text != "null" {
		return words.ParseDuration(written)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n > math.MaxInt64/int64(time.Millisecond) || n < 0 {
		return 0, errors.New("not a whole number of milliseconds")
	}
	return time.Duration(n) * time.Millisecond, nil
}

func (f fields) boolean(name string, v *bool) error {
	text, ok := f.take(name)
	if !ok {
		return nil
	}
	if text != "true" && text != "false" {
		return httpjson.BadRequest("%s must be true or false", name)
	}
	*v = text == "true"
	return nil
}

func (f fields) rateType(name string, v *rratelimiter.RateType) error {
	text, ok := f.take(name)
	if !ok {
		return nil
	}
	for _, t := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
		if text == strconv.Quote(t.String()) {
			*v = t
			return nil
		}
	}
	return httpjson.BadRequest("%s must be %q or %q", name, rratelimiter.Overall, rratelimiter.PerClient)
}
