package javadriver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/test/model"
)

// ThrownError is what a call in Java threw.
type ThrownError struct {
	Class   string // simple name of the exception's class
	Message string
}

func (e *ThrownError) Error() string { return e.Class + ": " + e.Message }

// ErrUnsupported is what a call returns that the Redisson release does not have.
var ErrUnsupported = errors.New("not in this Redisson release")

// Process is another program that serves JSON-RPC on its standard input and
// output, such as a JVM with a driver. It is safe for concurrent use.
//
// It is to end with its standard input, so that none outlives this process.
type Process struct {
	cmd    *exec.Cmd
	client *rpc.Client
	stderr tail
	last   atomic.Int64  // the last request's name
	ended  chan struct{} // closed when the process is gone
	err    error         // how it ended; to be read once ended is closed
}

// Start runs the class of the driver in a JVM with these options. The error is a
// *MissingError if this machine lacks what it takes.
func (d Driver) Start(class string, options ...string) (*Process, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return nil, &MissingError{"no java in PATH"}
	}
	path, err := d.classPath()
	if err != nil {
		return nil, err
	}
	options = append(options, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", path, class)
	return Start(exec.Command(java, options...), "the JVM with "+d.Name)
}

// Start starts a process; name is for errors.
func Start(cmd *exec.Cmd, name string) (*Process, error) {
	p := &Process{cmd: cmd, ended: make(chan struct{})}
	stdout, answers := io.Pipe()
	cmd.Stdout, cmd.Stderr = answers, &p.stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() {
		if err := cmd.Wait(); err != nil {
			p.err = fmt.Errorf("%s ended: %w; its stderr:\n%s", name, err, p.Stderr())
		}
		close(p.ended)
		_ = answers.Close()
	}()
	p.client = jsonrpc.NewClient(struct {
		io.Reader
		io.WriteCloser
	}{stdout, stdin})
	return p, nil
}

// Close ends the process, by force if it does not go by itself.
func (p *Process) Close() {
	_ = p.client.Close()
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		p.Kill()
	}
}

// Kill ends the process at once, whatever it does.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// Wait waits until the process has ended. The error is nil if it exited with 0.
func (p *Process) Wait() error {
	<-p.ended
	return p.err
}

// Stderr returns the end of what it has logged.
func (p *Process) Stderr() string { return p.stderr.String() }

// Call sends a request and waits for its answer. If ctx ends first, the thread in Java that
// serves the request is interrupted; what Redisson asked of the server may still happen,
// and it goes on polling for an acquire that waits until its client is closed.
func Call[T any](ctx context.Context, p *Process, op string, args ...any) (answer T, err error) {
	if err := ctx.Err(); err != nil {
		return answer, err
	}
	name := fmt.Sprint(p.last.Add(1))
	var got T
	call := p.send(op, &got, append([]any{name}, args...))
	select {
	case <-call.Done:
	case <-ctx.Done():
		p.send("cancel", new(any), []any{name + " cancelled", name})
		return answer, fmt.Errorf("%s: %w", op, ctx.Err())
	}
	thrown, threw := errors.AsType[rpc.ServerError](call.Error)
	switch {
	case call.Error == nil:
		return got, nil
	case !threw:
		p.Close() // it has ended, or does not speak the protocol
		return answer, errors.Join(fmt.Errorf("%s: %w", op, call.Error), p.err)
	}
	class, message, _ := strings.Cut(string(thrown), ": ")
	if class == "UnsupportedException" {
		return answer, fmt.Errorf("%s: %w", op, ErrUnsupported)
	}
	return answer, fmt.Errorf("%s: %w", op, &ThrownError{class, message})
}

func (p *Process) send(op string, answer any, args []any) *rpc.Call {
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = fmt.Sprint(arg)
	}
	return p.client.Go(op, words, answer, make(chan *rpc.Call, 1))
}

// tail is a writer that keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailSize = 16 << 10

func (t *tail) Write(text []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, text...)
	t.text = append(t.text[:0], t.text[max(0, len(t.text)-tailSize):]...)
	return len(text), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}

// StartRedisson starts a JVM with this release of Redisson, or one of model.Unreleased;
// source is the folder compat_test/java.
func StartRedisson(source, release string) (*Process, error) {
	jar := cmp.Or(model.Unreleased[release], release)
	d := Driver{
		Name: "Redisson " + release, Source: source, Version: jar, Properties: []string{"-Dredisson.version=" + jar},
	}
	if !strings.HasPrefix(release, "3.") {
		d.Properties = append(d.Properties, "-Djackson.version=2.20.0")
	}
	if dir := os.Getenv("RRL_CACHE"); dir != "" {
		d.Cache = filepath.Join(dir, "redisson-driver")
	}
	options := []string{"-Drratelimiter.release=" + release, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError"}
	// What the codecs of older releases reach into.
	for _, pkg := range []string{
		"lang", "util", "util.concurrent", "util.concurrent.atomic", "util.concurrent.locks",
		"math", "nio", "net", "time", "io", "text", "security",
	} {
		options = append(options, "--add-opens", "java.base/java."+pkg+"=ALL-UNNAMED")
	}
	j, err := d.Start("rratelimiter.driver.Driver", options...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	got, err := Call[string](ctx, j, "version")
	if err == nil && got != jar {
		err = fmt.Errorf("the JVM has Redisson %s, not %s", got, jar)
	}
	if err != nil {
		j.Close()
		return nil, err
	}
	return j, nil
}
