package redistest_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

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

// TestChild is what TestServers_EndWithTestBinary runs in a process of its
// own; alone it tests nothing.
func TestChild(t *testing.T) {
	t.Parallel()
	how := os.Getenv("REDISTEST_CHILD")
	if how == "" {
		return
	}
	shared, own := redistest.Shared(t), redistest.StartRedis(t)
	for _, s := range []*redistest.Server{shared, own} {
		dir := s.Client(t, nil).ConfigGet(t.Context(), "dir").Val()["dir"]
		fmt.Printf("server %s %s\n", s.Addr(), dir)
	}
	switch how {
	case "panic":
		panic("as told")
	case "wait":
		fmt.Println("waiting")
		select {}
	}
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
		said, err := os.ReadFile(log)
		require.NoError(t, err)
		assert.Equal(t, want.said, string(said))
	})
}

func listens(addr string) bool {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// What the operations need is tested beside them; here, that nothing more is given.
func TestLeastCommandsAreThoseOfTheScripts(t *testing.T) {
	t.Parallel()
	called := regexp.MustCompile(`\bcall\('([A-Z]+)'`)
	// expire.lua and command.lua take theirs as arguments; slidinglog.Limiter.Thresholds
	// needs no script.
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

// TestTopology tests the topology that the environment names. scripts/matrix.sh also uses it to
// learn what a server has.
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

	hash := redis.NewCmd(t.Context(), "hgetall", name)
	err := rdb.Process(t.Context(), hash)
	switch redistest.CurrentTopology(t) {
	case redistest.ACL, redistest.TLSWithACL:
		require.ErrorContains(t, err, "NOPERM")
		other := redis.NewCmd(t.Context(), "get", "TestTopolog")
		require.ErrorContains(t, rdb.Process(t.Context(), other), "NOPERM")
	case redistest.RESP2:
		assert.IsType(t, []any{}, hash.Val(), "there are no maps")
	default:
		assert.IsType(t, map[any]any{}, hash.Val())
	}
	switch redistest.CurrentTopology(t) {
	case redistest.Clustered:
		assert.IsType(t, (*redis.ClusterClient)(nil), rdb)
	case redistest.RingOfMany:
		assert.IsType(t, (*redis.Ring)(nil), rdb)
	}
}
