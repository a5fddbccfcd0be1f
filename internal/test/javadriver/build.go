// Package javadriver builds, starts and calls the Java programs that tests and
// measurements run beside this module.
package javadriver

import (
	"cmp"
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

// MissingError says what this machine lacks to run a driver.
type MissingError struct{ Why string }

func (e *MissingError) Error() string { return e.Why }

// Driver is a Maven project whose compile phase writes "classes" and "classpath"
// into the folder that its property driver.directory names.
type Driver struct {
	Name       string   // for errors
	Source     string   // the folder of its pom.xml
	Cache      string   // where builds are kept; "" for target in Source
	Version    string   // that of a library in the build, or ""
	Properties []string // given to Maven, as -Dname=value
}

var building sync.Mutex

// classPath returns the driver's class path. What Maven has built before is used
// again while the sources are the same and the jars still there. The error is a
// *MissingError if there is no Maven, or no network to get what it needs.
func (d Driver) classPath() (string, error) {
	building.Lock()
	defer building.Unlock()
	source, err := filepath.Abs(d.Source)
	if err != nil {
		return "", err
	}
	key, err := d.key(source)
	if err != nil {
		return "", err
	}
	cache, err := filepath.Abs(cmp.Or(d.Cache, filepath.Join(source, "target")))
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, strings.TrimPrefix(d.Version+"-"+key, "-"))
	if classPath, ok := readClassPath(dir); ok {
		return classPath, nil
	}

	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	// Built aside, since another process may build the same.
	tmp, err := os.MkdirTemp(cache, "build-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := d.runMaven(source, tmp); err != nil {
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

// key names what the driver is built from, by its content.
func (d Driver) key(source string) (string, error) {
	tree := os.DirFS(source)
	h := sha256.New()
	h.Write([]byte(d.Version))
	for _, root := range []string{"pom.xml", "src"} {
		err := fs.WalkDir(tree, root, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
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
func (d Driver) runMaven(source, dir string) error {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return &MissingError{"no mvn in PATH to build the " + d.Name + " driver with"}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var out []byte
	for _, mode := range []string{"--offline", "--update-snapshots"} {
		args := append([]string{"-q", "-B", mode, "-Dstyle.color=never", "-Ddriver.directory=" + dir}, d.Properties...)
		cmd := exec.CommandContext(ctx, mvn, append(args, "compile")...)
		cmd.Dir = source
		cmd.WaitDelay = 5 * time.Second
		if out, err = cmd.CombinedOutput(); err == nil {
			return nil
		}
	}
	for line := range strings.Lines(string(out)) {
		if _, why, ok := strings.Cut(line, "[ERROR] "); ok && strings.Contains(why, "Could not transfer") {
			return &MissingError{fmt.Sprintf("Maven can't get %s: %s", d.Name, strings.TrimSpace(why))}
		}
	}
	return fmt.Errorf("building the %s driver: %w\n%s", d.Name, err, out)
}
