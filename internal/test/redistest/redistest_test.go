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
	"time"

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

// proxied runs test with a proxy in front of each kind of server; direct is a
// client that does not go through it. The client it hands out does not retry.
func proxied(t *testing.T, test func(t *testing.T, p *redistest.Proxy, rdb, direct redistest.Client)) {
	t.Helper()
	opt := &redistest.Options{MaxRetries: -1, ReadTimeout: 5 * time.Second}
	inMemory := func(t *testing.T, direct redistest.Client) {
		p := redistest.ProxyTo(t, direct)
		test(t, p, p.Client(t, opt), direct)
	}
	limitertest.Each(t, map[string]func(t *testing.T){
		"miniredis": func(t *testing.T) { redistest.Virtual(t, inMemory) },
		"redis":     func(t *testing.T) { redistest.VirtualServer(t, inMemory) },
		"sockets": func(t *testing.T) {
			p := redistest.StartProxy(t, redistest.Shared(t).Addr())
			test(t, p, p.Client(t, opt), redistest.Redis(t))
		},
	}, func(t *testing.T, run func(t *testing.T)) { run(t) })
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
		proxied(t, func(t *testing.T, p *redistest.Proxy, rdb, direct redistest.Client) {
			ctx, name := t.Context(), redistest.Name(t)
			p.OnCommand(redistest.Nth(2, name, test.action))
			cmds, _ := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
				for range 3 {
					pipe.Incr(ctx, name)
				}
				return nil
			})
			var answers []int64
			for _, cmd := range cmds {
				// When one answer fails, go-redis gives its error to all
				// commands; the value shows which were answered.
				answers = append(answers, cmd.(*redis.IntCmd).Val())
			}
			assert.Equal(t, test.answers, answers)
			p.Settle(t)
			assert.Equal(t, test.ran, direct.Get(ctx, name).Val())
		})
	})
}

func TestVirtual(t *testing.T) {
	t.Parallel()
	for range 3 {
		redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
			ctx := t.Context()
			require.Zero(t, rdb.DBSize(ctx).Val())
			before, err := rdb.Time(ctx).Result()
			require.NoError(t, err)
			assert.WithinDuration(t, time.Now(), before, 0)
			assert.EqualValues(t, 946684800, before.Unix(), "no wall clock")
			require.NoError(t, rdb.Set(ctx, "key", "value", time.Hour).Err())

			time.Sleep(time.Hour - time.Microsecond)
			after, err := rdb.Eval(ctx, "local t = redis.call('TIME') return t[1] .. ' ' .. t[2]", nil).Text()
			require.NoError(t, err)
			assert.Equal(t, strconv.FormatInt(before.Unix()+3599, 10)+" 999999", after)
			assert.EqualValues(t, 1, rdb.Exists(ctx, "key").Val())

			// Redis keeps a key to the end of its last millisecond.
			time.Sleep(time.Millisecond + time.Microsecond)
			assert.EqualValues(t, 0, rdb.Exists(ctx, "key").Val())
			require.NoError(t, rdb.Set(ctx, "left", "behind", 0).Err())
		})
	}
}

// A clock that is set back moves the moments away at which keys expire.
func TestStepping(t *testing.T) {
	t.Parallel()
	for range 2 {
		redistest.Stepping(t, func(t *testing.T, rdb redistest.Client, step func(time.Duration)) {
			ctx, start := t.Context(), time.Now()
			require.NoError(t, rdb.Set(ctx, "key", "value", time.Minute).Err())
			require.NoError(t, rdb.Set(ctx, "stays", "value", 0).Err())
			time.Sleep(10 * time.Second)
			step(-time.Hour)
			assert.WithinDuration(t, start.Add(10*time.Second-time.Hour), rdb.Time(ctx).Val(), 0)
			assert.Equal(t, time.Hour+50*time.Second, rdb.PTTL(ctx, "key").Val())
			assert.Equal(t, time.Duration(-1), rdb.PTTL(ctx, "stays").Val())
			time.Sleep(time.Second)
			assert.WithinDuration(t, start.Add(11*time.Second-time.Hour), rdb.Time(ctx).Val(), 0)
			assert.Equal(t, time.Hour+49*time.Second, rdb.PTTL(ctx, "key").Val())
			step(time.Hour)
			assert.Equal(t, 49*time.Second, rdb.PTTL(ctx, "key").Val())
			time.Sleep(time.Second)
			assert.Equal(t, 48*time.Second, rdb.PTTL(ctx, "key").Val(), "a clock that has been set right goes on")
			assert.WithinDuration(t, start.Add(12*time.Second), rdb.Time(ctx).Val(), 0)
			step(50 * time.Second)
			assert.Equal(t, []string{"stays"}, rdb.Keys(ctx, "*").Val())
		})
	}
}
