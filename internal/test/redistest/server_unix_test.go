//go:build unix

package redistest_test

import (
	"bufio"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestServers_EndWithTestBinary(t *testing.T) {
	t.Parallel()
	redistest.Shared(t)
	type row struct {
		how string
		end func(*os.Process) error
	}
	limitertest.Each(t, map[string]row{
		"return":    {how: "return"},
		"panic":     {how: "panic"},
		"killed":    {"wait", func(p *os.Process) error { return p.Signal(syscall.SIGKILL) }},
		"all ended": {"wait", func(p *os.Process) error { return syscall.Kill(-p.Pid, syscall.SIGTERM) }}, // as a terminal does
	}, func(t *testing.T, tt row) {
		cmd := asChild(t, "TestChild", "REDISTEST_CHILD="+tt.how)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		var addrs, dirs []string
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var addr, dir string
			if _, err := fmt.Sscanf(lines.Text(), "server %s %s", &addr, &dir); err == nil {
				addrs, dirs = append(addrs, addr), append(dirs, dir)
			}
			if lines.Text() == "waiting" {
				assert.True(t, listens(addrs[0]))
				require.NoError(t, tt.end(cmd.Process))
			}
		}
		_ = cmd.Wait()
		require.Len(t, addrs, 2)
		for i := range addrs {
			require.Eventually(t, func() bool {
				_, err := os.Stat(dirs[i])
				return !listens(addrs[i]) && os.IsNotExist(err)
			}, time.Minute, 5*time.Millisecond, "%s and %s are still there", addrs[i], dirs[i])
		}
	})
}
