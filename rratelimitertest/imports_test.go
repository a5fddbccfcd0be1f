package rratelimitertest_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What applications import brings no test code along.
func TestLimitersBringNoTestCode(t *testing.T) {
	t.Parallel()
	const module = "github.com/rratelimiter/rratelimiter"
	list := exec.CommandContext(t.Context(), "go", "list", "-deps",
		module, module+"/limit", module+"/codec", module+"/fixedwindow", module+"/slidinglog", module+"/tokenbucket",
		module+"/httplimit", module+"/httplimit/admin")
	said, err := list.Output()
	require.NoError(t, err)
	packages := strings.Fields(string(said))
	assert.Contains(t, packages, module+"/internal/engine")
	for _, path := range packages {
		for _, test := range []string{
			"testing", "github.com/alicebob/", "github.com/stretchr/", "github.com/yuin/", "pgregory.net/",
			module + "/rratelimitertest", module + "/internal/test/redistest", module + "/internal/test/limitertest", module + "/internal/memory",
		} {
			assert.False(t, path == test || strings.HasPrefix(path, strings.TrimSuffix(test, "/")+"/"), "%s", path)
		}
	}
}
