// Package words writes numbers, times and names for people.
package words

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Plural returns "1 permit", "2 permits".
func Plural(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Rate puts a rate in words.
func Rate(permits int64, interval time.Duration) string {
	return Plural(permits, "permit") + " every " + Duration(interval)
}

// ShortRate writes a rate as rrl's commands read it: 100/1m.
func ShortRate(permits, intervalMS int64) string {
	return strconv.FormatInt(permits, 10) + "/" + Millis(intervalMS)
}

// Duration writes d without the zeros that Duration.String ends in: 1h, not
// 1h0m0s.
func Duration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// ParseDuration is time.ParseDuration for times that people write: it also reads
// days, which come first (1d, 1d12h, 0.5d), and a unit that stands alone, which is
// one of it (s, m, h, d, ms).
func ParseDuration(text string) (time.Duration, error) {
	switch text {
	case "ms", "s", "m", "h", "d":
		text = "1" + text
	}
	days, rest, found := strings.Cut(text, "d")
	if !found {
		return time.ParseDuration(text)
	}
	// An hour takes as many digits, and a rest that has a sign is no rest.
	whole, err := time.ParseDuration(days + "h")
	if err != nil || strings.Trim(days, "0123456789.") != "" || whole > math.MaxInt64/24 || strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "+") {
		return 0, fmt.Errorf("%q is not a time", text)
	}
	whole *= 24
	if rest == "" {
		return whole, nil
	}
	more, err := time.ParseDuration(rest)
	if err != nil || more > math.MaxInt64-whole {
		return 0, fmt.Errorf("%q is not a time", text)
	}
	return whole + more, nil
}

// Millis writes milliseconds as Duration does, also more than a time.Duration can hold.
func Millis(ms int64) string {
	if most := math.MaxInt64 / int64(time.Millisecond); ms > most || ms < -most {
		return strconv.FormatInt(ms, 10) + "ms"
	}
	return Duration(time.Duration(ms) * time.Millisecond)
}

// Soon writes how long something will take as people say it, 9m59s rather than 9m58.123s:
// rounded up, so that a caller who waits that long has waited enough.
func Soon(ms int64) string { return Millis(rounded(ms, ceil)) }

// Ago writes how long ago something was as people say it, and not more than it
// is.
func Ago(ms int64) string { return Millis(rounded(ms, floor)) }

// rounded returns ms in whole seconds from a minute on, in tenths from a second
// on, up or down.
func rounded(ms int64, divide func(n, by int64) int64) int64 {
	unit := int64(1)
	switch {
	case ms > math.MaxInt64-1000 || ms < math.MinInt64+1000:
	case ms >= 60_000 || ms <= -60_000:
		unit = 1000
	case ms >= 1000 || ms <= -1000:
		unit = 100
	}
	return divide(ms, unit) * unit
}

func floor(n, by int64) int64 {
	if n%by < 0 {
		return n/by - 1
	}
	return n / by
}

func ceil(n, by int64) int64 { return -floor(-n, by) }

// Quote quotes what a key holds, in ASCII, and of a long text its beginning.
func Quote(text string) string {
	const most = 40 // bytes
	if len(text) <= most {
		return strconv.QuoteToASCII(text)
	}
	return strconv.QuoteToASCII(strings.ToValidUTF8(text[:most], "")) + "..."
}

// Printable quotes a name that a terminal would not show unchanged.
func Printable(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}
