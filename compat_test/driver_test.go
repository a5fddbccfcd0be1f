package compat_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/javadriver"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// javaError is what a Redisson call threw.
type javaError struct {
	Class   string // simple name of the exception's class
	Message string
}

func (e *javaError) Error() string { return e.Class + ": " + e.Message }

// errUnsupported: the Redisson release has no such operation.
var errUnsupported = errors.New("not in this Redisson release")

// javaDriver is a JVM with one release of Redisson, speaking the protocol of
// Driver.java. It is safe for concurrent use.
//
// The JVM ends with its stdin, so that none outlives the test binary, however
// that ends.
type javaDriver struct {
	process *os.Process
	stderr  javadriver.Tail

	mu      sync.Mutex // held while a line is written too
	stdin   io.WriteCloser
	waiting map[string]chan string // by request id; each takes one answer
	last    int                    // the last request's id

	ended chan struct{} // closed when the JVM is gone
	err   error         // why; to be read once ended is closed
}

// startDriver starts a JVM with this release of Redisson; the end of the test
// ends it. Most tests share one instead: sharedDriver.
func startDriver(t testing.TB, version string) *javaDriver {
	t.Helper()
	redistest.SkipShort(t, "a JVM with Redisson")
	d, err := newJavaDriver(version)
	skipIfMissing(t, err)
	t.Cleanup(d.close)
	return d
}

var shared struct {
	once   sync.Once
	driver *javaDriver
	err    error
}

// sharedDriver returns the test binary's JVM, with the release that -redisson
// names. The first call starts it.
func sharedDriver(t testing.TB) *javaDriver {
	t.Helper()
	redistest.SkipShort(t, "a JVM with Redisson")
	shared.once.Do(func() { shared.driver, shared.err = newJavaDriver(*redissonVersion) })
	skipIfMissing(t, shared.err)
	return shared.driver
}

func skipIfMissing(t testing.TB, err error) {
	t.Helper()
	if missing, ok := errors.AsType[*javadriver.MissingError](err); ok {
		redistest.SkipOrFail(t, missing.Why)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func newJavaDriver(version string) (*javaDriver, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return nil, &javadriver.MissingError{Why: "no java in PATH"}
	}
	classPath, err := buildJava(version)
	if err != nil {
		return nil, err
	}

	args := []string{
		"-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
	}
	// What the codecs of older releases reach into.
	for _, pkg := range []string{
		"lang", "util", "util.concurrent", "util.concurrent.atomic", "util.concurrent.locks",
		"math", "nio", "net", "time", "io", "text", "security",
	} {
		args = append(args, "--add-opens", "java.base/java."+pkg+"=ALL-UNNAMED")
	}
	args = append(args, "-cp", classPath, "rratelimiter.driver.Driver")

	d := &javaDriver{
		waiting: make(map[string]chan string),
		ended:   make(chan struct{}),
	}
	cmd := exec.Command(java, args...)
	cmd.Stderr = &d.stderr
	if d.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting java: %w", err)
	}
	d.process = cmd.Process
	go func() {
		d.readAnswers(stdout)
		d.err = fmt.Errorf("the JVM with Redisson %s was closed", version)
		if err := cmd.Wait(); err != nil {
			d.err = fmt.Errorf("the JVM with Redisson %s ended: %w; its stderr:\n%s", version, err, d.stderr.String())
		}
		close(d.ended)
	}()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	got, err := d.call(ctx, "version")
	if err == nil && got != version {
		err = fmt.Errorf("the JVM has Redisson %s, not %s", got, version)
	}
	if err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// close ends the JVM, by force where it does not go by itself.
func (d *javaDriver) close() {
	_ = d.stdin.Close()
	select {
	case <-d.ended:
	case <-time.After(10 * time.Second):
		_ = d.process.Kill()
		<-d.ended
	}
}

func (d *javaDriver) readAnswers(stdout io.Reader) {
	r := bufio.NewReader(stdout)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		id, answer, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		d.mu.Lock()
		if c, ok := d.waiting[id]; ok {
			delete(d.waiting, id)
			c <- answer
		}
		d.mu.Unlock()
	}
}

// call sends a request and waits for its answer. If ctx ends first, the thread
// that serves the request is interrupted; what Redisson asked of the server
// may still happen, and it goes on polling for an acquire that waits until
// its client is closed.
func (d *javaDriver) call(ctx context.Context, op string, args ...any) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	words := []string{"", op}
	for _, arg := range args {
		words = append(words, url.QueryEscape(fmt.Sprint(arg)))
	}
	answered := make(chan string, 1)

	d.mu.Lock()
	d.last++
	id := strconv.Itoa(d.last)
	words[0] = id
	d.waiting[id] = answered
	_, err := io.WriteString(d.stdin, strings.Join(words, " ")+"\n")
	d.mu.Unlock()
	if err != nil {
		<-d.ended
		return "", d.err
	}

	select {
	case answer := <-answered:
		return parseAnswer(op, answer)
	case <-d.ended:
		return "", d.err
	case <-ctx.Done():
		d.mu.Lock()
		delete(d.waiting, id)
		_, _ = fmt.Fprintf(d.stdin, "%s cancel %s\n", id, id)
		d.mu.Unlock()
		return "", fmt.Errorf("redisson %s: %w", op, ctx.Err())
	}
}

func parseAnswer(op, answer string) (string, error) {
	status, rest, _ := strings.Cut(answer, " ")
	switch status {
	case "ok":
		return rest, nil
	case "unsupported":
		return "", fmt.Errorf("redisson %s: %w", op, errUnsupported)
	case "err":
		class, text, _ := strings.Cut(rest, " ")
		message, err := url.QueryUnescape(text)
		if err != nil {
			return "", fmt.Errorf("redisson %s: answer %q: %w", op, answer, err)
		}
		return "", fmt.Errorf("redisson %s: %w", op, &javaError{class, message})
	}
	return "", fmt.Errorf("redisson %s: answer %q", op, answer)
}
