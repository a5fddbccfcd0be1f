package look

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

// Fields are the fields of a limiter's hash, in their own units.
type Fields struct {
	Rate, IntervalMS, Type, KeepAliveMS int64

	Origin Origin
	Ends   Ends // zero if the rate has no end

	then Origin // of what comes back
	over int64  // the rate before, if that had an end: the value is of it until the next request
}

// Ends says when a rate that was set for a while ends, in epoch ms, and what comes back then.
type Ends struct {
	AtMS       int64 `json:"at_ms"`
	Rate       int64 `json:"rate"`
	IntervalMS int64 `json:"interval_ms"`
}

// Or returns what there is to say of a rate of that origin, by the clock now.
func (e *Ends) Or(origin Origin, now time.Time) string {
	if e == nil {
		return string(origin)
	}
	at, rate := time.UnixMilli(e.AtMS), words.ShortRate(e.Rate, e.IntervalMS)
	left := max(at.Sub(now), 0)
	format := "Mon 15:04"
	if left > 6*24*time.Hour {
		format = "2006-01-02 15:04"
	}
	return fmt.Sprintf("%s until %s (in %s), then %s", origin, at.Format(format), words.Soon(left.Milliseconds()), rate)
}

// End returns the end, or nil if there is none.
func (f Fields) End() *Ends {
	if f.Ends.AtMS == 0 {
		return nil
	}
	return &f.Ends
}

// Origin says whose rate a limiter has; "" if that is unknown.
type Origin string

// The origins of a rate.
const (
	Default  Origin = "default"  // of a program's WithDefault, and the next one's if that is another
	Override Origin = "override" // set on purpose: programs' defaults leave it alone

	// TakenBack is an override that no longer is one: the rate counts until a program has another default.
	TakenBack Origin = "taken back"
)

// FieldNames are the fields' names in Redis, in the order of ParseFields.
var FieldNames = []string{"rate", "interval", "type", "keepAliveTime"}

// allFields are FieldNames and the fields that tell the rate's origin and its end.
var allFields = append(slices.Clone(FieldNames), "default", "override")

// requiredFields are the fields that every limiter has.
var requiredFields = FieldNames[:3]

// maxType is the largest type.
const maxType = int64(rratelimiter.PerClient)

// ParseFields reads the fields as HMGET answers them. The last may be missing. The origin is known
// and its end only if the answer has the fields "default" and "override" too.
func ParseFields(answer []any) (Fields, error) {
	if len(answer) < len(FieldNames) {
		return Fields{}, errors.New("no fields")
	}
	n := make([]int64, len(FieldNames))
	for i := range n {
		text, ok := answer[i].(string)
		if !ok {
			if i == len(requiredFields) {
				continue
			}
			return Fields{}, fmt.Errorf("field %s is missing", FieldNames[i])
		}
		if i == 1 && isOverridden(text) {
			text = text[1:]
		}
		if n[i], ok = number(text); !ok {
			return Fields{}, fmt.Errorf("field %s is %s, not a whole number from 0 to %d", FieldNames[i], words.Quote(text), int64(maxNumber))
		}
	}
	if n[2] > maxType {
		return Fields{}, fmt.Errorf("field type is %d, neither 0 nor 1", n[2])
	}
	f := Fields{Rate: n[0], IntervalMS: n[1], Type: n[2], KeepAliveMS: n[3]}
	if len(answer) == len(allFields) {
		f.Origin = f.originBy(answer[len(FieldNames)])
		if interval, _ := answer[1].(string); isOverridden(interval) {
			return f.withEnd(answer[len(FieldNames):])
		}
	}
	return f, nil
}

// isOverridden reports whether an interval is that of a rate that was set for a while: it has a zero in front.
func isOverridden(interval string) bool {
	return len(interval) > 1 && interval[0] == '0' && interval[1] != '0'
}

// withEnd adds what the field "override", behind "default", says. The keep-alive time is that which comes back.
func (f Fields) withEnd(fields []any) (Fields, error) {
	byDefault, field := fields[0], fields[1]
	text, _ := field.(string)
	var n [4]int64
	parts := strings.Split(text, " ")
	whole := len(parts) == len(n)
	for i := 0; whole && i < len(n); i++ {
		n[i], whole = number(parts[i])
	}
	if !whole {
		return Fields{}, fmt.Errorf("field override is %s, which does not say what comes back", words.Quote(text))
	}
	f.Ends, f.KeepAliveMS = Ends{AtMS: n[0], Rate: n[1], IntervalMS: n[2]}, n[3]
	f.Origin, f.then = Override, Fields{Rate: n[1], IntervalMS: n[2], Type: f.Type, KeepAliveMS: n[3]}.originBy(byDefault)
	return f, nil
}

// At returns the fields as the next request finds them at a time in epoch ms: what comes back if the rate has ended. Until
// then Redis holds that rate: see lua/include/override.lua.
func (f Fields) At(ms int64) Fields {
	if f.Ends.AtMS == 0 || ms < f.Ends.AtMS {
		return f
	}
	return Fields{Rate: f.Ends.Rate, IntervalMS: f.Ends.IntervalMS, Type: f.Type, KeepAliveMS: f.KeepAliveMS, Origin: f.then, over: f.Rate}
}

// lasts reports whether the rate has no end, and is no other one's whose end is to be written yet.
func (f Fields) lasts() bool { return f.Ends.AtMS == 0 && f.over == 0 }

// value returns a value as the next request finds it.
func (f Fields) value(stored int64) int64 {
	if f.over == 0 {
		return stored
	}
	return max(-maxNumber, f.Rate-f.over+min(stored, f.over))
}

// forgets reports whether the next request goes by the permits in use, whatever the value: a client's own may be of yet
// another rate.
func (f Fields) forgets() bool { return f.over != 0 && f.PerClient() }

// originBy returns the origin, given the field "default": the rate that it names, and which program's it is. Redisson's
// setRate leaves the field as it was, with another rate.
func (f Fields) originBy(field any) Origin {
	text, _ := field.(string)
	if of, found := strings.CutPrefix(text, fmt.Sprint(f.Rate, f.IntervalMS, f.Type, f.KeepAliveMS)+" "); found {
		if of == "0" {
			return TakenBack
		}
		return Default
	}
	return Override
}

// Foreign reports whether a key of that type is neither a limiter nor a hash that was
// meant for one: see [Judge]. fields are what HMGET answers for FieldNames, nil if the
// key is no hash.
func Foreign(kind string, fields []any) bool {
	_, _, found := Judge(fields)
	return kind != "none" && !found
}

// maxNumber is the largest number that the scripts take: Lua holds larger ones
// inexactly.
const maxNumber = 1<<53 - 1

// number reads a number as the scripts do: digits, without zeros before them.
func number(text string) (int64, bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && n >= 0 && n <= maxNumber && strconv.FormatInt(n, 10) == text
}

// TypeName is Redisson's name of the type.
func (f Fields) TypeName() string { return rratelimiter.RateType(f.Type).String() }

// PerClient reports whether each client has permits of its own.
func (f Fields) PerClient() bool { return f.Type == int64(rratelimiter.PerClient) }
