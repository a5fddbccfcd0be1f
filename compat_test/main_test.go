// Package compat_test works limiters together with real Redisson, on real
// servers.
package compat_test

import "flag"

// newestRedisson has every operation that the driver knows.
const newestRedisson = "4.7.0"

var (
	seed            = flag.Uint64("seed", 0, "seed of the random history; 0 draws one")
	operations      = flag.Int("ops", 5000, "operations in the random history")
	redissonVersion = flag.String("redisson", newestRedisson, "release of Redisson to test against")
)
