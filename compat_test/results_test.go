package compat_test

import (
	"strings"
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// record adds a line to the table of results that has the test's name.
func record(t *testing.T, columns ...any) {
	t.Helper()
	test, _, _ := strings.Cut(t.Name(), "/")
	redistest.Record(t, test, columns...)
}
