//go:build !unix

package redistest

import (
	"fmt"
	"runtime"
	"syscall"
)

// No server is started here, so that none is frozen or thawed either.
const (
	freeze = syscall.Signal(0)
	thaw   = syscall.Signal(0)
)

func ownGroup() *syscall.SysProcAttr { return nil }

// canStart says why no server can be started here: a shell holds each, and Redis runs
// on Unix only.
func canStart() error {
	return fmt.Errorf("no redis-server on %s: %w on Unix", runtime.GOOS, errNoServer)
}
