package demo

import "time"

// rule reports whether a limiter has kept to what it promises.
type rule func([]answer) bool

// keptByWindow: each window, identified by its end, has granted no more than the limit.
func keptByWindow(answers []answer) bool {
	granted := map[time.Duration]int64{}
	for _, a := range answers {
		if !a.Granted {
			continue
		}
		end := a.at + a.ResetAfter
		if granted[end] += a.permits; granted[end] > a.Limit {
			return false
		}
	}
	return true
}

// keptByLog: no span of the window's length that ends at a grant has more than
// the limit of that moment.
func keptByLog(window time.Duration) rule {
	return func(answers []answer) bool {
		for i, a := range answers {
			if a.Granted && grantedWithin(answers[:i+1], a.at-window+1) > a.Limit {
				return false
			}
		}
		return true
	}
}

// keptByBucket: no span has more than a full bucket and what was refilled.
func keptByBucket(refill int64, interval time.Duration) rule {
	return func(answers []answer) bool {
		for i, first := range answers {
			for j, last := range answers[i:] {
				refills := int64((last.at-first.at)/interval) + 1
				if grantedWithin(answers[i:i+j+1], 0) > first.Limit+refills*refill {
					return false
				}
			}
		}
		return true
	}
}

// grantedWithin returns how many permits were granted from a moment on.
func grantedWithin(answers []answer, from time.Duration) (sum int64) {
	for _, a := range answers {
		if a.Granted && a.at >= from {
			sum += a.permits
		}
	}
	return sum
}
