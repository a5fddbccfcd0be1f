package compat_test

import (
	"flag"
	"os"
	"strings"
	"testing"
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
