package connect_test

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/connect"
	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

func TestMain(m *testing.M) {
	logging.Disable()
	m.Run()
}

func variable(name, value string) func(string) string {
	return func(asked string) string { return map[string]string{name: value}[asked] }
}

// dial opens a connection, for a minute at most; without an environment, if there is none.
func dial(t *testing.T, o connect.Options) (*connect.Connection, error) {
	t.Helper()
	if o.Getenv == nil {
		o.Getenv = variable("", "")
	}
	ctx := limitertest.Within(t, time.Minute)
	conn, err := o.Open(ctx)
	if err == nil {
		t.Cleanup(func() { _ = conn.Close() })
	}
	return conn, err
}

// open opens a connection that must work, and be of this kind.
func open(t *testing.T, kind connect.Kind, o connect.Options) *connect.Connection {
	t.Helper()
	o.Timeout = time.Minute
	conn := limitertest.Must(dial(t, o))(t)
	assert.Equal(t, kind, conn.Kind)
	works(t, conn)
	return conn
}

// works writes keys and finds each on its node, and all by the masters.
func works(t *testing.T, conn *connect.Connection) {
	t.Helper()
	ctx := t.Context()
	prefix := redistest.Name(t)
	for _, n := range []string{"a", "b", "c", "d", "e"} {
		require.NoError(t, conn.Client.Set(ctx, prefix+n, n, time.Minute).Err())
		require.NoError(t, conn.OnNode(ctx, prefix+n, func(ctx context.Context, node nodes.Client) error {
			got, err := node.Get(ctx, prefix+n).Result()
			assert.Equal(t, n, got)
			return err
		}))
	}
	var mu sync.Mutex
	found := map[string]int{}
	require.NoError(t, conn.ForEachMaster(ctx, func(ctx context.Context, node nodes.Client) error {
		keys := node.Scan(ctx, 0, "*"+prefix+"*", 1000).Iterator()
		for keys.Next(ctx) {
			mu.Lock()
			found[keys.Val()]++
			mu.Unlock()
		}
		return keys.Err()
	}))
	assert.Len(t, found, 5)
}

// refuses opens a connection that must fail by itself, with these words.
func refuses(t *testing.T, o connect.Options, words ...string) {
	t.Helper()
	o.Timeout = cmp.Or(o.Timeout, time.Minute)
	_, err := dial(t, o)
	require.Error(t, err)
	for _, word := range words {
		require.ErrorContains(t, err, word)
	}
	assert.NotContains(t, err.Error(), "secret")
	assert.NotContains(t, err.Error(), "\n")
}

func TestOneServer(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	for _, text := range []string{m.Addr(), "redis://" + m.Addr(), "redis://" + m.Addr() + "/0", " " + m.Addr() + " "} {
		conn := open(t, connect.Single, connect.Options{Redis: text})
		assert.Equal(t, "the server at "+m.Addr(), conn.Description())
	}
	_, port, err := net.SplitHostPort(m.Addr())
	require.NoError(t, err)
	open(t, connect.Single, connect.Options{Redis: "localhost:" + port})
	open(t, connect.Single, connect.Options{Getenv: variable("REDIS_URL", m.Addr())})
}

func TestUnixSocket(t *testing.T) {
	t.Parallel()
	socket := redistest.StartRedis(t).Socket()
	open(t, connect.Single, connect.Options{Redis: socket})
	open(t, connect.Single, connect.Options{Redis: "unix://" + socket})
	refuses(t, connect.Options{Redis: socket + "x"}, "can't reach "+socket+"x", "no such file")
	refuses(t, connect.Options{Redis: socket, TLS: true}, "no TLS over a unix socket")
}

func TestCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	addrs := cluster.Addrs()
	conn := open(t, connect.Cluster, connect.Options{Redis: addrs[1]})
	assert.Equal(t, "the cluster of "+addrs[1], conn.Description())
	open(t, connect.Cluster, connect.Options{Redis: strings.Join(addrs, ",")})
	open(t, connect.Cluster, connect.Options{Redis: "127.0.0.1:1, " + addrs[0]})
	refuses(t, connect.Options{Redis: addrs[0] + "/2"}, "no database 2")
	refuses(t, connect.Options{Redis: strings.Join(addrs, ","), Ring: true}, "leave out --ring")
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	sentinel := redistest.StartSentinel(t, 1, 30*time.Second)
	name, watch := sentinel.Watch()
	conn := open(t, connect.Sentinel, connect.Options{Redis: strings.Join(watch, ","), SentinelMaster: name})
	assert.Contains(t, conn.Description(), sentinel.Master(t).Addr())
	open(t, connect.Sentinel, connect.Options{Redis: "127.0.0.1:1," + watch[0], SentinelMaster: name})
	refuses(t, connect.Options{Redis: watch[0]}, watch[0]+" is a Sentinel", "--sentinel-master")
	refuses(t, connect.Options{Redis: watch[0], SentinelMaster: "other"}, watch[0], `no master called "other"`)
	master := sentinel.Master(t).Addr()
	refuses(t, connect.Options{Redis: master, SentinelMaster: name}, master+" is no Sentinel")
	refuses(t, connect.Options{Redis: "127.0.0.1:1", SentinelMaster: name}, "127.0.0.1:1", "connection refused")
}

func TestRing(t *testing.T) {
	t.Parallel()
	ring := redistest.StartRing(t, 3)
	var addrs, named []string
	for i, s := range ring.Servers {
		addrs = append(addrs, s.Addr())
		// The names that redistest gives them.
		named = append(named, "shard"+string(rune('0'+i))+"="+s.Addr())
	}
	open(t, connect.Ring, connect.Options{Redis: strings.Join(addrs, ","), Ring: true})
	conn := open(t, connect.Ring, connect.Options{Redis: strings.Join(named, ","), Ring: true})
	theirs := ring.Client(t, nil)
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		other := limitertest.Must(nodes.Of(t.Context(), theirs, key))(t)
		require.NoError(t, conn.OnNode(t.Context(), key, func(_ context.Context, mine nodes.Client) error {
			assert.Equal(t, nodes.Addr(other), nodes.Addr(mine), key)
			return nil
		}))
	}
	refuses(t, connect.Options{Redis: strings.Join(addrs, ",")}, addrs[0]+" is no node of a cluster", "--ring")
	refuses(t, connect.Options{Redis: "x=" + addrs[0] + ",x=" + addrs[1], Ring: true}, `two shards are called "x"`)
	refuses(t, connect.Options{Redis: addrs[0] + ",127.0.0.1:1", Ring: true}, "shard shard2", "127.0.0.1:1")
	refuses(t, connect.Options{Ring: true, SentinelMaster: "x"}, "exclude each other")
}

func TestTLS(t *testing.T) {
	t.Parallel()
	server := redistest.StartTLS(t)
	ca, cert, key := server.TLSFiles()
	addr := server.Addr()
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	all := connect.Options{Redis: addr, TLSCA: ca, TLSCert: cert, TLSKey: key}
	open(t, connect.Single, all)
	with := func(change func(*connect.Options)) connect.Options {
		o := all
		change(&o)
		return o
	}
	open(t, connect.Single, with(func(o *connect.Options) { o.Redis = "rediss://" + addr }))
	open(t, connect.Single, with(func(o *connect.Options) { o.TLSCA, o.TLSSkipVerify = "", true }))
	open(t, connect.Ring, with(func(o *connect.Options) { o.Ring = true }))
	open(t, connect.Single, with(func(o *connect.Options) { o.Redis, o.TLSServerName = "localhost:"+port, "127.0.0.1" }))
	refuses(t, connect.Options{Redis: addr}, addr, "--tls")
	refuses(t, connect.Options{Redis: addr, TLS: true}, addr, "--tls-ca")
	refuses(t, connect.Options{Redis: addr, TLSCA: ca}, addr, "--tls-cert and --tls-key")
	refuses(t, with(func(o *connect.Options) { o.Redis = "localhost:" + port }), "another name", "--tls-server-name")
	refuses(t, with(func(o *connect.Options) { o.TLSKey = "" }), "go together")
	refuses(t, with(func(o *connect.Options) { o.TLSCA = key }), "no certificate in PEM")
	refuses(t, with(func(o *connect.Options) { o.TLSCA = ca + "x" }), "--tls-ca", "no such file")
	refuses(t, with(func(o *connect.Options) { o.TLSKey = ca }), "--tls-cert and --tls-key")
	refuses(t, with(func(o *connect.Options) { o.Redis = "rediss://" + addr + "?skip_verify=true" }), "--tls-skip-verify")
	plain := redistest.StartRedis(t)
	refuses(t, connect.Options{Redis: plain.Addr(), TLS: true, Timeout: time.Second}, plain.Addr(), "has no TLS")
}

// A cluster's node that does not know its address is where it was asked.
func TestTLSOfCluster(t *testing.T) {
	t.Parallel()
	server := redistest.StartTLS(t, "--cluster-enabled", "yes", "--tls-cluster", "yes", "--tls-auth-clients", "no")
	rdb := server.Client(t, nil)
	require.NoError(t, rdb.ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	require.Eventually(t, func() bool {
		info, err := rdb.ClusterInfo(t.Context()).Result()
		return err == nil && strings.Contains(info, "cluster_state:ok")
	}, time.Minute, 20*time.Millisecond)
	ca, _, _ := server.TLSFiles()
	open(t, connect.Cluster, connect.Options{Redis: server.Addr(), TLSCA: ca})
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestPassword(t *testing.T) {
	t.Parallel()
	addr := redistest.StartRedis(t, "--requirepass", "secret,12").Addr()
	open(t, connect.Single, connect.Options{Redis: "redis://:secret,12@" + addr})
	open(t, connect.Single, connect.Options{Redis: ":secret%2C12@" + addr})
	open(t, connect.Single, connect.Options{Redis: addr, PasswordFile: file(t, "secret,12\n")})
	open(t, connect.Single, connect.Options{Redis: addr, Getenv: variable("REDIS_PASSWORD", "secret,12")})
	open(t, connect.Single, connect.Options{Redis: addr, Getenv: variable("REDISCLI_AUTH", "secret,12")})
	wrong := variable("REDIS_PASSWORD", "secret-wrong")
	open(t, connect.Single, connect.Options{Redis: "redis://:secret,12@" + addr, Getenv: wrong})
	open(t, connect.Single, connect.Options{Redis: "redis://:secret-wrong@" + addr, PasswordFile: file(t, "secret,12")})
	refuses(t, connect.Options{Redis: addr}, addr+" wants a password (NOAUTH)", "--password-file")
	refuses(t, connect.Options{Redis: addr, PasswordFile: file(t, "secret-wrong")}, addr, `user "default"`, "WRONGPASS")
	refuses(t, connect.Options{Redis: addr, PasswordFile: file(t, "\n")}, "is empty")
	refuses(t, connect.Options{Redis: addr, PasswordFile: "/none"}, "--password-file", "no such file")
	refuses(t, connect.Options{Redis: addr, User: "ann"}, `no password for user "ann"`)
}

func TestUser(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	user := redistest.Username(redistest.AddUser(t, server, nil, "+get", "~key"))
	conn := limitertest.Must(dial(t, connect.Options{Redis: server.Addr(), User: user, PasswordFile: file(t, user)}))(t)
	notSet := fmt.Sprintf("user %q may not run SET (NOPERM): ACL SETUSER %[1]s +set", user)
	for words, err := range map[string]error{
		notSet:                   conn.Client.Set(t.Context(), "key", "x", 0).Err(),
		"may not use these keys": conn.Client.Get(t.Context(), "other").Err(),
	} {
		err := conn.Explain(err)
		require.ErrorContains(t, err, words)
		assert.True(t, redis.HasErrorPrefix(err, "NOPERM"), "it wraps the server's")
	}
	require.NoError(t, conn.Explain(nil))
	for answer, words := range map[redistest.AnswerError]string{
		"READONLY You can't write against a read only replica.": server.Addr() + " is a replica, which takes no changes (READONLY)",
		"LOADING Redis is loading the dataset in memory":        server.Addr() + " is still loading its data",
		"MASTERDOWN Link with MASTER is down":                   server.Addr() + " is a replica that has lost its master",
		"CLUSTERDOWN The cluster is down":                       "the cluster is down",
		"TRYAGAIN Multiple keys request during rehashing":       "the cluster is moving these keys to another node: try again",
	} {
		require.ErrorContains(t, conn.Explain(answer), words)
	}
	late := fmt.Errorf("%w: no answer within 3s", limit.ErrUnavailable)
	require.ErrorContains(t, conn.Explain(late), "no answer within 3s, at "+server.Addr())
	open(t, connect.Single, connect.Options{
		Redis: "redis://other:secret@" + server.Addr(), User: "default", Getenv: variable("REDIS_PASSWORD", "any"),
	})
	refuses(t, connect.Options{Redis: "redis://ann:secret@" + server.Addr()}, `user "ann"`, "WRONGPASS")
	refuses(t, connect.Options{Redis: "redis://ann:secret@a,redis://bob:secret@b"}, "differ in scheme, login or database")
	refuses(t, connect.Options{Redis: server.Addr(), SentinelUser: "ann"}, "need --sentinel-master")
	_, err := dial(t, connect.Options{Redis: server.Addr(), Getenv: variable("REDIS_PASSWORD", "secret")})
	if err != nil { // the default user takes any password, or says that it has none
		require.ErrorContains(t, err, server.Addr()+" has no password set")
	}
}

func TestNoServerAnswers(t *testing.T) {
	t.Parallel()
	refuses(t, connect.Options{Redis: "127.0.0.1:1"}, "can't reach 127.0.0.1:1", "connection refused")
	refuses(t, connect.Options{Redis: "127.0.0.1:2,127.0.0.1:1"}, "127.0.0.1:2", "127.0.0.1:1")
	refuses(t, connect.Options{Redis: "no.such.host.invalid:6379"}, "no.such.host.invalid")
	refuses(t, connect.Options{Redis: "http://localhost"}, `the scheme "http" is none of redis, rediss (TLS) and unix`)
	refuses(t, connect.Options{Redis: "localhost:0x"}, "the server's URL")
	refuses(t, connect.Options{Redis: "a,,b"}, "an address is empty")
	refuses(t, connect.Options{Redis: "[::1]:1"}, "[::1]:1")
	refuses(t, connect.Options{Redis: "::1"}, "[::1]:6379")
}

func TestConnect_SilentServerIsGivenUpInTime(t *testing.T) {
	t.Parallel()
	var config net.ListenConfig
	silent := limitertest.Must(config.Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	defer func() { _ = silent.Close() }()
	addr := silent.Addr().String()
	for _, o := range []connect.Options{
		{Redis: addr}, {Redis: addr, Ring: true}, {Redis: addr, SentinelMaster: "main"}, {Redis: addr, TLS: true},
	} {
		o.Timeout = 200 * time.Millisecond
		refuses(t, o, addr+" gave no answer in time")
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel) // most likely while it waits
	_, err := (&connect.Options{Redis: addr, Timeout: time.Hour, Getenv: variable("", "")}).Open(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

// No setting leaves a wait without an end.
func TestHowLongAClientWaits(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	url := "redis://" + m.Addr()
	for _, c := range []struct {
		url              string
		timeout          time.Duration
		dial, read, call time.Duration
	}{
		{url, 0, 3 * time.Second, 3 * time.Second, 3 * time.Second},
		{url, 2 * time.Second, 2 * time.Second, 3 * time.Second, 3 * time.Second},
		{url, time.Minute, time.Minute, time.Minute, time.Minute},
		{url + "?read_timeout=10s&dial_timeout=20s", time.Minute, 20 * time.Second, 10 * time.Second, time.Minute},
	} {
		o := connect.Options{Redis: c.url, Timeout: c.timeout}
		got := limitertest.Must(dial(t, o))(t).Client.(*redis.Client).Options()
		assert.Equal(t, []time.Duration{c.dial, c.read, c.read, c.call},
			[]time.Duration{got.DialTimeout, got.ReadTimeout, got.WriteTimeout, o.CallTimeout()}, "%+v", c)
		assert.Equal(t, 1, got.MaxRetries)
	}
}

func TestNoErrorShowsAPassword(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"redis://ann:sec/ret@host:6379", "redis://ann:sec?ret@host", "redis://ann:sec%ret@host", "redis://ann:secret",
		"redis://:12/sec@host:6379", "redis://ann@x:12/sec@host", "redis://:secret@local host:1",
		"rediss://:secret@[::1]:6379/1?db=2&read_timeout=-1&skip_verify=true&x=y", "redis://:secret@host:port/%zz", "http://%:secret",
		"red\x7fis://[:secret@:0/0/0?max_retries=1e3", "://:secret@a@b:c?pool_size=99999999999999999999&dial_timeout=1&x=y",
	} {
		_, err := connect.ParseURL(address)
		if assert.ErrorContains(t, err, "the server's URL", address) {
			assert.NotContains(t, err.Error(), "sec", address)
		}
	}
	_, err := connect.ParseURL("redis://ann:secret@host/x")
	assert.ErrorContains(t, err, `invalid database number: "x"`)
}
