package javadriver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// ThrownError is what a call in Java threw.
type ThrownError struct {
	Class   string // simple name of the exception's class
	Message string
}

func (e *ThrownError) Error() string { return e.Class + ": " + e.Message }

// ErrUnsupported is what a call returns that the Redisson release does not have.
var ErrUnsupported = errors.New("not in this Redisson release")

// JVM runs a driver, which serves JSON-RPC on its standard input and output. It
// is safe for concurrent use.
//
// It ends with its standard input, so that none outlives this process.
type JVM struct {
	cmd    *exec.Cmd
	client *rpc.Client
	stderr Tail
	last   atomic.Int64  // the last request's name
	ended  chan struct{} // closed when the JVM is gone
	err    error         // why; to be read once ended is closed
}

// Start runs the class of the driver in a JVM with these options. The error is a
// *MissingError if this machine lacks what it takes.
func (d Driver) Start(class string, options ...string) (*JVM, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return nil, &MissingError{"no java in PATH"}
	}
	path, err := d.classPath()
	if err != nil {
		return nil, err
	}
	options = append(options, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", path, class)
	j := &JVM{cmd: exec.Command(java, options...), ended: make(chan struct{})}
	stdout, answers := io.Pipe()
	j.cmd.Stdout, j.cmd.Stderr = answers, &j.stderr
	stdin, err := j.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := j.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting java: %w", err)
	}
	go func() {
		j.err = fmt.Errorf("the JVM with %s was closed", d.Name)
		if err := j.cmd.Wait(); err != nil {
			j.err = fmt.Errorf("the JVM with %s ended: %w; its stderr:\n%s", d.Name, err, j.Stderr())
		}
		close(j.ended)
		_ = answers.Close()
	}()
	j.client = jsonrpc.NewClient(struct {
		io.Reader
		io.WriteCloser
	}{stdout, stdin})
	return j, nil
}

// Close ends the JVM, by force if it does not go by itself.
func (j *JVM) Close() {
	_ = j.client.Close()
	select {
	case <-j.ended:
	case <-time.After(10 * time.Second):
		j.Kill()
	}
}

// Kill ends the JVM at once, whatever it does.
func (j *JVM) Kill() {
	_ = j.cmd.Process.Kill()
	<-j.ended
}

// Stderr returns the end of what the JVM has logged.
func (j *JVM) Stderr() string { return j.stderr.String() }

// Call sends a request and waits for its answer. If ctx ends first, the thread
// that serves the request is interrupted; what Redisson asked of the server
// may still happen, and it goes on polling for an acquire that waits until
// its client is closed.
func Call[T any](ctx context.Context, j *JVM, op string, args ...any) (answer T, err error) {
	if err := ctx.Err(); err != nil {
		return answer, err
	}
	name := fmt.Sprint(j.last.Add(1))
	var got T
	call := j.send(op, &got, append([]any{name}, args...))
	select {
	case <-call.Done:
	case <-ctx.Done():
		j.send("cancel", new(any), []any{name + " cancelled", name})
		return answer, fmt.Errorf("java %s: %w", op, ctx.Err())
	}
	thrown, threw := errors.AsType[rpc.ServerError](call.Error)
	switch {
	case call.Error == nil:
		return got, nil
	case !threw:
		j.Close() // it has ended, or does not speak the protocol
		return answer, fmt.Errorf("java %s: %w: %w", op, call.Error, j.err)
	}
	class, message, _ := strings.Cut(string(thrown), ": ")
	if class == "UnsupportedException" {
		return answer, fmt.Errorf("java %s: %w", op, ErrUnsupported)
	}
	return answer, fmt.Errorf("java %s: %w", op, &ThrownError{class, message})
}

func (j *JVM) send(op string, answer any, args []any) *rpc.Call {
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = fmt.Sprint(arg)
	}
	return j.client.Go(op, words, answer, make(chan *rpc.Call, 1))
}

// Tail is a writer that keeps the end of what is written to it, such as a
// program's standard error.
type Tail struct {
	mu   sync.Mutex
	text []byte
}

const tailSize = 16 << 10

func (t *Tail) Write(text []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, text...)
	t.text = append(t.text[:0], t.text[max(0, len(t.text)-tailSize):]...)
	return len(text), nil
}

func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
