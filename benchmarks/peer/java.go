package peer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"

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

// jvm is a JVM with the driver, whose own threads are the callers of a load.
type jvm struct {
	*javadriver.Process

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
			started, err := startJVM()
			if err != nil {
				return nil, err
			}
			machine = &jvm{Process: started}
			jvms.open[library] = machine
		}
		machine.users++
		machine.last++
		p := &inJava{jvm: machine, library: library, id: machine.last, mode: mode}
		if _, err := call[string](ctx, p, "open", library, addr, connections); err != nil {
			p.leave()
			return nil, err
		}
		return p, nil
	}
}

func (p *inJava) Close() error {
	jvms.mu.Lock()
	defer jvms.mu.Unlock()
	_, err := call[string](context.Background(), p, "close")
	p.leave()
	return err
}

// leave ends the JVM if it has no users left.
func (p *inJava) leave() {
	if p.jvm.users--; p.jvm.users == 0 {
		delete(jvms.open, p.library)
		p.jvm.Close()
	}
}

func startJVM() (*javadriver.Process, error) {
	source, err := javaSource()
	if err != nil {
		return nil, err
	}
	return javadriver.Driver{Name: "the benchmark", Source: source}.Start("rratelimiter.bench.Bench", "-Xms1g", "-Xmx1g")
}

// javaSource finds the driver's folder from wherever in the repository this runs.
func javaSource() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		for _, source := range []string{filepath.Join(dir, "java"), filepath.Join(dir, "benchmarks", "java")} {
			if _, err := os.Stat(filepath.Join(source, "src", "main", "java", "rratelimiter", "bench")); err == nil {
				return source, nil
			}
		}
	}
	return "", errors.New("the driver's Java sources are not here")
}

// JavaVersion returns the release of the JVM that measures.
func JavaVersion(ctx context.Context) (string, error) {
	j, err := startJVM()
	if err != nil {
		return "", err
	}
	defer j.Close()
	return javadriver.Call[string](ctx, j, "version")
}

// call makes the JVM do something with the client. The JVM serves one call at a time.
func call[T any](ctx context.Context, p *inJava, op string, args ...any) (T, error) {
	return javadriver.Call[T](ctx, p.jvm.Process, op, append([]any{p.id}, args...)...)
}

func (p *inJava) Make(ctx context.Context, prefix string, n int, rule Rule) error {
	_, err := call[string](ctx, p, "make", prefix, n, rule.Limit, rule.Interval.Milliseconds())
	return err
}

func (p *inJava) Each(ctx context.Context) (int, error) { return call[int](ctx, p, "each") }

func (p *inJava) Drain(ctx context.Context, most int) (int, error) {
	return call[int](ctx, p, "drain", most)
}

func (p *inJava) Load(ctx context.Context, l load.Load) (*load.Result, error) {
	var exponent float64
	switch {
	case l.Pause > 0 || l.Draw == load.Own:
		return nil, errors.New("callers in Java don't pause, nor have limiters of their own")
	case l.Draw == load.Zipf:
		exponent = load.ZipfExponent
	}
	return call[*load.Result](ctx, p, "load", p.mode, l.Callers, l.Warm.Milliseconds(), l.Length.Milliseconds(), exponent)
}

func (p *inJava) Crowd(ctx context.Context, c load.Crowd) ([]load.Grant, error) {
	return call[[]load.Grant](ctx, p, "crowd", c.Callers, c.From.Milliseconds(), c.To.Milliseconds())
}
