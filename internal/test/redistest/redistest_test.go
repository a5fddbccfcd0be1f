package redistest_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// recorder is a testing.TB that notes how a test would have ended.
type recorder struct {
	testing.TB
	skipped, failed string
}

// record runs test as far as it gets.
func record(t *testing.T, test func(t testing.TB)) *recorder {
	t.Helper()
	r := &recorder{TB: t}
	var wg sync.WaitGroup
	wg.Go(func() { test(r) })
	wg.Wait()
	return r
}

func (r *recorder) Helper() {}

func (r *recorder) Skip(args ...any) {
	r.skipped = fmt.Sprint(args...)
	runtime.Goexit()
}

func (r *recorder) Fatal(args ...any) {
	r.failed = fmt.Sprint(args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Fatal(fmt.Sprintf(format, args...))
}

func TestSkipOrFail(t *testing.T) {
	t.Run("skips", func(t *testing.T) {
		t.Setenv("RRL_NO_SKIP", "")
		log := filepath.Join(t.TempDir(), "log")
		t.Setenv("RRL_SKIP_LOG", log)
		for _, why := range []string{"no such server", "no such compiler"} {
			r := record(t, func(t testing.TB) { redistest.SkipOrFail(t, why) })
			assert.Equal(t, why, r.skipped)
			assert.Empty(t, r.failed)
		}
		said, err := os.ReadFile(log)
		require.NoError(t, err)
		assert.Equal(t, "no such server\nno such compiler\n", string(said))
	})
	t.Run("fails where nothing may be skipped", func(t *testing.T) {
		t.Setenv("RRL_NO_SKIP", "1")
		r := record(t, func(t testing.TB) { redistest.SkipOrFail(t, "no such server") })
		assert.Contains(t, r.failed, "no such server")
		assert.Empty(t, r.skipped)
	})
}

func TestName(t *testing.T) {
	t.Parallel()

	t.Run("has no {braces} or spaces", func(t *testing.T) {
		t.Parallel()
		name := redistest.Name(t)
		assert.True(t, strings.HasPrefix(name, "TestName/has_no__braces__or_spaces"), name)
	})

	// Else the test that ends first would remove the other's keys.
	t.Run("tells tests apart whose names are alike", func(t *testing.T) {
		t.Parallel()
		prefixes := map[string]bool{}
		for _, name := range []string{"5", " 5", "+5", "_5", "{5", "\x00"} {
			t.Run("n"+name, func(t *testing.T) {
				prefix, _, _ := strings.Cut(redistest.Name(t), ":")
				assert.False(t, prefixes[prefix], prefix)
				prefixes[prefix] = true
			})
		}
	})

	t.Run("is unique", func(t *testing.T) {
		t.Parallel()
		var (
			mu    sync.Mutex
			wg    sync.WaitGroup
			names = map[string]bool{}
		)
		for range 100 {
			wg.Go(func() {
				name := redistest.Name(t)
				mu.Lock()
				defer mu.Unlock()
				names[name] = true
			})
		}
		wg.Wait()
		assert.Len(t, names, 100)
	})
}

// asChild runs one test of this binary in a process of its own, with env added.
func asChild(t *testing.T, test string, env ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), env...)
	return cmd
}
