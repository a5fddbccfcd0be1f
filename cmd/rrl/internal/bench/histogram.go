package bench

import (
	"math/bits"
	"time"
)

// A histogram counts times in buckets that are a sixteenth of their value wide,
// or a nanosecond.
type histogram struct {
	count   int64
	buckets [64 * perDoubling]int64
}

const perDoubling = 16

func (h *histogram) add(d time.Duration) {
	h.count++
	h.buckets[bucketOf(uint64(max(d, 0)))]++
}

func (h *histogram) merge(other *histogram) {
	h.count += other.count
	for i, n := range other.buckets {
		h.buckets[i] += n
	}
}

// bucketOf returns the bucket of a number of nanoseconds.
func bucketOf(n uint64) int {
	if n < perDoubling {
		return int(n)
	}
	shift := bits.Len64(n) - bits.Len64(perDoubling)
	return (shift+1)*perDoubling + int(n>>shift) - perDoubling
}

// middle returns the number in the middle of a bucket.
func middle(bucket int) uint64 {
	if bucket < perDoubling {
		return uint64(bucket)
	}
	shift := bucket/perDoubling - 1
	low := uint64(bucket%perDoubling+perDoubling) << shift
	return low + uint64(1)<<shift/2
}

// quantile returns the time that a part of all did not exceed.
func (h *histogram) quantile(part float64) time.Duration {
	if h.count == 0 {
		return 0
	}
	rank := int64(part * float64(h.count-1))
	for i, n := range h.buckets {
		if rank -= n; rank < 0 {
			return time.Duration(middle(i))
		}
	}
	return 0
}
