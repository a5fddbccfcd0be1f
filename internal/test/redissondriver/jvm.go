// Package redissondriver runs Java programs with real Redisson for tests beside it:
// compat_test/java, with the release of Redisson that is asked for.
package redissondriver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
)

// ThrownError is what a Redisson call threw.
type ThrownError struct {
	Class   string // simple name of the exception's class
	Message string
}

func (e *ThrownError) Error() string { return e.Class + ": " + e.Message }

// ErrUnsupported is what a call returns that the Redisson release does not have.
var ErrUnsupported = errors.New("not in this Redisson release")

// JVM is one with a release of Redisson, speaking the protocol of Driver.java. It is
// safe for concurrent use.
//
// It ends with its stdin, so that none outlives the test binary, however that ends.
type JVM struct {
	process *os.Process
	stderr  javadriver.Tail

	mu      sync.Mutex // held while a line is written too
	stdin   io.WriteCloser
	waiting map[string]chan string // by request id; each takes one answer
	last    int                    // the last request's id

	ended chan struct{} // closed when the JVM is gone
	err   error         // why; to be read once ended is closed
}

// classPath returns that of the driver with this release of Redisson.
func classPath(source, version string) (string, error) {
	d := javadriver.Driver{
		Name: "Redisson " + version, Source: source, Version: version, Properties: []string{"-Dredisson.version=" + version},
	}
	if !strings.HasPrefix(version, "3.") {
		d.Properties = append(d.Properties, "-Djackson.version=2.20.0")
	}
	if dir := os.Getenv("RRL_CACHE"); dir != "" {
		d.Cache = filepath.Join(dir, "redisson-driver")
	}
	return d.ClassPath()
}

// Start starts a JVM with this release of Redisson; source is the folder compat_test/java.
// The error is a *javadriver.MissingError where this machine lacks what it takes.
func Start(source, version string) (*JVM, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return nil, &javadriver.MissingError{Why: "no java in PATH"}
	}
	path, err := classPath(source, version)
	if err != nil {
		return nil, err
	}

	j := &JVM{
		waiting: make(map[string]chan string),
		ended:   make(chan struct{}),
	}
	cmd := exec.Command(java, arguments(path)...)
	cmd.Stderr = &j.stderr
	if j.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting java: %w", err)
	}
	j.process = cmd.Process
	go func() {
		j.readAnswers(stdout)
		j.err = fmt.Errorf("the JVM with Redisson %s was closed", version)
		if err := cmd.Wait(); err != nil {
			j.err = fmt.Errorf("the JVM with Redisson %s ended: %w; its stderr:\n%s", version, err, j.stderr.String())
		}
		close(j.ended)
	}()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	got, err := j.Call(ctx, "version")
	if err == nil && got != version {
		err = fmt.Errorf("the JVM has Redisson %s, not %s", got, version)
	}
	if err != nil {
		j.Close()
		return nil, err
	}
	return j, nil
}

// arguments are those of a JVM that runs the driver.
func arguments(path string) []string {
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
	return append(args, "-cp", path, "rratelimiter.driver.Driver")
}

// Close ends the JVM, by force where it does not go by itself.
func (j *JVM) Close() {
	_ = j.stdin.Close()
	select {
	case <-j.ended:
	case <-time.After(10 * time.Second):
		_ = j.process.Kill()
		<-j.ended
	}
}

// Kill ends the JVM at once, whatever it does.
func (j *JVM) Kill() {
	_ = j.process.Kill()
	<-j.ended
}

// Stderr returns the end of what the JVM has logged.
func (j *JVM) Stderr() string { return j.stderr.String() }

func (j *JVM) readAnswers(stdout io.Reader) {
	r := bufio.NewReader(stdout)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		id, answer, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		j.mu.Lock()
		if c, ok := j.waiting[id]; ok {
			delete(j.waiting, id)
			c <- answer
		}
		j.mu.Unlock()
	}
}

// Call sends a request and waits for its answer. If ctx ends first, the thread
// that serves the request is interrupted; what Redisson asked of the server
// may still happen, and it goes on polling for an acquire that waits until
// its client is closed.
func (j *JVM) Call(ctx context.Context, op string, args ...any) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	words := []string{"", op}
	for _, arg := range args {
		words = append(words, url.QueryEscape(fmt.Sprint(arg)))
	}
	answered := make(chan string, 1)

	j.mu.Lock()
	j.last++
	id := strconv.Itoa(j.last)
	words[0] = id
	j.waiting[id] = answered
	_, err := io.WriteString(j.stdin, strings.Join(words, " ")+"\n")
	j.mu.Unlock()
	if err != nil {
		<-j.ended
		return "", j.err
	}

	select {
	case answer := <-answered:
		return parseAnswer(op, answer)
	case <-j.ended:
		return "", j.err
	case <-ctx.Done():
		j.mu.Lock()
		delete(j.waiting, id)
		_, _ = fmt.Fprintf(j.stdin, "%s cancel %s\n", id, id)
		j.mu.Unlock()
		return "", fmt.Errorf("redisson %s: %w", op, ctx.Err())
	}
}

func parseAnswer(op, answer string) (string, error) {
	status, rest, _ := strings.Cut(answer, " ")
	switch status {
	case "ok":
		return rest, nil
	case "unsupported":
		return "", fmt.Errorf("redisson %s: %w", op, ErrUnsupported)
	case "err":
		class, text, _ := strings.Cut(rest, " ")
		message, err := url.QueryUnescape(text)
		if err != nil {
			return "", fmt.Errorf("redisson %s: answer %q: %w", op, answer, err)
		}
		return "", fmt.Errorf("redisson %s: %w", op, &ThrownError{class, message})
	}
	return "", fmt.Errorf("redisson %s: answer %q", op, answer)
}
