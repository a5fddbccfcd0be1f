package redistest

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/netpipe"
)

//go:embed clock/clock.c
var clockSource string

// errNoCompiler: this machine cannot make the library that moves a server's clock.
var errNoCompiler = errors.New("no server can be given a clock of the test's own")

// Virtual runs test in a testing/synctest bubble, with a client of a server of its own in which time.Sleep moves TIME and the times
// to live. It is a miniredis; if RRL_ENGINE leaves miniredis out it is a real one, whose clock a preloaded library has replaced.
func Virtual(t *testing.T, test func(t *testing.T, rdb Client)) {
	t.Helper()
	Stepping(t, func(t *testing.T, rdb Client, _ func(time.Duration)) { test(t, rdb) })
}

// VirtualServer is Virtual on a real server, whatever RRL_ENGINE leaves out.
func VirtualServer(t *testing.T, test func(t *testing.T, rdb Client)) {
	t.Helper()
	steppingServer(t, func(t *testing.T, rdb Client, _ func(time.Duration)) { test(t, rdb) })
}

// Stepping is Virtual with a function that sets the server's clock forward against the bubble's, or back. The moments at which
// keys expire stay where they are, as Redis keeps them.
func Stepping(t *testing.T, test func(t *testing.T, rdb Client, step func(by time.Duration))) {
	t.Helper()
	if engine() == everyEngine {
		synctest.Test(t, func(t *testing.T) {
			rdb, step := steppingMini(t)
			test(t, rdb, step)
		})
		return
	}
	steppingServer(t, test)
}

// steppingMini returns a client of a miniredis, by which each request brings the miniredis its time once that has been stepped.
func steppingMini(t *testing.T) (Client, func(by time.Duration)) {
	_, m := newMini(t)
	var ahead atomic.Int64
	var stepped atomic.Bool
	//nolint:unparam // a server's clock can fail to be set
	set := func() error {
		if stepped.Load() {
			m.SetTime(time.Now().Add(time.Duration(ahead.Load())))
		}
		return nil
	}
	rdb := memoryClient(t, nil, func() (net.Conn, error) {
		conn, err := dialMini(m)()
		return &steppedConn{conn, set}, err
	})
	return rdb, func(by time.Duration) {
		left := make(map[string]time.Duration)
		for _, key := range m.Keys() {
			left[key] = m.TTL(key)
		}
		stepped.Store(true)
		m.SetTime(time.Now().Add(time.Duration(ahead.Add(int64(by)))))
		for key, ttl := range left {
			// Those that expire meanwhile miniredis removes by itself.
			if ttl > 0 && by < 0 {
				m.SetTTL(key, ttl-by)
			}
		}
	}
}

type steppedConn struct {
	net.Conn

	set func() error
}

func (c *steppedConn) Write(p []byte) (int, error) {
	if err := c.set(); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

func steppingServer(t *testing.T, test func(t *testing.T, rdb Client, step func(by time.Duration))) {
	t.Helper()
	opt := &Options{}
	switch topology := CurrentTopology(t); topology {
	case Single:
	case RESP2:
		opt.Protocol = 2
	default:
		t.Skipf("moves the clock, which does not go with %s", topology)
	}
	SkipShort(t, "a real redis-server")
	// Outside of the bubble: it would wait for the server's end.
	c, err := takeClocked()
	if errors.Is(err, errNoCompiler) {
		SkipOrFail(t, err.Error())
	}
	check(t, err)
	defer c.putBack(t)
	synctest.Test(t, func(t *testing.T) {
		test(t, memoryClient(t, opt, c.dial), func(by time.Duration) { c.ahead.Add(int64(by)) })
	})
}

// clocked is a server whose clock shows the time in its file.
type clocked struct {
	*Server

	ahead atomic.Int64 // of the bubble's clock, in nanoseconds
}

// idle are servers that no test uses at the moment. They go with the test binary.
var idle struct {
	sync.Mutex
	servers []*clocked
}

func takeClocked() (*clocked, error) {
	idle.Lock()
	defer idle.Unlock()
	if n := len(idle.servers); n > 0 {
		c := idle.servers[n-1]
		idle.servers = idle.servers[:n-1]
		return c, nil
	}
	return startClocked()
}

// putBack leaves the server to another test, like new.
func (c *clocked) putBack(t *testing.T) {
	t.Helper()
	err := c.do(func(rdb Client) error {
		ctx := context.Background()
		// Commands that they have sent and that were not run yet go too.
		if err := rdb.ClientKillByFilter(ctx, "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
			return err
		}
		return errors.Join(rdb.FlushAll(ctx).Err(), rdb.ScriptFlush(ctx).Err())
	})
	if err != nil {
		c.Kill()
		return
	}
	c.ahead.Store(0)
	idle.Lock()
	defer idle.Unlock()
	idle.servers = append(idle.servers, c)
}

func startClocked() (*clocked, error) {
	library, err := clockLibrary()
	if err != nil {
		return nil, err
	}
	// When the clock of a bubble starts.
	bubble := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	s, err := start(Default, spec{prepare: func(s *Server, port string) ([]string, error) {
		return s.usualArgs(port), s.replaceClock(library, bubble.UnixMicro())
	}})
	return &clocked{Server: s}, err
}

// replaceClock has the server, once it is started, look at a file for the time.
func (s *Server) replaceClock(library string, micros int64, env ...string) error {
	path := s.file("clock")
	var err error
	if s.clock, err = os.Create(path); err != nil {
		return err
	}
	s.env = append([]string{"LD_PRELOAD=" + library, "REDISTEST_CLOCK=" + path}, env...)
	return s.setClock(micros)
}

func (s *Server) setClock(micros int64) error {
	_, err := s.clock.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(micros)), 0)
	return err
}

// StartStepped is [StartRedis] for a server whose clock runs, and can be set: see
// [Server.SetAhead]. It skips, too, if no compiler is installed.
func StartStepped(t testing.TB, args ...string) *Server {
	t.Helper()
	library, err := clockLibrary()
	if errors.Is(err, errNoCompiler) {
		SkipOrFail(t, err.Error())
	}
	must(t, err)
	return startFor(t, Default, spec{args: args, prepare: func(s *Server, port string) ([]string, error) {
		return s.usualArgs(port), s.replaceClock(library, 0, "REDISTEST_CLOCK_AHEAD=1")
	}})
}

// SetAhead sets the clock of a server by [StartStepped] so far ahead of the
// machine's, or behind it. The moments at which keys expire stay where they are.
func (s *Server) SetAhead(t testing.TB, by time.Duration) {
	t.Helper()
	must(t, s.setClock(by.Microseconds()))
}

// dial returns a connection by which each request brings the server the client's time.
func (c *clocked) dial() (net.Conn, error) {
	conn, err := net.Dial("unix", c.socket)
	if err != nil {
		return nil, err
	}
	return &steppedConn{conn, func() error { return c.setClock(time.Now().Add(time.Duration(c.ahead.Load())).UnixMicro()) }}, nil
}

// clockLibrary returns the path of the library, which is compiled once for all runs.
var clockLibrary = sync.OnceValues(func() (string, error) {
	root, err := repositoryRoot()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, ".cache", fmt.Sprintf("clock-%.8x.so", sha256.Sum256([]byte(clockSource))))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	made := path + fmt.Sprint(os.Getpid()) // others may look for it at this moment
	cmd := exec.Command("cc", "-shared", "-fPIC", "-O2", "-o", made, "-x", "c", "-")
	cmd.Stdin = strings.NewReader(clockSource)
	if said, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %w: %s", errNoCompiler, err, said)
	}
	return path, os.Rename(made, path)
})

// Mini returns a client of a new miniredis, and the miniredis. They talk through memory, so inside a testing/synctest bubble
// time.Sleep moves the server's TIME and its TTLs; elsewhere both follow the wall clock, or SetTime. Both are closed when t
// ends, and leave no goroutine. The test is skipped if RRL_ENGINE leaves miniredis out.
func Mini(t testing.TB) (Client, *miniredis.Miniredis) {
	t.Helper()
	if engine() != everyEngine {
		t.Skip(onMiniredis)
	}
	return newMini(t)
}

func newMini(t testing.TB) (Client, *miniredis.Miniredis) {
	t.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	t.Cleanup(m.Close)
	return MiniClient(t, m, nil), m
}

// MiniClient returns one more client of m. The options of opt that concern dialling are replaced; nil stands for the defaults.
func MiniClient(t testing.TB, m *miniredis.Miniredis, opt *Options) Client {
	t.Helper()
	return memoryClient(t, opt, dialMini(m))
}

func dialMini(m *miniredis.Miniredis) func() (net.Conn, error) {
	return func() (net.Conn, error) {
		conn, err := m.Dial()
		if err != nil {
			return nil, err
		}
		return netpipe.Buffer(conn), nil
	}
}

// InBubble reports whether the test's time is that of a bubble, which begins in 2000 and doesn't go on while the machine stalls.
func InBubble() bool { return time.Now().Year() <= 2001 }

// Patience returns how long to wait for what should take d at most: outside of a bubble longer than a machine may stall.
func Patience(d time.Duration) time.Duration {
	if InBubble() {
		return d
	}
	return max(d, patience)
}

// memoryClient returns a client fit for a synctest bubble.
func memoryClient(t testing.TB, opt *Options, dial func() (net.Conn, error)) Client {
	t.Helper()
	set := with[redis.Options]
	if !InBubble() {
		set = patientWith
	}
	rdb, end := netpipe.NewClient(*set(opt, &redis.Options{}), dial)
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Errorf("closing the client: %v", err)
		}
	})
	return rdb
}
