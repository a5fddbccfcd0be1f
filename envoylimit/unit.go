package envoylimit

import (
	"math"
	"strings"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

type unit = ratelimitv3.RateLimitResponse_RateLimit_Unit

const day = 24 * time.Hour

// lengths are how long units are, as in envoyproxy/ratelimit.
var lengths = map[unit]time.Duration{
	ratelimitv3.RateLimitResponse_RateLimit_SECOND: time.Second,
	ratelimitv3.RateLimitResponse_RateLimit_MINUTE: time.Minute,
	ratelimitv3.RateLimitResponse_RateLimit_HOUR:   time.Hour,
	ratelimitv3.RateLimitResponse_RateLimit_DAY:    day,
	ratelimitv3.RateLimitResponse_RateLimit_WEEK:   7 * day,
	ratelimitv3.RateLimitResponse_RateLimit_MONTH:  30 * day,
	ratelimitv3.RateLimitResponse_RateLimit_YEAR:   365 * day,
}

// unitOf returns the unit of that name, in any case.
func unitOf(name string) (unit, bool) {
	u := unit(ratelimitv3.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(name)])
	return u, lengths[u] > 0
}

// ofUnit returns how the limits of so many units are counted if nothing else is said.
func ofUnit(u unit, multiple int64) per {
	p := per{unit: u, multiple: multiple, window: lengths[u] * time.Duration(min(multiple, int64(math.MaxInt64/lengths[u])))}
	p.algorithm = p.usual()
	return p
}

// ofWindow returns how the limits of a window are counted if nothing else is said.
func ofWindow(window time.Duration) per {
	p := per{window: window}
	for u, length := range lengths {
		// The largest unit of which the window is a multiple.
		if n := window / length; n > 0 && window%length == 0 && n <= math.MaxUint32 && length > lengths[p.unit] {
			p.unit, p.multiple = u, int64(n)
		}
	}
	p.algorithm = p.usual()
	return p
}

// usual is the algorithm unless another is named.
func (p *per) usual() algorithm {
	if p.window >= day {
		return fixedWindow
	}
	return slidingLog
}

// setName sets its name.
func (p *per) setName() {
	p.name = p.window.String()
	if p.multiple == 1 {
		p.name = strings.ToLower(p.unit.String())
	}
	if p.algorithm != p.usual() {
		p.name += "." + string(p.algorithm)
	}
}
