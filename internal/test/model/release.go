package model

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/rratelimiter/rratelimiter/codec"
)

// A Release is what the rate limiter of one release of Redisson does. Each field is a
// change that a release brought; ReleaseOf says which.
type Release struct {
	Version string

	Layout      codec.Layout // of the members that it writes
	KeepsSet    bool         // else the value's key alone is the limiter: a fixed window, which ends with the key
	deletesAll  bool         // delete takes the state too, not the configuration alone
	deletesMany bool         // and answers true for more than one key too
	expires     bool         // expire, expireAt, clearExpire and remainTimeToLive
	setsRate    bool         // setRate
	looksFirst  bool         // more than the rate is an error always, not only if there is no value
	SeesFuture  bool         // a refusal's wait comes from rows of a later date too
	plainWait   bool         // a refusal that finds no row fails at the sum, not at the row
	Clamps      bool         // a value above the rate, after a reclaim, becomes what is not in use
	readsOldest bool         // a refusal's wait comes from the oldest row, whatever its date
	givesTTL    bool         // tryAcquire gives the configuration's time to live to the state
	readsEmpty  bool         // getConfig answers if there is no configuration
	clearsOwn   bool         // setRate clears the pair of the new type, not the shared one
	SumsUp      bool         // what is in use are permits, not rows
	TakesTTL    bool         // trySetRate and setRate with a time to live
	keepsAlive  bool         // which is a field, and renewed by each acquire
	releases    bool         // release
	updates     bool         // setRate(args) and updateRate
}

// ReleaseOf returns the release with a version such as "3.52.0".
func ReleaseOf(version string) *Release {
	since := func(first string) bool { return !Older(version, first) }
	r := &Release{
		Version:     version,
		deletesAll:  since("3.13.0"),
		expires:     since("3.13.1"),
		KeepsSet:    since("3.13.3"),
		setsRate:    since("3.13.4"),
		deletesMany: since("3.13.6"),
		looksFirst:  since("3.14.0"),
		SeesFuture:  since("3.15.3"),
		plainWait:   since("3.15.4"),
		Clamps:      since("3.16.2"),
		readsOldest: since("3.16.2"),
		givesTTL:    since("3.17.3"),
		readsEmpty:  since("3.18.0"),
		clearsOwn:   since("3.22.1"),
		SumsUp:      since("3.35.0"),
		TakesTTL:    since("3.37.0"),
		keepsAlive:  since("3.38.0"),
		releases:    since("3.52.0"),
		updates:     since("4.4.0"),
	}
	switch {
	case since("3.21.0"):
		r.Layout = codec.LayoutD2
	case since("3.17.0"):
		r.Layout = codec.LayoutD1
	case since("3.16.4"):
		r.Layout = codec.LayoutC
	case r.KeepsSet:
		r.Layout = codec.LayoutB
	}
	return r
}

// CountsRows reports whether it takes the number of rows for that of the permits in use.
func (r *Release) CountsRows() bool { return r.Clamps && !r.SumsUp }

// Lacks reports whether the release has no such operation.
func (r *Release) Lacks(operation string) bool {
	switch operation {
	case "acquireAll", "wait":
		return true
	case "release":
		return !r.releases
	case "setRate":
		return !r.setsRate
	case "setRateArgs", "updateRate":
		return !r.updates
	case "expire", "expireAt", "clearExpire", "ttl":
		return !r.expires
	}
	return false
}

// Older reports whether a release came before another. Both are numbers with dots
// between.
func Older(version, than string) bool {
	a, b := strings.Split(version, "."), strings.Split(than, ".")
	for i := range min(len(a), len(b)) {
		x, errX := strconv.Atoi(a[i])
		y, errY := strconv.Atoi(b[i])
		if errX != nil || errY != nil {
			panic(fmt.Sprintf("no releases: %q, %q", version, than))
		}
		if x != y {
			return x < y
		}
	}
	return len(a) < len(b)
}
