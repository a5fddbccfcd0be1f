// Package model says in plain Go what calls do to a limiter.
//
// Grants are the permits in use, with the rules that hold for all callers: which permits have
// run out, how many are free and when more will be, whose permits a release takes. [State] is
// all that Redis holds of a limiter, to the byte; a [Module] is what this module decides of it, a
// [Release] what a release of Redisson does, each of its defects included. Package linear
// reckons with Grants alone, for many calls at once.
package model

import (
	"iter"
	"slices"
)

// A Grant is permits in use that were granted together.
type Grant struct {
	At      int64 `json:"at"`           // ms
	By      int   `json:"by,omitempty"` // the Client
	Permits int64 `json:"permits"`
	Own     int   `json:"-"` // the reservation that has the member to itself until it is settled
	Early   int64 `json:"-"` // ms that it is dated before the grant, if it is held until then
}

// Grants are those of one limiter, the oldest first.
type Grants []Grant

// InUse returns their permits.
func (all Grants) InUse() (sum int64) {
	for _, g := range all {
		sum += g.Permits
	}
	return sum
}

// Settled returns those that have not run out.
func (all Grants) Settled(interval, now int64) Grants {
	out := func(g Grant) bool { return g.At+interval <= now }
	if !slices.ContainsFunc(all, out) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), out)
}

// Ready returns when that many permits are free, of which free are now; false if all would not
// do.
func (all Grants) Ready(free, permits, interval, now int64) (at int64, ok bool) {
	if free >= permits {
		return now, true
	}
	for _, g := range all {
		if free += g.Permits; free >= permits {
			return g.At + interval, true
		}
	}
	return 0, false
}

// Full returns when all permits are free.
func (all Grants) Full(interval, now int64) int64 {
	if len(all) == 0 {
		return now
	}
	return all[len(all)-1].At + interval
}

// NewestFirst returns in which order a release takes permits off them: first off those
// of the Client itself, then off others', each time the newest first.
func (all Grants) NewestFirst(by int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for _, own := range []bool{true, false} {
			for i, g := range slices.Backward(all) {
				if own == (g.By == by) && !yield(i) {
					return
				}
			}
		}
	}
}
