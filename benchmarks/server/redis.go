// Package server starts the Redis that limiters are measured on, reads what
// they cost it, and puts a delay before it.
package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrNoServer says that this machine has no redis-server.
var ErrNoServer = errors.New("no redis-server: scripts/install-redis.sh installs it")

// supervise runs "$@" until the shell's standard input ends: with this process,
// however that ends.
const supervise = `
exec 3<&0 4>&2 2>/dev/null
"$@" </dev/null >/dev/null 2>&4 3<&- 4>&- &
child=$!
{ read -r _ <&3; kill -9 $child 2>/dev/null; } &
wait $child
`

// A process is a helper process that ends with this one.
type process struct {
	stdin  io.Closer
	exited chan struct{}
}

func startProcess(argv ...string) (*process, error) {
	cmd := exec.Command("sh", append([]string{"-c", supervise, "sh"}, argv...)...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{stdin: stdin, exited: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

func (p *process) close() {
	_ = p.stdin.Close()
	<-p.exited
}

// A Redis is a server of this run's own that keeps nothing on disk.
type Redis struct {
	Addr    string
	Version string
	process *process
	admin   *redis.Client
}

// Start starts the redis-server at path, or where that is empty the one that
// RRL_REDIS_SERVER names, that of .cache/bin or of the PATH, on a free port.
func Start(ctx context.Context, path string) (*Redis, error) {
	path, err := find(path)
	if err != nil {
		return nil, err
	}
	for range 5 {
		// Somebody may take the port between the look for a free one and the start.
		var s *Redis
		if s, err = startOnce(ctx, path); err == nil {
			return s, nil
		}
	}
	return nil, err
}

func startOnce(ctx context.Context, path string) (*Redis, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	p, err := startProcess(path, "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no")
	if err != nil {
		return nil, err
	}
	s := &Redis{Addr: addr, process: p, admin: redis.NewClient(&redis.Options{
		Addr: addr, MaxRetries: -1, ReadTimeout: time.Minute,
	})}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		info, err := s.info(ctx, "server")
		if err == nil {
			s.Version = info["redis_version"]
			return s, nil
		}
		select {
		case <-p.exited:
			return nil, errors.Join(fmt.Errorf("%s does not come up", path), s.admin.Close())
		case <-ctx.Done():
			s.Close()
			return nil, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Close ends the server.
func (s *Redis) Close() {
	_ = s.admin.Close()
	s.process.close()
}

// Freeze has the server hang until thaw is called. It keeps its connections.
func (s *Redis) Freeze(ctx context.Context) (thaw func(), err error) {
	info, err := s.info(ctx, "server")
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(info["process_id"])
	if err != nil {
		return nil, fmt.Errorf("INFO server: process_id: %w", err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return nil, err
	}
	return func() { _ = syscall.Kill(pid, syscall.SIGCONT) }, nil
}

// Flush removes all keys.
func (s *Redis) Flush(ctx context.Context) error { return s.admin.FlushAll(ctx).Err() }

// Client is a client for what is no part of a measurement.
func (s *Redis) Client() *redis.Client { return s.admin }

// find returns the server to start.
func find(path string) (string, error) {
	if path == "" {
		path = os.Getenv("RRL_REDIS_SERVER")
	}
	if path != "" {
		if found, err := exec.LookPath(path); err == nil {
			return found, nil
		}
		return inCache(path)
	}
	if found, err := inCache("redis-server"); err == nil {
		return found, nil
	}
	found, err := exec.LookPath("redis-server")
	if err != nil {
		return "", ErrNoServer
	}
	return found, nil
}

// inCache looks for a binary in .cache/bin of the repository, under its name or
// as tests call its release: redis-7.0 is redis-server-7.0.
func inCache(name string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		for _, file := range []string{name, strings.Replace(name, "-", "-server-", 1)} {
			if found, err := exec.LookPath(filepath.Join(dir, ".cache", "bin", file)); err == nil {
				return found, nil
			}
		}
	}
	return "", fmt.Errorf("%s: %w", name, ErrNoServer)
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
