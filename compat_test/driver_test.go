package compat_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
	"github.com/rratelimiter/rratelimiter/internal/test/redissondriver"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// javaDriver is a JVM with one release of Redisson.
type javaDriver struct{ *redissondriver.JVM }

func newJavaDriver(version string) (*javaDriver, error) {
	jvm, err := redissondriver.Start("java", version)
	if err != nil {
		return nil, err
	}
	return &javaDriver{jvm}, nil
}

// startDriver starts a JVM with this release of Redisson; the end of the test
// ends it. Most tests share one instead: sharedDriver.
func startDriver(t testing.TB, version string) *javaDriver {
	t.Helper()
	redistest.SkipShort(t, "a JVM with Redisson")
	d, err := newJavaDriver(version)
	skipIfMissing(t, err)
	t.Cleanup(d.Close)
	return d
}

var shared struct {
	once   sync.Once
	driver *javaDriver
	err    error
}

// sharedDriver returns the test binary's JVM, with the release that -redisson
// names. The first call starts it.
func sharedDriver(t testing.TB) *javaDriver {
	t.Helper()
	redistest.SkipShort(t, "a JVM with Redisson")
	shared.once.Do(func() { shared.driver, shared.err = newJavaDriver(*redissonVersion) })
	skipIfMissing(t, shared.err)
	return shared.driver
}

func skipIfMissing(t testing.TB, err error) {
	t.Helper()
	if missing, ok := errors.AsType[*javadriver.MissingError](err); ok {
		redistest.SkipOrFail(t, missing.Why)
	}
	if err != nil {
		t.Fatal(err)
	}
}
