package peer

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

// MissingError says what this machine lacks to run the libraries in Java.
type MissingError struct{ why string }

func (e *MissingError) Error() string { return e.why }

// buildJava returns the class path of the driver in the module's java folder,
// which Maven builds where that has not been done.
var buildJava = sync.OnceValues(func() (string, error) {
	source, err := javaSource()
	if err != nil {
		return "", err
	}
	key, err := sourceKey(source)
	if err != nil {
		return "", err
	}
	cache := filepath.Join(source, "target")
	dir := filepath.Join(cache, key)
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
	if err := runMaven(source, tmp); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, dir); err != nil {
		if _, ok := readClassPath(dir); !ok {
			return "", err
		}
	}
	classPath, ok := readClassPath(dir)
	if !ok {
		return "", fmt.Errorf("the build in %s is not complete", dir)
	}
	return classPath, nil
})

// javaSource finds the folder from wherever in the repository this runs.
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

// sourceKey names what the driver is built from, by its content.
func sourceKey(source string) (string, error) {
	tree := os.DirFS(source)
	h := sha256.New()
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
func runMaven(source, dir string) error {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return &MissingError{"no mvn in PATH to build the Java driver with"}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var out []byte
	for _, mode := range []string{"--offline", "--update-snapshots"} {
		cmd := exec.CommandContext(ctx, mvn, "-q", "-B", mode, "-Dstyle.color=never", "-Ddriver.directory="+dir, "compile")
		cmd.Dir = source
		cmd.WaitDelay = 5 * time.Second
		if out, err = cmd.CombinedOutput(); err == nil {
			return nil
		}
	}
	for line := range strings.Lines(string(out)) {
		if _, why, ok := strings.Cut(line, "[ERROR] "); ok && strings.Contains(why, "Could not transfer") {
			return &MissingError{"Maven can't get what the Java driver needs: " + strings.TrimSpace(why)}
		}
	}
	return fmt.Errorf("building the Java driver: %w\n%s", err, out)
}
