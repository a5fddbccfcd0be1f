package model

import (
	"cmp"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/rratelimiter/rratelimiter/codec"
)

// A Release is what the rate limiter of one release of Redisson does. Each flag is a change that a release brought.
type Release struct {
	Version string
	Layout  codec.Layout // of the members that it writes

	DeletesAll  bool `since:"3.13.0"` // delete takes the state too, not the configuration alone
	Expires     bool `since:"3.13.1"` // expire, expireAt, clearExpire and remainTimeToLive
	KeepsSet    bool `since:"3.13.3"` // else the value's key alone is the limiter: a fixed window, which ends with the key
	SetsRate    bool `since:"3.13.4"` // setRate
	DeletesMany bool `since:"3.13.6"` // delete answers true for more than one key too
	LooksFirst  bool `since:"3.14.0"` // more than the rate is an error always, not only if there is no value
	SeesFuture  bool `since:"3.15.3"` // a refusal's wait comes from rows of a later date too
	PlainWait   bool `since:"3.15.4"` // a refusal that finds no row fails at the sum, not at the row
	Clamps      bool `since:"3.16.2"` // a value above the rate, after a reclaim, becomes what is not in use
	ReadsOldest bool `since:"3.16.2"` // a refusal's wait comes from the oldest row, whatever its date
	GivesTTL    bool `since:"3.17.3"` // tryAcquire gives the configuration's time to live to the state
	ReadsEmpty  bool `since:"3.18.0"` // getConfig answers if there is no configuration
	ClearsOwn   bool `since:"3.22.1"` // setRate clears the pair of the new type, not the shared one
	SumsUp      bool `since:"3.35.0"` // what is in use are permits, not rows
	TakesTTL    bool `since:"3.37.0"` // trySetRate and setRate with a time to live
	KeepsAlive  bool `since:"3.38.0"` // which is a field, and renewed by each acquire
	Releases    bool `since:"3.52.0"` // release
	Updates     bool `since:"4.4.0"`  // setRate(args) and updateRate

	Trusts   bool `since:"next"`       // a value above the rate stays, if it and what is in use were more before
	TakesOff bool `since:"after-next"` // release takes permits off the oldest rows
}

// Unreleased are changes of Redisson that no release has yet, with the release that drivers make them to. "next" is what
// https://github.com/redisson/redisson/pull/7343 describes, "after-next" a release() that was seen in the sources later, instead of it.
var Unreleased = map[string]string{"next": "4.7.0", "after-next": "4.7.0"}

// ReleaseOf returns the release with a version such as "3.52.0", or what is Unreleased.
func ReleaseOf(version string) *Release {
	since := func(first string) bool {
		if Unreleased[first] != "" {
			return version == first
		}
		return !Older(version, first)
	}
	r := &Release{Version: version}
	for field, flag := range reflect.ValueOf(r).Elem().Fields() {
		if first, ok := field.Tag.Lookup("since"); ok {
			flag.SetBool(since(first))
		}
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

// CountsRows reports whether it takes the number of rows for the number of permits in use.
func (r *Release) CountsRows() bool { return r.Clamps && !r.SumsUp }

// Lacks reports whether the release has no such operation.
func (r *Release) Lacks(operation string) bool {
	switch operation {
	case "release":
		return !r.Releases
	case "setRate":
		return !r.SetsRate
	case "setRateArgs", "updateRate":
		return !r.Updates
	case "expire", "expireAt", "clearExpire", "ttl":
		return !r.Expires
	}
	return false
}

// Older reports whether a release came before another. Both are numbers with dots between,
// or Unreleased, which counts as what it is made of.
func Older(version, than string) bool {
	version, than = cmp.Or(Unreleased[version], version), cmp.Or(Unreleased[than], than)
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
