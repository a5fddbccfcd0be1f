package compat_test

import (
	"os"
	"path/filepath"

	"github.com/rratelimiter/rratelimiter/internal/javadriver"
)

// buildJava returns the class path of the driver with this release of Redisson.
func buildJava(version string) (string, error) {
	d := javadriver.Driver{
		Name: "Redisson " + version, Source: "java", Version: version, Properties: []string{"-Dredisson.version=" + version},
	}
	if dir := os.Getenv("RRL_CACHE"); dir != "" {
		d.Cache = filepath.Join(dir, "redisson-driver")
	}
	return d.ClassPath()
}
