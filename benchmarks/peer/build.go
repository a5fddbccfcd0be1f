package peer

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
)

// buildJava returns the class path of the driver in the module's java folder.
func buildJava() (string, error) {
	source, err := javaSource()
	if err != nil {
		return "", err
	}
	return javadriver.Driver{Name: "benchmark", Source: source}.ClassPath()
}

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
