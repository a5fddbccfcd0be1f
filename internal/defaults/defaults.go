// Package defaults has the timeouts that callers did not choose.
package defaults

import "time"

// Timeout returns how long to wait for a server that has d to answer, unless the caller says. Our tests
// wait longer, since the machines that they run on may stall.
var Timeout = func(d time.Duration) time.Duration { return d }
