// Package histogram counts durations, for measurements of many calls.
package histogram

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// A bucket is at most 1/128 of its values wide.
const (
	subBits = 7
	sub     = 1 << subBits
	buckets = (36 - subBits + 1) * sub // up to a minute
)

// A Histogram counts durations.
type Histogram struct {
	counts [buckets]uint32
}

// Add counts d.
func (h *Histogram) Add(d time.Duration) {
	h.counts[bucket(d)]++
}

// Merge adds what other has counted.
func (h *Histogram) Merge(other *Histogram) {
	for i, n := range other.counts {
		h.counts[i] += n
	}
}

// Count returns how many were counted.
func (h *Histogram) Count() (n int64) {
	for _, c := range h.counts {
		n += int64(c)
	}
	return n
}

// Percentile returns the duration that p of 100 counted ones do not exceed; 0
// if nothing was counted.
func (h *Histogram) Percentile(p float64) time.Duration {
	rank := p / 100 * float64(h.Count())
	var below float64
	for i, c := range h.counts {
		if c > 0 && below+float64(c) >= rank {
			low, high := lowest(i), lowest(i+1)
			return low + time.Duration(float64(high-low)*(rank-below)/float64(c))
		}
		below += float64(c)
	}
	return 0
}

// MarshalText returns the counts as BUCKET:COUNT,BUCKET:COUNT,...
func (h *Histogram) MarshalText() ([]byte, error) {
	var text []byte
	for i, n := range h.counts {
		if n == 0 {
			continue
		}
		if len(text) > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, int64(i), 10)
		text = append(text, ':')
		text = strconv.AppendUint(text, uint64(n), 10)
	}
	return text, nil
}

// UnmarshalText adds the counts of such a text.
func (h *Histogram) UnmarshalText(counts []byte) error {
	text := string(counts)
	if text == "" {
		return nil
	}
	for pair := range strings.SplitSeq(text, ",") {
		left, right, _ := strings.Cut(pair, ":")
		i, err := strconv.Atoi(left)
		if err != nil || i < 0 || i >= buckets {
			return fmt.Errorf("histogram: bucket %q", pair)
		}
		n, err := strconv.ParseUint(right, 10, 32)
		if err != nil {
			return fmt.Errorf("histogram: count %q", pair)
		}
		h.counts[i] += uint32(n)
	}
	return nil
}

func bucket(d time.Duration) int {
	v := uint64(max(d, 0))
	if v < sub {
		return int(v)
	}
	shift := bits.Len64(v) - 1 - subBits
	return min(shift*sub+int(v>>shift), buckets-1)
}

// lowest returns the lowest duration of a bucket.
func lowest(i int) time.Duration {
	if i < 2*sub {
		return time.Duration(i)
	}
	shift := i/sub - 1
	return time.Duration(i-shift*sub) << shift
}
