package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Start starts a server that keeps nothing on disk, for a program that is no test: see
// [StartRedis]. It goes with the program, or with Kill.
func Start(v Version, args ...string) (*Server, error) { return start(v, spec{args: args}) }

// start tries again with another port if the server does not come up: the port may be taken between the look for a free one and the start.
func start(v Version, sp spec) (*Server, error) {
	binary, err := v.binary()
	if err != nil {
		return nil, err
	}
	for range startAttempts {
		var s *Server
		if s, err = startOnce(binary, sp); err == nil {
			return s, nil
		}
	}
	return nil, err
}

func startOnce(binary string, sp spec) (*Server, error) {
	addr, port, err := freeAddr(sp.busPort)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "redistest")
	if err != nil {
		return nil, err
	}
	s := &Server{binary: binary, addr: addr, dir: dir, socket: filepath.Join(dir, "socket")}
	s.args = s.usualArgs(port)
	if sp.prepare != nil {
		s.args, err = sp.prepare(s, port)
	}
	s.args = append(s.args, sp.args...)
	if err == nil {
		err = s.launch()
	}
	if err != nil {
		if s.clock != nil {
			_ = s.clock.Close()
		}
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

// launch starts the server's process and returns when it answers; one that does not come up is gone.
func (s *Server) launch() error {
	log, err := os.Create(s.file("log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	p, err := StartProcess(s.dir, log, slices.Concat([]string{"env"}, s.env, []string{s.binary}, s.args)...)
	if err != nil {
		return err
	}
	s.process.Store(p)
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := p.AwaitReady(ctx, func() error { return ping(ctx, s.socket) }); err != nil {
		p.crash()
		// By the open file: the directory may be gone.
		said, _ := io.ReadAll(io.NewSectionReader(log, 0, 1<<20))
		return fmt.Errorf("redistest: %s does not come up: %w; it said:\n%s", s.binary, err, said)
	}
	return nil
}

func (s *Server) usualArgs(port string) []string {
	return append(s.commonArgs(),
		"--port", port, "--save", "", "--appendonly", "no", "--lua-time-limit", "0", // a machine that stalls makes no script BUSY
		// A replica is in step, and seen to be, at once, not seconds later.
		"--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1",
	)
}

func (s *Server) commonArgs() []string {
	return []string{"--bind", "127.0.0.1", "--unixsocket", s.socket, "--pidfile", s.file("pid"), "--dir", s.dir, "--daemonize", "no"}
}

// ping asks by the socket, which no other server can have; a server that could not bind
// the port does not open it. Any answer will do, NOAUTH too, unless it is still loading.
func ping(ctx context.Context, socket string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	_, _ = io.WriteString(conn, "PING\r\n")
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && strings.HasPrefix(answer, "-LOADING") {
		err = errors.New("it is loading")
	}
	return err
}

// freeAddr is FreeAddr; with busPort, the port 10,000 above is free too.
func freeAddr(busPort bool) (addr, port string, err error) {
	for range 100 {
		addr, err := FreeAddr()
		if err != nil {
			return "", "", err
		}
		at := netip.MustParseAddrPort(addr)
		bus := int(at.Port()) + 10_000
		if busPort {
			_, err = listenOnce("127.0.0.1:" + strconv.Itoa(bus))
		}
		if err == nil {
			return addr, strconv.Itoa(int(at.Port())), nil
		}
	}
	return "", "", errors.New("redistest: no two free ports that are 10,000 apart")
}

// FreeAddr returns an address of the loopback interface whose port is free at the moment.
func FreeAddr() (string, error) { return listenOnce("127.0.0.1:0") }

// listenOnce listens on an address, and at once no more. It returns the address.
func listenOnce(addr string) (string, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// valueOf returns a copy of what opt points to, or the zero value for nil.
func valueOf[T any](opt *T) T {
	if opt == nil {
		return *new(T)
	}
	return *opt
}

// supervise runs "$@" until the shell's standard input ends: this process closes its end of the pipe, or dies. Then the program goes, and
// the directory with it unless the last word was to keep that. The shell ends as soon as the program has.
const supervise = `
dir=$1; shift
exec 3<&0 4>&2 2>/dev/null
"$@" </dev/null 2>&4 3<&- 4>&- &
child=$!
{ read -r word <&3; kill -9 $child 2>/dev/null; [ "$word" = keep ] || rm -rf -- "$dir"; } &
wait $child
`

// A Process is a program that ends with this one, however this one ends.
type Process struct {
	stdin  io.WriteCloser
	exited chan struct{}
}

// StartProcess starts a program that writes to out. The directory dir, if one is named, is removed when the program ends.
func StartProcess(dir string, out *os.File, argv ...string) (*Process, error) {
	cmd := exec.Command("sh", append([]string{"-c", supervise, "redistest", dir}, argv...)...)
	// A signal to all of a terminal or a job would end the shell and leave the program.
	cmd.SysProcAttr = ownGroup()
	cmd.Stdout, cmd.Stderr = out, out
	p := &Process{exited: make(chan struct{})}
	var err error
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("redistest: starting the shell around %s: %w", argv[0], err)
	}
	go func() {
		_ = cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// AwaitReady waits until ready returns nil. It fails if the program ends before.
func (p *Process) AwaitReady(ctx context.Context, ready func() error) error {
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return errors.New("it ended")
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Kill ends the program (SIGKILL) and waits until it is gone.
func (p *Process) Kill() {
	p.hangUp()
	<-p.exited
}

// hangUp kills the program and does not wait.
func (p *Process) hangUp() { _ = p.stdin.Close() }

// crash is Kill, but the directory stays.
func (p *Process) crash() {
	_, _ = io.WriteString(p.stdin, "keep\n")
	<-p.exited
}

func (p *Process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// A Version names a server release that scripts/install-redis.sh can put into .cache/bin, or is the path of a server.
type Version string

// The releases that tests run on, by their names. Default is the server of [Redis]: the one that RRL_REDIS_SERVER names, by
// path or as a Version, else any redis-server of this machine.
const (
	Default  Version = ""
	Redis62  Version = "redis-6.2"
	Redis70  Version = "redis-7.0"
	Redis82  Version = "redis-8.2"
	Valkey91 Version = "valkey-9.1"
)

// ErrNoServer says that this machine lacks the server.
var ErrNoServer = errors.New("scripts/install-redis.sh installs it")

// Versions returns the releases by name, Default left out, whether this machine has them or not.
func Versions() []Version { return []Version{Redis62, Redis70, Redis82, Valkey91} }

// StartServer starts a server of the release for this test alone, as [StartRedis] does. It skips as [Redis] does if the release is missing.
func StartServer(t testing.TB, v Version, args ...string) *Server {
	t.Helper()
	return startFor(t, v, spec{args: args})
}

func (v Version) binary() (string, error) {
	if err := canStart(); err != nil {
		return "", err
	}
	if v == Default {
		v = Version(os.Getenv("RRL_REDIS_SERVER"))
	}
	if slices.Contains(Versions(), v) {
		file := strings.Replace(string(v), "-", "-server-", 1)
		path, err := inCache(file)
		if err != nil {
			err = fmt.Errorf("no %s: .cache/bin has no %s (%w, given the argument all)", v, file, ErrNoServer)
		}
		return path, err
	}
	if v != Default {
		path, err := exec.LookPath(string(v))
		if err != nil {
			err = fmt.Errorf("redistest: %q is no release and no server: %w", v, err)
		}
		return path, err
	}
	for _, find := range []func(string) (string, error){inCache, exec.LookPath} {
		if path, err := find("redis-server"); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no redis-server: neither $RRL_REDIS_SERVER, .cache/bin nor $PATH has one (%w)", ErrNoServer)
}

func inCache(file string) (string, error) {
	root, err := repositoryRoot()
	if err != nil {
		return "", err
	}
	return exec.LookPath(filepath.Join(root, ".cache", "bin", file))
}

// repositoryRoot returns the directory above the test's own that holds this
// package; a go.mod would not do, as there are modules below the root.
func repositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "internal", "test", "redistest")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("redistest: the tests run outside of the repository")
		}
		dir = parent
	}
}
