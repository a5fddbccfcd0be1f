package redistest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// supervise runs "$@" until the shell's standard input ends, that is until this
// process closes its end of the pipe or dies, by whatever signal. Then the
// program goes, and the directory with it, unless the last word was to keep that.
// The shell ends as soon as the program has.
const supervise = `
dir=$1; shift
exec 3<&0 4>&2 2>/dev/null
"$@" </dev/null 2>&4 3<&- 4>&- &
child=$!
{ read -r word <&3; kill -9 $child 2>/dev/null; [ "$word" = keep ] || rm -rf -- "$dir"; } &
wait $child
`

// A Process is a program that ends with this one, however this one ends.
type Process struct {
	stdin  io.WriteCloser
	exited chan struct{}
}

// StartProcess starts a program that writes to out. The directory dir, if one is named,
// is removed when the program ends.
func StartProcess(dir string, out *os.File, argv ...string) (*Process, error) {
	cmd := exec.Command("sh", append([]string{"-c", supervise, "redistest", dir}, argv...)...)
	// A signal to all of a terminal or a job would end the shell and leave the program.
	cmd.SysProcAttr = ownGroup()
	cmd.Stdout, cmd.Stderr = out, out
	p := &Process{exited: make(chan struct{})}
	var err error
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("redistest: starting the shell around %s: %w", argv[0], err)
	}
	go func() {
		_ = cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// AwaitReady waits until ready returns nil. It fails if the program ends before.
func (p *Process) AwaitReady(ctx context.Context, ready func() error) error {
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return errors.New("it ended")
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Kill ends the program (SIGKILL) and waits until it is gone.
func (p *Process) Kill() {
	p.hangUp()
	<-p.exited
}

// hangUp kills the program and does not wait.
func (p *Process) hangUp() { _ = p.stdin.Close() }

// crash is Kill, but the directory stays.
func (p *Process) crash() {
	_, _ = io.WriteString(p.stdin, "keep\n")
	<-p.exited
}

func (p *Process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}
