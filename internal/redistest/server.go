package redistest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	startAttempts = 5
	startTimeout  = 20 * time.Second
	stopTimeout   = 10 * time.Second
)

// supervise runs "$@" until the shell's standard input ends, that is until the
// test binary closes its end of the pipe or dies, by whatever signal. Then the
// server goes, and its directory with it. The shell ends as soon as the server
// has.
const supervise = `
dir=$1; shift
exec 3<&0
"$@" </dev/null 3<&- &
server=$!
{ read -r _ <&3; kill -9 $server 2>/dev/null; rm -rf -- "$dir"; } &
wait $server
`

// errNoServer: this machine has no redis-server.
var errNoServer = errors.New("no redis-server: neither $RRL_REDIS_SERVER, .cache/bin nor $PATH has one (scripts/install-redis.sh installs it)")

// A Server is a real redis-server that belongs to one test.
type Server struct {
	addr   string
	dir    string
	socket string
	stdin  io.Closer
	exited chan struct{}
}

// Redis returns a client of the real server that all tests of this binary
// share; keep to names that start with [Name]'s, and leave alone what belongs
// to all, such as the script cache and the server's configuration. It skips
// the test under -short, and as [SkipOrFail] does where no redis-server is
// installed.
func Redis(t testing.TB) *redis.Client {
	t.Helper()
	return Shared(t).Client(t, nil)
}

var shared = sync.OnceValues(func() (*Server, error) { return start(nil) })

// Shared returns the server behind [Redis], for tests that need its address. It
// must not be stopped.
func Shared(t testing.TB) *Server {
	t.Helper()
	skipShort(t)
	s, err := shared()
	check(t, err)
	return s
}

// StartRedis starts a server for this test alone: with no persistence, on a
// free port of the loopback interface, and with args as further command line
// arguments ("--maxmemory", "1mb"), which must leave port, dir and unixsocket
// alone. It returns when the server answers and stops it when t ends. It skips
// as [Redis] does.
func StartRedis(t testing.TB, args ...string) *Server {
	t.Helper()
	skipShort(t)
	s, err := start(args)
	check(t, err)
	t.Cleanup(s.Kill)
	return s
}

func skipShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real redis-server, which -short leaves out")
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, errNoServer) {
		SkipOrFail(t, err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Addr returns the server's address, 127.0.0.1:port.
func (s *Server) Addr() string { return s.addr }

// URL returns the server's address as redis://127.0.0.1:port.
func (s *Server) URL() string { return "redis://" + s.addr }

// Client returns a client of the server, closed when t ends. The address in
// opt is replaced; nil stands for the defaults.
func (s *Server) Client(t testing.TB, opt *redis.Options) *redis.Client {
	t.Helper()
	return client(t, s.addr, opt)
}

// Stop asks the server to shut down and waits until it has. A server that is
// gone already is left alone.
func (s *Server) Stop() {
	select {
	case <-s.exited:
		return
	default:
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	rdb := redis.NewClient(&redis.Options{Network: "unix", Addr: s.socket, MaxRetries: -1})
	defer func() { _ = rdb.Close() }()
	_ = rdb.ShutdownNoSave(ctx).Err()
	select {
	case <-s.exited:
	case <-ctx.Done():
	}
	s.Kill()
}

// Kill ends the server as a crash would (SIGKILL) and waits until it is gone.
// A server that is gone already is left alone.
func (s *Server) Kill() {
	_ = s.stdin.Close()
	<-s.exited
	_ = os.RemoveAll(s.dir)
}

func client(t testing.TB, addr string, opt *redis.Options) *redis.Client {
	t.Helper()
	o := redis.Options{}
	if opt != nil {
		o = *opt
	}
	o.Network, o.Addr = "tcp", addr
	rdb := redis.NewClient(&o)
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			t.Errorf("closing the client: %v", err)
		}
	})
	return rdb
}

// start tries again with another port where the server does not come up:
// somebody may take the port between the look for a free one and the start.
func start(args []string) (*Server, error) {
	binary, err := findServer()
	if err != nil {
		return nil, err
	}
	for range startAttempts {
		var s *Server
		if s, err = startOnce(binary, args); err == nil {
			return s, nil
		}
	}
	return nil, err
}

func startOnce(binary string, args []string) (*Server, error) {
	addr, port, err := freeAddr()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "redistest")
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	defer func() { _ = log.Close() }()

	s := &Server{
		addr:   addr,
		dir:    dir,
		socket: filepath.Join(dir, "socket"),
		exited: make(chan struct{}),
	}
	argv := []string{
		"-c", supervise, "redistest", dir, binary,
		"--bind", "127.0.0.1", "--port", port, "--unixsocket", s.socket,
		"--dir", dir, "--save", "", "--appendonly", "no", "--daemonize", "no",
	}
	cmd := exec.Command("sh", append(argv, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if s.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("redistest: starting the shell around %s: %w", binary, err), os.RemoveAll(dir))
	}
	go func() {
		_ = cmd.Wait()
		close(s.exited)
	}()
	if err := s.waitReady(); err != nil {
		s.Kill()
		// By the open file: the directory is gone.
		said, _ := io.ReadAll(io.NewSectionReader(log, 0, 1<<20))
		return nil, fmt.Errorf("redistest: %s does not come up: %w; it said:\n%s", binary, err, said)
	}
	return s, nil
}

// waitReady asks by the socket, which nobody else's server can have; a server
// that could not bind the port does not open it.
func (s *Server) waitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if ping(ctx, s.socket) {
			return nil
		}
		select {
		case <-s.exited:
			return errors.New("it ended")
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// ping reports whether the server answers. Any answer will do, save that it is
// still loading: one with a password says NOAUTH.
func ping(ctx context.Context, socket string) bool {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		return false
	}
	answer := make([]byte, 64)
	n, err := conn.Read(answer)
	return err == nil && !strings.HasPrefix(string(answer[:n]), "-LOADING")
}

// freeAddr returns an address of the loopback interface whose port nobody
// listens on at the moment.
func freeAddr() (addr, port string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", err
	}
	defer func() { _ = l.Close() }()
	addr = l.Addr().String()
	_, port, err = net.SplitHostPort(addr)
	return addr, port, err
}

func findServer() (string, error) {
	if path := os.Getenv("RRL_REDIS_SERVER"); path != "" {
		path, err := exec.LookPath(path)
		if err != nil {
			return "", fmt.Errorf("redistest: RRL_REDIS_SERVER: %w", err)
		}
		return path, nil
	}
	if root, err := repositoryRoot(); err == nil {
		if path, err := exec.LookPath(filepath.Join(root, ".cache", "bin", "redis-server")); err == nil {
			return path, nil
		}
	}
	if path, err := exec.LookPath("redis-server"); err == nil {
		return path, nil
	}
	return "", errNoServer
}

// repositoryRoot returns the directory above the test's own that holds this
// package; a go.mod would not do, as there are modules below the root.
func repositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "internal", "redistest")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("redistest: the tests run outside of the repository")
		}
		dir = parent
	}
}
