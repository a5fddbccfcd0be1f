package redistest_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// Else the test that ends first would remove the other's keys.
func TestName_TellsTestsApart(t *testing.T) {
	t.Parallel()
	prefixes := map[string]bool{}
	for _, name := range []string{"5", " 5", "+5", "_5", "{5", "\x00"} {
		t.Run("n"+name, func(t *testing.T) {
			prefix, _, _ := strings.Cut(redistest.Name(t), ":")
			assert.False(t, prefixes[prefix], prefix)
			prefixes[prefix] = true
		})
	}
}

func asChild(t *testing.T, test string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(limitertest.Must(os.Executable())(t), "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// TestChild is what TestServers_EndWithTestBinary runs in a process of its own; alone it tests nothing.
func TestChild(t *testing.T) {
	t.Parallel()
	how := os.Getenv("REDISTEST_CHILD")
	if how == "" {
		return
	}
	for _, s := range []*redistest.Server{redistest.Shared(t), redistest.StartRedis(t)} {
		dir := s.Client(t, nil).ConfigGet(t.Context(), "dir").Val()["dir"]
		fmt.Printf("server %s %s\n", s.Addr(), dir)
	}
	switch how {
	case "panics":
		panic("as told")
	case "is killed":
		fmt.Println("waiting")
		select {}
	}
}

func TestServers_EndWithTestBinary(t *testing.T) {
	t.Parallel()
	redistest.Shared(t)
	limitertest.Each(t, limitertest.Rows("returns", "panics", "is killed"), func(t *testing.T, how string) {
		cmd := asChild(t, "TestChild", "REDISTEST_CHILD="+how)
		out := limitertest.Must(cmd.StdoutPipe())(t)
		require.NoError(t, cmd.Start())
		servers := map[string]string{}
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var addr, dir string
			if _, err := fmt.Sscanf(lines.Text(), "server %s %s", &addr, &dir); err == nil {
				servers[addr] = dir
			}
			if lines.Text() == "waiting" {
				require.NoError(t, cmd.Process.Kill())
			}
		}
		_ = cmd.Wait()
		require.Len(t, servers, 2)
		for addr, dir := range servers {
			require.Eventually(t, func() bool {
				_, listens := net.Dial("tcp", addr)
				_, err := os.Stat(dir)
				return listens != nil && os.IsNotExist(err)
			}, time.Minute, 5*time.Millisecond, "%s and %s are still there", addr, dir)
		}
	})
}

func TestWithoutAServer(t *testing.T) {
	t.Parallel()
	const notes, note = "noted before\n", "no redis-server: neither $RRL_REDIS_SERVER, .cache/bin nor $PATH has one (scripts/install-redis.sh installs it)\n"
	type row struct {
		env        []string
		text, said string
	}
	limitertest.Each(t, map[string]row{
		"skip":        {[]string{"RRL_NO_SKIP="}, "--- SKIP: TestTopology", notes + note},
		"fail":        {[]string{"RRL_NO_SKIP=1"}, "--- FAIL: TestTopology", notes},
		"wrong place": {[]string{"RRL_NO_SKIP=", "RRL_REDIS_SERVER=/nonexistent"}, "--- FAIL: TestTopology", notes},
		"no topology": {
			[]string{"RRL_TOPOLOGY=moon"},
			`RRL_TOPOLOGY is "moon" and should be one of [single resp2 tls acl tls-acl sentinel cluster ring]`, notes,
		},
	}, func(t *testing.T, want row) {
		log := filepath.Join(t.TempDir(), "log")
		require.NoError(t, os.WriteFile(log, []byte(notes), 0o600))
		env := []string{"RRL_TOPOLOGY=", "RRL_SKIP_LOG=" + log, "RRL_REDIS_SERVER=", "PATH=" + t.TempDir()}
		cmd := asChild(t, "TestTopology", append(env, want.env...)...)
		cmd.Dir = t.TempDir()
		out, _ := cmd.CombinedOutput()
		assert.Contains(t, string(out), want.text)
		assert.Equal(t, want.said, string(limitertest.Must(os.ReadFile(log))(t)))
	})
}

// What the operations need is tested beside them; here, that nothing more is given.
func TestLeastCommandsAreThoseOfTheScripts(t *testing.T) {
	t.Parallel()
	called := regexp.MustCompile(`\bcall\('([A-Z]+)'`)
	// expire.lua and command.lua take theirs as arguments; slidinglog.Limiter.Thresholds needs no script.
	want := map[string]bool{"eval": true, "evalsha": true, "pexpire": true, "pexpireat": true, "type": true, "hscan": true}
	for _, script := range lua.All() {
		for _, match := range called.FindAllStringSubmatch(script.Source, -1) {
			want[strings.ToLower(match[1])] = true
		}
	}
	got := map[string]bool{}
	for rule := range strings.FieldsSeq(redistest.LeastCommands) {
		got[strings.TrimPrefix(rule, "+")] = true
	}
	assert.Equal(t, want, got)
}

// TestTopology tests the topology that the environment names. scripts/matrix.sh also uses it to learn what a server has.
func TestTopology(t *testing.T) {
	t.Parallel()
	rdb := redistest.CurrentClient(t)
	name := redistest.Name(t)
	want := make([]string, 30)
	for i := range want {
		want[i] = name + ":" + strconv.Itoa(10+i)
		require.NoError(t, rdb.Set(t.Context(), want[i], i, 0).Err())
	}
	assert.Equal(t, want, redistest.Keys(t, rdb, name+"*"))
	assert.Equal(t, "7", rdb.Get(t.Context(), want[7]).Val())
	cmd := redis.NewCmd(t.Context(), "get", want[7])
	require.NoError(t, rdb.Process(t.Context(), cmd))
	assert.Equal(t, "7", cmd.Val())
	if topology := redistest.CurrentTopology(t); topology == redistest.ACL || topology == redistest.TLSWithACL {
		require.ErrorContains(t, rdb.Process(t.Context(), redis.NewCmd(t.Context(), "hgetall", name)), "NOPERM")
		require.ErrorContains(t, rdb.Process(t.Context(), redis.NewCmd(t.Context(), "get", "TestTopolog")), "NOPERM")
	}
}

func TestProxyInAPipeline(t *testing.T) {
	t.Parallel()
	// Three commands in one write; the action is for the second.
	type row struct {
		action  redistest.Action
		answers []int64
		ran     string
	}
	limitertest.Each(t, map[string]row{
		"Cut":        {redistest.Cut, []int64{1, 0, 0}, "1"},
		"DropAnswer": {redistest.DropAnswer, []int64{1, 0, 0}, "2"},
		"Swallow":    {redistest.Swallow, []int64{1, 0, 0}, "3"},
		"Duplicate":  {redistest.Duplicate, []int64{1, 2, 4}, "4"},
		"Pass":       {redistest.Pass.After(10 * time.Millisecond), []int64{1, 2, 3}, "3"},
		"Late":       {redistest.Late.After(10 * time.Millisecond), []int64{1, 2, 3}, "3"},
	}, func(t *testing.T, test row) {
		opt := &redistest.Options{MaxRetries: -1, ReadTimeout: 5 * time.Second}
		check := func(t *testing.T, p *redistest.Proxy, direct redistest.Client) {
			ctx, name := t.Context(), redistest.Name(t)
			p.OnCommand(redistest.Nth(2, name, test.action))
			cmds, _ := p.Client(t, opt).Pipelined(ctx, func(pipe redis.Pipeliner) error {
				for range 3 {
					pipe.Incr(ctx, name)
				}
				return nil
			})
			var answers []int64
			for _, cmd := range cmds {
				// When one answer fails, go-redis gives its error to all commands; the value shows which were answered.
				answers = append(answers, cmd.(*redis.IntCmd).Val())
			}
			assert.Equal(t, test.answers, answers)
			p.Settle(t)
			assert.Equal(t, test.ran, direct.Get(ctx, name).Val())
		}
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) { check(t, redistest.ProxyTo(t, rdb), rdb) })
		check(t, redistest.StartProxy(t, redistest.Shared(t).Addr()), redistest.Redis(t))
	})
}
