package javadriver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// StartRedisson starts a JVM with this release of Redisson; source is the folder
// compat_test/java.
func StartRedisson(source, release string) (*Process, error) {
	d := Driver{
		Name: "Redisson " + release, Source: source, Version: release, Properties: []string{"-Dredisson.version=" + release},
	}
	if !strings.HasPrefix(release, "3.") {
		d.Properties = append(d.Properties, "-Djackson.version=2.20.0")
	}
	if dir := os.Getenv("RRL_CACHE"); dir != "" {
		d.Cache = filepath.Join(dir, "redisson-driver")
	}
	options := []string{"-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError"}
	// What the codecs of older releases reach into.
	for _, pkg := range []string{
		"lang", "util", "util.concurrent", "util.concurrent.atomic", "util.concurrent.locks",
		"math", "nio", "net", "time", "io", "text", "security",
	} {
		options = append(options, "--add-opens", "java.base/java."+pkg+"=ALL-UNNAMED")
	}
	j, err := d.Start("rratelimiter.driver.Driver", options...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	got, err := Call[string](ctx, j, "version")
	if err == nil && got != release {
		err = fmt.Errorf("the JVM has Redisson %s, not %s", got, release)
	}
	if err != nil {
		j.Close()
		return nil, err
	}
	return j, nil
}
