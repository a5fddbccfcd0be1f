//go:build unix

package redistest

import "syscall"

// ownGroup keeps a signal to all of a terminal or a job from a child.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func setStopped(pid int, stopped bool) error {
	if stopped {
		return syscall.Kill(pid, syscall.SIGSTOP)
	}
	return syscall.Kill(pid, syscall.SIGCONT)
}

// canStart returns nil: Redis runs here, and a shell to hold it.
func canStart() error { return nil }
