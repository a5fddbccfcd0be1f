package redistest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A Version names a server release that scripts/install-redis.sh can put into
// .cache/bin, or is the path of a server.
type Version string

// The releases that tests run on, by their names. Default is the server of
// [Redis]: the one that RRL_REDIS_SERVER names, by path or as a Version, else
// any redis-server of this machine.
const (
	Default  Version = ""
	Redis62  Version = "redis-6.2"
	Redis70  Version = "redis-7.0"
	Redis82  Version = "redis-8.2"
	Valkey91 Version = "valkey-9.1"
)

// files are the names of the binaries in .cache/bin.
var files = map[Version]string{
	Redis62:  "redis-server-6.2",
	Redis70:  "redis-server-7.0",
	Redis82:  "redis-server-8.2",
	Valkey91: "valkey-server-9.1",
}

// ErrNoServer says that this machine has no such server.
var ErrNoServer = errors.New("scripts/install-redis.sh installs it")

// Versions returns the releases by name, Default left out, whether this machine
// has them or not.
func Versions() []Version { return []Version{Redis62, Redis70, Redis82, Valkey91} }

// StartServer starts a server of the release for this test alone, as
// [StartRedis] does. It skips as [Redis] does where the release is missing.
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
	if file, ok := files[v]; ok {
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
	if path, err := inCache("redis-server"); err == nil {
		return path, nil
	}
	if path, err := exec.LookPath("redis-server"); err == nil {
		return path, nil
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
