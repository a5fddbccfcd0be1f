// Package javadriver builds, starts and calls the Java programs that tests and measurements run beside this module.
package javadriver

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
// It must end with its standard input, so that none outlives this process.
type Process struct {
	cmd    *exec.Cmd
	client *rpc.Client
	stderr tail
	last   atomic.Int64  // the last request's name
	ended  chan struct{} // closed when the process is gone
	err    error         // how it ended; read it once ended is closed
}

// Driver is a Maven project whose compile phase writes "classes" and "classpath" into the folder that its property driver.directory names.
type Driver struct {
	Name       string   // for errors
	Source     string   // the folder of its pom.xml
	Cache      string   // where builds are kept; "" for target in Source
	Version    string   // that of a library in the build, or ""
	Properties []string // given to Maven, as -Dname=value
}

// Start runs the driver's class in a JVM with these options. The error is a *MissingError if this machine lacks what it takes.
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

// Call sends a request and waits for its answer. If ctx ends first, the thread in Java that serves the request is interrupted; what
// Redisson asked of the server may still happen, and it goes on polling for an acquire that waits until its client is closed.
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
	if class == "NoSuchMethodException" {
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

// tail is a writer that keeps the end of its input.
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

// StartRedisson starts a JVM with this release of Redisson, or one of model.Unreleased; source is the folder compat_test/java.
func StartRedisson(source, release string) (*Process, error) {
	jar := cmp.Or(model.Unreleased[release], release)
	d := redisson(source, release, jar)
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

func redisson(source, release, jar string) Driver {
	d := Driver{Name: "Redisson " + release, Source: source, Version: jar, Properties: []string{"-Dredisson.version=" + jar}}
	if !strings.HasPrefix(release, "3.") {
		d.Properties = append(d.Properties, "-Djackson.version=2.20.0")
	}
	if dir := os.Getenv("RRL_CACHE"); dir != "" {
		d.Cache = filepath.Join(dir, "redisson-driver")
	}
	return d
}

// RedissonClassPath returns the class path of programs that use this release of Redisson.
// The error is a *MissingError if this machine lacks what it takes.
func RedissonClassPath(source, release string) (string, error) {
	return redisson(source, release, release).classPath()
}

// MissingError says what this machine lacks to run a driver.
type MissingError struct{ Why string }

func (e *MissingError) Error() string { return e.Why }

var building sync.Mutex

// classPath returns the driver's class path. What Maven has built before is used
// again while the sources are the same and the jars still there. The error is a
// *MissingError if there is no Maven, or no network to get what it needs.
func (d Driver) classPath() (string, error) {
	building.Lock()
	defer building.Unlock()
	source, err := filepath.Abs(d.Source)
	key, unread := d.key(source)
	cache, unnamed := filepath.Abs(cmp.Or(d.Cache, filepath.Join(source, "target")))
	if err := errors.Join(err, unread, unnamed, os.MkdirAll(cache, 0o755)); err != nil {
		return "", err
	}
	dir := filepath.Join(cache, strings.TrimPrefix(d.Version+"-"+key, "-"))
	if classPath, ok := readClassPath(dir); ok {
		return classPath, nil
	}
	// Built aside, since another process may build the same.
	tmp, err := os.MkdirTemp(cache, "build-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := d.runMaven(source, tmp); err != nil {
		return "", err
	}
	// A complete build of another process is kept: its JVM may be running.
	if err := os.Rename(tmp, dir); err != nil {
		if classPath, ok := readClassPath(dir); ok {
			return classPath, nil
		}
		if err := errors.Join(os.RemoveAll(dir), os.Rename(tmp, dir)); err != nil {
			return "", err
		}
	}
	classPath, ok := readClassPath(dir)
	if !ok {
		return "", fmt.Errorf("the build in %s is not complete", dir)
	}
	return classPath, nil
}

// key names what the driver is built from, by its content.
func (d Driver) key(source string) (string, error) {
	tree := os.DirFS(source)
	h := sha256.New()
	h.Write([]byte(d.Version))
	for _, root := range []string{"pom.xml", "src"} {
		err := fs.WalkDir(tree, root, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			text, err := fs.ReadFile(tree, name)
			h.Write([]byte("\x00" + name + "\x00"))
			h.Write(text)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:6]), nil
}

func readClassPath(dir string) (string, bool) {
	jars, err := os.ReadFile(filepath.Join(dir, "classpath"))
	if err != nil {
		return "", false
	}
	classPath := filepath.Join(dir, "classes") + string(os.PathListSeparator) + strings.TrimSpace(string(jars))
	for _, name := range filepath.SplitList(classPath) {
		if _, err := os.Stat(name); err != nil {
			return "", false
		}
	}
	return classPath, true
}

// runMaven builds into dir, without the network if the local repository has all it takes.
func (d Driver) runMaven(source, dir string) error {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return &MissingError{"no mvn in PATH to build the " + d.Name + " driver with"}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var out []byte
	for _, mode := range []string{"--offline", "--update-snapshots"} {
		args := append([]string{"-q", "-B", mode, "-Dstyle.color=never", "-Ddriver.directory=" + dir}, d.Properties...)
		cmd := exec.CommandContext(ctx, mvn, append(args, "compile")...)
		cmd.Dir = source
		cmd.WaitDelay = 5 * time.Second
		if out, err = cmd.CombinedOutput(); err == nil {
			return nil
		}
	}
	for line := range strings.Lines(string(out)) {
		if _, why, ok := strings.Cut(line, "[ERROR] "); ok && strings.Contains(why, "Could not transfer") {
			return &MissingError{fmt.Sprintf("Maven can't get %s: %s", d.Name, strings.TrimSpace(why))}
		}
	}
	return fmt.Errorf("building the %s driver: %w\n%s", d.Name, err, out)
}
