package compat_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

var building sync.Mutex

// buildJava returns the class path of the driver with this release of
// Redisson. What Maven built before is used again while the sources are the
// same and the jars still there.
func buildJava(version string) (string, error) {
	building.Lock()
	defer building.Unlock()
	source, err := filepath.Abs("java")
	if err != nil {
		return "", err
	}
	key, err := sourceKey(source, version)
	if err != nil {
		return "", err
	}
	cache := filepath.Join(source, "target")
	if dir := os.Getenv("RRL_CACHE"); dir != "" {
		if cache, err = filepath.Abs(filepath.Join(dir, "redisson-driver")); err != nil {
			return "", err
		}
	}
	dir := filepath.Join(cache, version+"-"+key)
	if classPath, ok := readClassPath(dir); ok {
		return classPath, nil
	}

	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	// Built aside, since another test binary may build the same.
	tmp, err := os.MkdirTemp(cache, "build-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := runMaven(source, tmp, version); err != nil {
		return "", err
	}
	// A complete build of somebody else's is kept: its JVM may be running.
	if err := os.Rename(tmp, dir); err != nil {
		if classPath, ok := readClassPath(dir); ok {
			return classPath, nil
		}
		if err := errors.Join(os.RemoveAll(dir), os.Rename(tmp, dir)); err != nil {
			return "", err
		}
	}
	classPath, ok := readClassPath(dir)
	if !ok {
		return "", fmt.Errorf("the build in %s is not complete", dir)
	}
	return classPath, nil
}

// sourceKey names what the driver is built from, by its content.
func sourceKey(source, version string) (string, error) {
	tree := os.DirFS(source)
	h := sha256.New()
	h.Write([]byte(version))
	for _, root := range []string{"pom.xml", "src"} {
		err := fs.WalkDir(tree, root, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := fs.ReadFile(tree, name)
			h.Write([]byte("\x00" + name + "\x00"))
			h.Write(text)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:6]), nil
}

func readClassPath(dir string) (string, bool) {
	jars, err := os.ReadFile(filepath.Join(dir, "classpath"))
	if err != nil {
		return "", false
	}
	classPath := filepath.Join(dir, "classes") + string(os.PathListSeparator) + strings.TrimSpace(string(jars))
	for _, name := range filepath.SplitList(classPath) {
		if _, err := os.Stat(name); err != nil {
			return "", false
		}
	}
	return classPath, true
}

// runMaven builds into dir, without the network where the local repository has
// all it takes.
func runMaven(source, dir, version string) error {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return &missingError{"no mvn in PATH to build the Redisson driver with"}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var out []byte
	for _, mode := range []string{"--offline", "--update-snapshots"} {
		cmd := exec.CommandContext(ctx, mvn, "-q", "-B", mode, "-Dstyle.color=never",
			"-Dredisson.version="+version, "-Ddriver.directory="+dir, "compile")
		cmd.Dir = source
		cmd.WaitDelay = 5 * time.Second
		if out, err = cmd.CombinedOutput(); err == nil {
			return nil
		}
	}
	for line := range strings.Lines(string(out)) {
		if _, why, ok := strings.Cut(line, "[ERROR] "); ok && strings.Contains(why, "Could not transfer") {
			return &missingError{fmt.Sprintf("Maven can't get Redisson %s: %s", version, strings.TrimSpace(why))}
		}
	}
	return fmt.Errorf("building the Redisson %s driver: %w\n%s", version, err, out)
}
