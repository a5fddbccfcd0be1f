//go:build !unix

package redistest

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
)

func ownGroup() *syscall.SysProcAttr { return nil }
func setStopped(int, bool) error     { return errors.ErrUnsupported }

// canStart says why no server can be started here: a shell holds each, and Redis runs on Unix only.
func canStart() error {
	return fmt.Errorf("no redis-server on %s: %w on Unix", runtime.GOOS, ErrNoServer)
}
