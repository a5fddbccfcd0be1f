package output

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

// Millis writes so many milliseconds as Duration does, and also those that no
// time.Duration can hold.
func Millis(ms int64) string {
	if ms > math.MaxInt64/int64(time.Millisecond) {
		return strconv.FormatInt(ms, 10) + "ms"
	}
	return Duration(time.Duration(ms) * time.Millisecond)
}

// Printable quotes a name that a terminal would not show as it is.
func Printable(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}
