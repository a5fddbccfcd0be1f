package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/benchmarks/load"
	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
)

// Redisson is the name of the original, in its two ways of asking.
const (
	Redisson      = "Redisson"
	RedissonAsync = Redisson + ", async"
	Bucket4jAsync = "bucket4j, async"
)

var java = []Kind{
	{
		Name:     Redisson,
		Setup:    "4.7.0 `tryAcquire()`, one `RRateLimiter` kept for each limiter; a thread for each caller",
		Java:     true,
		Aim:      true,
		Log:      true,
		Value:    valueKey,
		Commands: map[string]float64{"evalsha": 0, "eval": 0},
		Open:     openJava("redisson", "sync"),
	},
	{
		Name:     RedissonAsync,
		Setup:    "the same by `tryAcquireAsync()`: each caller asks again when its answer comes, and no thread waits",
		Java:     true,
		Aim:      true,
		Log:      true,
		Value:    valueKey,
		Commands: map[string]float64{"evalsha": 0, "eval": 0},
		Open:     openJava("redisson", "async"),
	},
	{
		Name: "bucket4j",
		Setup: "8.14.0 `tryConsume(1)` on Lettuce, greedy refill, `Optimizations.batching()`, one proxy kept for each " +
			"limiter; a thread for each caller",
		Java: true,
		// The compare-and-swap reads what the client has read.
		Commands: map[string]float64{"get": 1, "evalsha": 0, "eval": 0, "set": 1},
		Open:     openJava("bucket4j", "sync"),
	},
	{
		Name:     Bucket4jAsync,
		Setup:    "the same by its async proxies: each caller asks again when its answer comes, and no thread waits",
		Java:     true,
		Commands: map[string]float64{"get": 1, "evalsha": 0, "eval": 0, "set": 1},
		Open:     openJava("bucket4j", "async"),
	},
}

// jvm is a JVM with the driver. What goes through its pipe is what came of a
// whole load, since its callers are the JVM's own threads. It serves one call
// at a time.
type jvm struct {
	stdin  io.WriteCloser
	stderr javadriver.Tail
	exited chan struct{}

	mu  sync.Mutex
	out *bufio.Reader

	users int // clients that are open, under jvms.mu
	last  int // the last client's id
}

// jvms has one JVM for each library, so that what its compiler learns serves all
// of the library's clients.
var jvms = struct {
	mu   sync.Mutex
	open map[string]*jvm
}{open: map[string]*jvm{}}

// inJava is a Peer whose callers are in a JVM.
type inJava struct {
	jvm     *jvm
	library string
	id      int
	mode    string // of its load: sync or async
}

func openJava(library, mode string) func(context.Context, string, int) (Peer, error) {
	return func(ctx context.Context, addr string, connections int) (Peer, error) {
		jvms.mu.Lock()
		defer jvms.mu.Unlock()
		machine := jvms.open[library]
		if machine == nil {
			var err error
			if machine, err = startJVM(); err != nil {
				return nil, err
			}
			jvms.open[library] = machine
		}
		machine.users++
		machine.last++
		p := &inJava{jvm: machine, library: library, id: machine.last, mode: mode}
		if _, err := p.call(ctx, "open", library, addr, connections); err != nil {
			p.leave()
			return nil, err
		}
		return p, nil
	}
}

func (p *inJava) Close() error {
	jvms.mu.Lock()
	defer jvms.mu.Unlock()
	_, err := p.call(context.Background(), "close")
	p.leave()
	return err
}

// leave ends the JVM if nobody uses it.
func (p *inJava) leave() {
	if p.jvm.users--; p.jvm.users == 0 {
		delete(jvms.open, p.library)
		p.jvm.close()
	}
}

func startJVM() (*jvm, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return nil, &javadriver.MissingError{Why: "no java in PATH"}
	}
	classPath, err := buildJava()
	if err != nil {
		return nil, err
	}
	m := &jvm{exited: make(chan struct{})}
	// The driver ends with its standard input, that is with this process.
	cmd := exec.Command(java, "-Xms1g", "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-cp", classPath, "rratelimiter.bench.Bench")
	cmd.Stderr = &m.stderr
	if m.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	m.out = bufio.NewReader(stdout)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting java: %w", err)
	}
	go func() {
		_, _ = cmd.Process.Wait()
		close(m.exited)
	}()
	return m, nil
}

func (m *jvm) close() {
	_ = m.stdin.Close()
	<-m.exited
}

// JavaVersion returns the release of the JVM that measures.
func JavaVersion(ctx context.Context) (string, error) {
	m, err := startJVM()
	if err != nil {
		return "", err
	}
	defer m.close()
	version, err := m.call(ctx, "version")
	if err != nil {
		return "", err
	}
	return url.QueryUnescape(version)
}

// call sends a request and waits for the answer. Once ctx is over the JVM is
// given up.
func (m *jvm) call(ctx context.Context, words ...string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = m.stdin.Close() })
	defer stop()
	_, err := io.WriteString(m.stdin, strings.Join(words, " ")+"\n")
	var line string
	if err == nil {
		line, err = m.out.ReadString('\n')
	}
	if err != nil {
		return "", errors.Join(ctx.Err(), fmt.Errorf("the JVM: %s: %w\n%s", words[0], err, m.stderr.String()))
	}
	status, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	if status != "ok" {
		why, _ := url.QueryUnescape(rest)
		return "", fmt.Errorf("the JVM: %s: %s", words[0], why)
	}
	return rest, nil
}

func (p *inJava) call(ctx context.Context, op string, args ...any) (string, error) {
	words := []string{op, strconv.Itoa(p.id)}
	for _, arg := range args {
		words = append(words, url.QueryEscape(fmt.Sprint(arg)))
	}
	return p.jvm.call(ctx, words...)
}

func (p *inJava) number(ctx context.Context, op string, args ...any) (int, error) {
	answer, err := p.call(ctx, op, args...)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(answer)
}

func (p *inJava) Make(ctx context.Context, prefix string, n int, rule Rule) error {
	_, err := p.call(ctx, "make", prefix, n, rule.Limit, rule.Interval.Milliseconds())
	return err
}

func (p *inJava) Each(ctx context.Context) (int, error) { return p.number(ctx, "each") }

func (p *inJava) Drain(ctx context.Context, most int) (int, error) {
	return p.number(ctx, "drain", most)
}

func (p *inJava) Load(ctx context.Context, l load.Load) (*load.Result, error) {
	var exponent float64
	switch {
	case l.Pause > 0 || l.Draw == load.Own:
		return nil, errors.New("callers in Java don't pause, nor have limiters of their own")
	case l.Draw == load.Zipf:
		exponent = load.ZipfExponent
	}
	answer, err := p.call(ctx, "load", p.mode, l.Callers, l.Warm.Milliseconds(), l.Length.Milliseconds(), exponent)
	if err != nil {
		return nil, err
	}
	words := strings.Split(answer, " ")
	if len(words) != 8 {
		return nil, fmt.Errorf("the JVM: load: answer of %d words", len(words))
	}
	r := &load.Result{}
	var elapsed, cpu int64
	for i, n := range []*int64{&r.Granted, &r.Refused, &r.Errors, &r.All, &elapsed, &cpu} {
		if *n, err = strconv.ParseInt(words[i], 10, 64); err != nil {
			return nil, fmt.Errorf("the JVM: load: %w", err)
		}
	}
	r.Elapsed, r.CPU = time.Duration(elapsed), time.Duration(cpu)
	if r.FirstError, err = url.QueryUnescape(words[6]); err != nil {
		return nil, fmt.Errorf("the JVM: load: %w", err)
	}
	r.Failed = r.Errors
	return r, r.Latencies.UnmarshalText([]byte(words[7]))
}

func (p *inJava) Crowd(ctx context.Context, c load.Crowd) ([]load.Grant, error) {
	answer, err := p.call(ctx, "crowd", c.Callers, c.From.Milliseconds(), c.To.Milliseconds())
	if err != nil || answer == "" {
		return nil, err
	}
	var grants []load.Grant
	for text := range strings.SplitSeq(answer, ",") {
		var sent, answered int64
		if _, err := fmt.Sscanf(text, "%d:%d", &sent, &answered); err != nil {
			return nil, fmt.Errorf("the JVM: crowd: %q: %w", text, err)
		}
		grants = append(grants, load.Grant{Sent: time.Duration(sent), Answered: time.Duration(answered)})
	}
	return grants, nil
}
