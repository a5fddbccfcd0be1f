package compat_test

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/rratelimiter/rratelimiter/codec"
)

// matrix holds the releases that the tests run beside, oldest first.
var matrix = []string{
	"3.12.3", "3.13.6", "3.15.5", "3.16.0", "3.16.8", "3.17.7", "3.20.1", "3.23.5", "3.27.2",
	"3.35.0", "3.37.0", "3.38.1", "3.45.1", "3.52.0", "4.0.0", "4.3.1", "4.7.0",
}

// part holds a release of each layout, and those before and after the last
// change of how permits in use are counted.
var part = []string{"3.12.3", "3.15.5", "3.16.8", "3.20.1", "3.27.2", "4.7.0"}

var releasesFlag = flag.String("releases", os.Getenv("RRL_RELEASES"),
	"releases of Redisson to run the matrix on: all, or some with commas between; "+
		"without it RRL_RELEASES, else the one of -redisson or, without that, one of each layout")

// releases returns those that the matrix is to be run on.
func releases(t testing.TB) []string {
	t.Helper()
	switch *releasesFlag {
	case "all":
		return matrix
	case "":
		if *redissonVersion != newestRedisson {
			return []string{*redissonVersion}
		}
		return part
	}
	return strings.Split(*releasesFlag, ",")
}

// redisson tells what the rate limiter of one release does. Each field is a
// change that a release brought; redissonOf says which.
type redisson struct {
	version string

	layout      codec.Layout // of the members that it writes
	keepsSet    bool         // else the value's key alone is the limiter: a fixed window, which ends with the key
	deletesAll  bool         // delete takes the state too, not the configuration alone
	deletesMany bool         // and answers true for more than one key too
	expires     bool         // expire, expireAt, clearExpire and remainTimeToLive
	setsRate    bool         // setRate
	looksFirst  bool         // more than the rate is an error always, not only where there is no value
	seesFuture  bool         // a refusal's wait comes from rows of a later date too
	plainWait   bool         // a refusal that finds no row fails at the sum, not at the row
	clamps      bool         // a value above the rate, after a reclaim, becomes what is not in use
	readsOldest bool         // a refusal's wait comes from the oldest row, whatever its date
	givesTTL    bool         // tryAcquire gives the configuration's time to live to the state
	readsEmpty  bool         // getConfig answers where there is no configuration
	clearsOwn   bool         // setRate clears the pair of the new type, not the shared one
	sumsUp      bool         // what is in use are permits, not rows
	takesTTL    bool         // trySetRate and setRate with a time to live
	keepsAlive  bool         // which is a field, and renewed by each acquire
	releases    bool         // release
	updates     bool         // setRate(args) and updateRate
}

func redissonOf(version string) *redisson {
	since := func(first string) bool { return !older(version, first) }
	r := &redisson{
		version:     version,
		deletesAll:  since("3.13.0"),
		expires:     since("3.13.1"),
		keepsSet:    since("3.13.3"),
		setsRate:    since("3.13.4"),
		deletesMany: since("3.13.6"),
		looksFirst:  since("3.14.0"),
		seesFuture:  since("3.15.3"),
		plainWait:   since("3.15.4"),
		clamps:      since("3.16.2"),
		readsOldest: since("3.16.2"),
		givesTTL:    since("3.17.3"),
		readsEmpty:  since("3.18.0"),
		clearsOwn:   since("3.22.1"),
		sumsUp:      since("3.35.0"),
		takesTTL:    since("3.37.0"),
		keepsAlive:  since("3.38.0"),
		releases:    since("3.52.0"),
		updates:     since("4.4.0"),
	}
	switch {
	case since("3.21.0"):
		r.layout = codec.LayoutD2
	case since("3.17.0"):
		r.layout = codec.LayoutD1
	case since("3.16.4"):
		r.layout = codec.LayoutC
	case r.keepsSet:
		r.layout = codec.LayoutB
	}
	return r
}

// countsRows tells whether it takes the number of rows for that of the permits
// in use.
func (r *redisson) countsRows() bool { return r.clamps && !r.sumsUp }

// lacks tells whether the release has no such operation.
func (r *redisson) lacks(kind string) bool {
	switch kind {
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

// older tells whether a release came before another. Both are numbers with dots
// between.
func older(version, than string) bool {
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
