package look

import (
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/words"
)

// Broken returns why the limiter does not work, the zero Anomaly if it does: its calls fail, or
// grant too many permits, until it is mended. These are the anomalies of level [Error]: a key
// of the wrong type, a hash that is no configuration, a value or members that can't be read,
// layouts that exclude each other.
func (f *Findings) Broken() Anomaly {
	for _, a := range *f {
		if ProblemOf(a.Kind).Level == Error {
			return a
		}
	}
	return Anomaly{}
}

// Judge reads a hash's fields as HMGET answers them for [FieldNames]. It finds limiters, and
// hashes that were meant as one: they have a rate, and two of rate, interval and type are as
// Redisson writes them. For these broken says why they are no limiter.
func Judge(answer []any) (f Fields, broken string, found bool) {
	f, err := ParseFields(answer)
	if err == nil {
		return f, "", true
	}
	fit := 0
	for i := range min(len(answer), len(requiredFields)) {
		text, _ := answer[i].(string)
		if n, ok := number(text); ok && (FieldNames[i] != "type" || n <= maxType) {
			fit++
		}
	}
	if fit < 2 || answer[0] == nil {
		return Fields{}, "", false
	}
	return Fields{}, err.Error(), true
}

// wrongType adds that a key is of a type that it should not be; kind is "" if
// it is not known.
func (f *Findings) wrongType(key, kind, want string) {
	if kind == "" {
		f.add("wrong_type", "key %s is not a %s", words.Printable(key), want)
		return
	}
	f.add("wrong_type", "key %s is a %s, not a %s", words.Printable(key), kind, want)
}

func (f *Findings) badValue(key, text string) {
	f.add("bad_value", "key %s holds %s, not a whole number", words.Printable(key), words.Quote(text))
}

// checkPair judges a pair by what commands answered, its value and members, and reports whether
// the free permits are known.
func (f *Findings) checkPair(p *pair, value *redis.StringCmd, sets ...*redis.ZSliceCmd) (readable bool) {
	var number int64
	if ofWrongType(value) {
		f.wrongType(p.value, "", "string")
	} else if value.Err() == nil {
		var err error
		if number, err = strconv.ParseInt(value.Val(), 10, 64); err != nil {
			f.badValue(p.value, value.Val())
		}
	}
	l, known := newLayouts(), int64(0)
	for _, set := range sets {
		if ofWrongType(set) {
			f.wrongType(p.set, "", "sorted set")
			break
		}
		var permits int64
		for _, z := range set.Val() {
			l.add(z)
		}
		for _, m := range parse(set.Val()) {
			permits += int64(m.Permits)
		}
		known = max(known, permits)
	}
	readable = len(*f) == 0
	f.checkLayouts(p.set, l)
	if readable && number+known < -maxDebt { // a settled reservation may owe much
		f.inDebt(p, number)
	}
	return readable
}

func (f *Findings) inDebt(p *pair, value int64) {
	f.add("in_debt", "key %s is %d, which no permits in use explain", words.Printable(p.value), value)
}

// checkTTL looks for keys that stay when the limiter's rate has expired.
func (f *Findings) checkTTL(key string, ttl, rate time.Duration) {
	if rate >= 0 && ttl == -1 { // as PTTL answers: -2 is no key, -1 no time to live
		f.add("no_ttl", "the rate expires, key %s does not", words.Printable(key))
	}
}

func ofWrongType(cmd redis.Cmder) bool { return redis.HasErrorPrefix(cmd.Err(), "WRONGTYPE") }
