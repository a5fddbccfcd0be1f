package httplimit

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"
)

// heard returns for how long a response says that no request should follow; 0 if it says nothing of that.
func (m *gate) heard(resp *http.Response) time.Duration {
	d := time.Duration(0)
	if m.pauseOn != nil {
		d = m.pauseOn(resp)
	}
	if d == 0 {
		d = pauseOf(resp)
	}
	return min(d, m.maxPause)
}

// statusOverloaded is how some upstreams refuse what is too much for them at the moment.
const statusOverloaded = 529

// pauseOf reads the headers by which upstreams say when to come again.
func pauseOf(resp *http.Response) (d time.Duration) {
	switch resp.StatusCode {
	case http.StatusForbidden, http.StatusTooManyRequests, http.StatusServiceUnavailable, statusOverloaded:
		if d = retryAfterMs(resp.Header); d == 0 {
			d = retryAfter(resp.Header)
		}
	}
	if d > 0 {
		return d
	}
	return usedUp(resp.Header)
}

// usedUp returns the longest t of the policies of which RateLimit says that nothing is left: r=0.
func usedUp(h http.Header) (longest time.Duration) {
	text := h.Values("RateLimit")
	if len(text) == 0 {
		return 0
	}
	list, err := httpsfv.UnmarshalList(text)
	if err != nil { // r=0;t=2 without the name of a policy is a dictionary
		all, _ := httpsfv.UnmarshalDictionary(text)
		if all == nil {
			return 0
		}
		left, _ := all.Get("r")
		if item, ok := left.(httpsfv.Item); ok {
			item.Params.Add("r", item.Value)
			list = httpsfv.List{item}
		}
	}
	for _, member := range list {
		item, isItem := member.(httpsfv.Item)
		if !isItem {
			continue
		}
		left, _ := item.Params.Get("r")
		wait, _ := item.Params.Get("t")
		if seconds, known := wait.(int64); known && left == int64(0) {
			longest = max(longest, time.Duration(min(seconds, int64(math.MaxInt64/time.Second)))*time.Second)
		}
	}
	return longest
}

// retryAfterMs parses Retry-After-Ms, which some upstreams send beside a Retry-After that is rounded.
func retryAfterMs(h http.Header) time.Duration {
	ms, _ := strconv.ParseFloat(strings.Trim(h.Get("Retry-After-Ms"), " \t"), 64)
	if !(ms > 0) { // NaN too
		return 0
	}
	return time.Duration(min(math.Ceil(ms), math.MaxInt64/2e6)) * time.Millisecond
}

// retryAfter parses Retry-After: 0 if there is none that makes sense. Some upstreams write fractions of a
// second, which the header does not have. A date is read by the upstream's clock, which wrote Date too.
func retryAfter(h http.Header) time.Duration {
	text := strings.Trim(h.Get("Retry-After"), " \t")
	whole, fraction, _ := strings.Cut(text, ".")
	if digits := whole + fraction; digits != "" && strings.Trim(digits, "0123456789") == "" {
		const most = int64(1<<63-1) / int64(time.Second)
		seconds, err := strconv.ParseInt("0"+whole, 10, 64)
		if err != nil { // too many digits
			seconds = most
		}
		if strings.Trim(fraction, "0") != "" {
			seconds = min(seconds, most-1) + 1
		}
		return time.Duration(min(seconds, most)) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	if sent, err := http.ParseTime(h.Get("Date")); err == nil {
		return at.Sub(sent)
	}
	return time.Until(at)
}
