//go:build unix

package redistest

import "syscall"

const (
	freeze = syscall.SIGSTOP
	thaw   = syscall.SIGCONT
)

// ownGroup keeps a signal to all of a terminal or a job from a child.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// canStart returns nil: Redis runs here, and a shell to hold it.
func canStart() error { return nil }
