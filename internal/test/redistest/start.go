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
	"slices"
	"strconv"
	"strings"
	"time"
)

// start tries again with another port where the server does not come up:
// somebody may take the port between the look for a free one and the start.
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
	prepare := sp.prepare
	if prepare == nil {
		prepare = usualArgs
	}
	args, err := prepare(s, port)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s.args = slices.Concat(args, sp.args)
	if err := s.launch(); err != nil {
		if s.clock != nil {
			_ = s.clock.Close()
		}
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

// launch starts the server's process and returns when it answers; one that does
// not come up is gone.
func (s *Server) launch() error {
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()

	argv := slices.Concat([]string{"-c", supervise, "redistest", s.dir, "env"}, s.env, []string{s.binary}, s.args)
	cmd := exec.Command("sh", argv...)
	// A signal to all of a terminal or a job would end the shell and leave the server.
	cmd.SysProcAttr = ownGroup()
	cmd.Stdout, cmd.Stderr = log, log
	p := &process{exited: make(chan struct{})}
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("redistest: starting the shell around %s: %w", s.binary, err)
	}
	go func() {
		_ = cmd.Wait()
		close(p.exited)
	}()
	s.process.Store(p)
	if err := s.waitReady(); err != nil {
		s.Crash()
		// By the open file: the directory may be gone.
		said, _ := io.ReadAll(io.NewSectionReader(log, 0, 1<<20))
		return fmt.Errorf("redistest: %s does not come up: %w; it said:\n%s", s.binary, err, said)
	}
	return nil
}

// usualArgs are the arguments of a server that keeps nothing on disk.
func usualArgs(s *Server, port string) ([]string, error) {
	return append(s.commonArgs(),
		"--port", port, "--save", "", "--appendonly", "no",
		// A replica is in step, and seen to be, at once, not seconds later.
		"--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1",
	), nil
}

func (s *Server) commonArgs() []string {
	return []string{
		"--bind", "127.0.0.1", "--unixsocket", s.socket, "--pidfile", filepath.Join(s.dir, "pid"),
		"--dir", s.dir, "--daemonize", "no",
	}
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
		case <-s.process.Load().exited:
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
// listens on at the moment, and if busPort is set, neither on the one 10,000
// above.
func freeAddr(busPort bool) (addr, port string, err error) {
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", "", err
		}
		_ = l.Close()
		addr := l.Addr().String()
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			return "", "", err
		}
		if !busPort || busFree(port) {
			return addr, port, nil
		}
	}
	return "", "", errors.New("redistest: no two free ports that are 10,000 apart")
}

func busFree(port string) bool {
	n, err := strconv.Atoi(port)
	if err != nil {
		return false
	}
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(n+10000))
	if err != nil {
		return false
	}
	_ = l.Close()
	return true
}

// valueOf returns a copy of what opt points to, or the zero value for nil.
func valueOf[T any](opt *T) T {
	if opt == nil {
		return *new(T)
	}
	return *opt
}
