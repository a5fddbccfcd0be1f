package redistest

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
)

const (
	startAttempts = 5
	startTimeout  = 3 * time.Minute
)

// A Server is a real server of one process: a Redis or Valkey, or a Sentinel.
type Server struct {
	binary  string
	addr    string
	dir     string
	socket  string
	env     []string    // added to the server's environment
	tls     *tls.Config // for clients; nil without TLS
	args    []string    // of the command line
	clock   *os.File    // how far its clock is ahead; nil if it is the machine's
	process atomic.Pointer[Process]
	frozen  atomic.Bool
}

type spec struct {
	args []string // further command line arguments
	// busPort asks for a port that a cluster's node can have: the one 10,000 above is its bus, and must be free too.
	busPort bool
	// prepare, if any, puts files into the server's directory and returns the arguments in place of the usual ones.
	prepare func(s *Server, port string) ([]string, error)
}

// Redis returns a client of the real server that all tests of this binary share; keep to names that start with [Name]'s (their
// keys are removed when t ends), and leave alone what belongs to all, such as the script cache and the server's configuration.
// It skips the test under -short, and as [SkipOrFail] does if no redis-server is installed.
func Redis(t testing.TB) Client {
	t.Helper()
	return Shared(t).Client(t, nil)
}

var shared = sync.OnceValues(func() (*Server, error) { return Start(Default) })

// Shared returns the server behind [Redis], for tests that need its address. It must not be stopped.
func Shared(t testing.TB) *Server {
	t.Helper()
	SkipShort(t, "a real redis-server")
	if topology := CurrentTopology(t); engine() == sharedServers && topology != Single && topology != RESP2 {
		t.Skip(notShared)
	}
	s := sharedBy(t, shared)
	t.Cleanup(func() {
		_ = s.do(func(rdb Client) error {
			removeKeys(t, rdb)
			return nil
		})
	})
	return s
}

// StartRedis starts a server for this test alone: with no persistence, on a free port of the loopback interface, and with args
// as further command line arguments ("--maxmemory", "1mb"), which must leave port, dir and unixsocket alone. It returns when
// the server answers and stops it when t ends. It skips as [Redis] does.
func StartRedis(t testing.TB, args ...string) *Server {
	t.Helper()
	return startFor(t, Default, spec{args: args})
}

func startFor(t testing.TB, v Version, sp spec) *Server {
	t.Helper()
	return own(t, func() (*Server, error) { return start(v, sp) })
}

// own starts servers for a test, and kills them when t ends, also those that started if others did not.
func own[S interface{ kill() }](t testing.TB, start func() (S, error)) S {
	t.Helper()
	skipOwn(t)
	s, err := start()
	t.Cleanup(s.kill)
	check(t, err)
	return s
}

// skipOwn skips, beside under -short, a test that wants servers of its own if the run is for shared ones.
func skipOwn(t testing.TB) {
	t.Helper()
	SkipShort(t, "a real redis-server")
	if engine() == sharedServers {
		t.Skip(notShared)
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, ErrNoServer) {
		SkipOrFail(t, err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Addr returns the server's address, 127.0.0.1:port.
func (s *Server) Addr() string { return s.addr }

func (s *Server) hostPort() (host, port string) {
	host, port, _ = net.SplitHostPort(s.addr)
	return host, port
}

// Socket returns the path of the server's unix socket.
func (s *Server) Socket() string { return s.socket }

// URL returns the server's address as redis://127.0.0.1:port, or rediss:// with TLS.
func (s *Server) URL() string {
	if s.tls != nil {
		return "rediss://" + s.addr
	}
	return "redis://" + s.addr
}

// Client returns a client of the server, closed when t ends. The address in opt is replaced, and so is its TLS; timeouts that
// are not set are a minute, here and in other clients of real servers.
func (s *Server) Client(t testing.TB, opt *Options) Client {
	t.Helper()
	return closeAfter(t, redis.NewClient(patientWith(opt, &redis.Options{Addr: s.addr, TLSConfig: s.tls})))
}

// Freeze is Hang(true).
func (s *Server) Freeze(t testing.TB) {
	t.Helper()
	must(t, s.Hang(true))
}

// Thaw is Hang(false).
func (s *Server) Thaw(t testing.TB) {
	t.Helper()
	must(t, s.Hang(false))
}

// Hang stops the server in its tracks (SIGSTOP), as a machine that hangs: its
// port accepts connections, and no answer comes. Hang(false) lets it go on.
func (s *Server) Hang(hangs bool) error {
	if !s.running() {
		return fmt.Errorf("the server at %s is gone", s.addr)
	}
	text, err := os.ReadFile(s.file("pid"))
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	s.frozen.Store(hangs)
	return setStopped(pid, hangs)
}

// Kill ends the server as a crash would (SIGKILL) and waits until it is gone. A server that is gone already is left alone.
func (s *Server) Kill() {
	s.process.Load().Kill()
	if s.clock != nil {
		_ = s.clock.Close()
	}
	_ = os.RemoveAll(s.dir)
}

func (s *Server) kill() {
	if s != nil {
		s.Kill()
	}
}

// Crash is Kill for a server that Restart will start again: its files stay.
func (s *Server) Crash() {
	s.process.Load().crash()
	s.frozen.Store(false)
}

// Restart starts a server that has crashed, at its old address and with the files that it left: what it had written to an
// append-only file is there again. It returns when the server has read them and answers.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	if s.running() {
		t.Fatalf("the server at %s runs", s.addr)
	}
	// The old one's would be taken for the new one's.
	must(t, errors.Join(os.RemoveAll(s.socket), os.RemoveAll(s.file("pid"))))
	// Another connection may have the port for a moment.
	await(t, func(context.Context) error {
		_, err := listenOnce(s.addr)
		return err
	})
	must(t, s.launch())
}

func (s *Server) running() bool { return s.process.Load().running() }

func (s *Server) file(name string) string { return filepath.Join(s.dir, name) }
func (s *Server) answers() bool           { return s.running() && !s.frozen.Load() }

func (s *Server) ask(ctx context.Context, args ...any) (cmd *redis.Cmd) {
	_ = s.do(func(rdb Client) error {
		cmd = rdb.Do(ctx, args...)
		return nil
	})
	return cmd
}

// do calls f with a client of the server's own, by its socket.
func (s *Server) do(f func(Client) error) error {
	rdb := redis.NewClient(&redis.Options{Network: "unix", Addr: s.socket, PoolSize: 2, ReadTimeout: patience})
	defer func() { _ = rdb.Close() }()
	return f(rdb)
}

func closeAfter(t testing.TB, rdb Client) Client {
	t.Helper()
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			t.Errorf("closing the client: %v", err)
		}
	})
	return rdb
}

// Client is what tests use of a go-redis client, of whatever kind. A package that names redis.UniversalClient, *redis.Client or
// the options of one, be it by what it calls, takes a second longer to compile: see script.Master.
type Client interface {
	nodes.Client
	AddHook(hook redis.Hook)
	PoolStats() *redis.PoolStats
	Wait(ctx context.Context, replicas int, timeout time.Duration) *redis.IntCmd
}

// Options are the options of a client that tests set, as redis.Options has them.
type Options struct {
	Username, Password string

	Protocol              int
	Dialer                func(ctx context.Context, network, addr string) (net.Conn, error)
	DialTimeout           time.Duration
	ReadTimeout           time.Duration
	WriteTimeout          time.Duration
	ContextTimeoutEnabled bool
	MaxRetries            int
	DialerRetries         int
	PoolSize              int
	MinIdleConns          int
	MaxConcurrentDials    int
	PipelinePoolSize      int

	// Of a cluster.
	ReadOnly, RouteRandomly bool

	// Of a ring.
	HeartbeatFrequency time.Duration
}

// with sets the options of a go-redis client that opt has too; nil stands for its defaults.
func with[O any](opt *Options, o *O) *O {
	from, to := reflect.ValueOf(valueOf(opt)), reflect.ValueOf(o).Elem()
	for i := range from.NumField() {
		if field := to.FieldByName(from.Type().Field(i).Name); field.IsValid() {
			field.Set(from.Field(i))
		}
	}
	return o
}

// patientWith is with for real servers: timeouts that opt leaves open are longer than a machine may stall.
func patientWith[O any](opt *Options, o *O) *O {
	set := valueOf(opt)
	for _, d := range []*time.Duration{&set.DialTimeout, &set.ReadTimeout, &set.WriteTimeout} {
		*d = cmp.Or(*d, patience)
	}
	return with(&set, o)
}

// NilClient returns a nil *redis.Client.
func NilClient() Client { return (*redis.Client)(nil) }

// WrappedNilClient returns a client that embeds such a one.
func WrappedNilClient() Client { return struct{ *redis.Client }{} }

// NewClient returns a client of the server at addr, which need not be there. The caller closes it.
func NewClient(addr string, opt *Options) Client {
	return redis.NewClient(with(opt, &redis.Options{Addr: addr}))
}

// NewCluster returns a client that takes servers for a cluster with these slots. The caller closes it.
func NewCluster(slots []redis.ClusterSlot, opt *Options) Client {
	known := func(context.Context) ([]redis.ClusterSlot, error) { return slots, nil }
	return redis.NewClusterClient(with(opt, &redis.ClusterOptions{ClusterSlots: known}))
}

// NewRing returns a client that shares keys out among the servers at these addresses, by name. The caller closes it.
func NewRing(addrs map[string]string, opt *Options) Client {
	return redis.NewRing(patientWith(opt, &redis.RingOptions{Addrs: addrs}))
}

// Username returns the name with which a client of one server or of a cluster logs in.
func Username(rdb Client) string {
	switch rdb := rdb.(type) {
	case *redis.Client:
		return rdb.Options().Username
	case *redis.ClusterClient:
		return rdb.Options().Username
	}
	panic(fmt.Sprintf("redistest: Username of a %T", rdb))
}
