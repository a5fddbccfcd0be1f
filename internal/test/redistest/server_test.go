package redistest_test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestRedisIsOneServer(t *testing.T) {
	t.Parallel()
	a, b := redistest.Redis(t), redistest.Redis(t)
	name := redistest.Name(t)
	require.NoError(t, a.Set(t.Context(), name, "value", 0).Err())
	assert.Equal(t, "value", b.Get(t.Context(), name).Val())
	assert.Equal(t, redistest.Shared(t).Addr(), a.Options().Addr)
}

func TestStartRedis(t *testing.T) {
	t.Parallel()
	s := redistest.StartRedis(t, "--maxmemory", "7mb")
	rdb := s.Client(t, nil)
	assert.Equal(t, "7340032", rdb.ConfigGet(t.Context(), "maxmemory").Val()["maxmemory"])
	assert.Empty(t, rdb.ConfigGet(t.Context(), "save").Val()["save"])

	opt, err := redis.ParseURL(s.URL())
	require.NoError(t, err)
	assert.Equal(t, s.Addr(), opt.Addr)
	assert.NotEqual(t, redistest.Shared(t).Addr(), s.Addr())
}

func TestServerEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*redistest.Server){
		"Stop": (*redistest.Server).Stop,
		"Kill": (*redistest.Server).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.StartRedis(t)
			dir := s.Client(t, nil).ConfigGet(t.Context(), "dir").Val()["dir"]
			require.DirExists(t, dir)
			end(s)
			assert.False(t, listens(s.Addr()))
			assert.NoDirExists(t, dir)
			end(s)
		})
	}
}

func TestCrashAndRestart(t *testing.T) {
	t.Parallel()
	s := redistest.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	rdb := s.Client(t, nil)
	name := redistest.Name(t)
	for _, value := range []string{"first", "second"} {
		require.NoError(t, rdb.Set(t.Context(), name, value, 0).Err())
		s.Crash()
		require.False(t, listens(s.Addr()))
		s.Restart(t)
		assert.Equal(t, value, rdb.Get(t.Context(), name).Val())
	}
	s.Freeze(t)
	s.Crash()
	s.Restart(t)
	assert.Equal(t, "second", rdb.Get(t.Context(), name).Val())
	dir := rdb.ConfigGet(t.Context(), "dir").Val()["dir"]
	s.Kill()
	assert.NoDirExists(t, dir)
}

func TestStartStepped(t *testing.T) {
	t.Parallel()
	s := redistest.StartStepped(t)
	rdb := s.Client(t, nil)
	name := redistest.Name(t)
	require.NoError(t, rdb.Set(t.Context(), name, "", time.Minute).Err())
	for _, ahead := range []time.Duration{0, 30 * time.Second, -time.Hour, 2 * time.Minute} {
		s.SetAhead(t, ahead)
		assert.WithinDuration(t, time.Now().Add(ahead), rdb.Time(t.Context()).Val(), 10*time.Second)
	}
	assert.ErrorIs(t, rdb.Get(t.Context(), name).Err(), redis.Nil, "a key outlives its end")
}

// TestChild is what TestServersGoWithTheTestBinary runs in a process of its
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
	for how, want := range map[string]struct {
		env  []string
		text string
	}{
		"skip":        {[]string{"RRL_NO_SKIP="}, "--- SKIP: TestRedisIsOneServer"},
		"fail":        {[]string{"RRL_NO_SKIP=1"}, "--- FAIL: TestRedisIsOneServer"},
		"wrong place": {[]string{"RRL_NO_SKIP=", "RRL_REDIS_SERVER=/nonexistent"}, "--- FAIL: TestRedisIsOneServer"},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			cmd := asChild(t, "TestRedisIsOneServer", append([]string{"RRL_SKIP_LOG=", "RRL_REDIS_SERVER=", "PATH=" + t.TempDir()}, want.env...)...)
			cmd.Dir = t.TempDir()
			out, _ := cmd.CombinedOutput()
			assert.Contains(t, string(out), want.text)
		})
	}
}

func TestBrokenServer(t *testing.T) {
	t.Parallel()
	redistest.Shared(t)
	r := record(t, func(t testing.TB) { redistest.StartRedis(t, "--no-such-option", "1") })
	assert.Contains(t, r.failed, "no-such-option", "the message holds what the server said")
	assert.Less(t, strings.Count(r.failed, "\n"), 40)
}

func listens(addr string) bool {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}
