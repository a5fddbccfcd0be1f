package connect_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/internal/test/fuzztest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// file writes a password to a file.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestPassword(t *testing.T) {
	t.Parallel()
	mini := miniredis.RunT(t)
	mini.RequireAuth("secret,12")
	for name, addr := range map[string]string{
		"redis": redistest.StartRedis(t, "--requirepass", "secret,12").Addr(), "miniredis": mini.Addr(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			open(t, connect.Single, connect.Options{Redis: "redis://:secret,12@" + addr})
			open(t, connect.Single, connect.Options{Redis: ":secret%2C12@" + addr})
			open(t, connect.Single, connect.Options{Redis: addr, PasswordFile: file(t, "secret,12\n")})
			open(t, connect.Single, connect.Options{Redis: addr, Getenv: variable("REDIS_PASSWORD", "secret,12")})
			open(t, connect.Single, connect.Options{Redis: addr, Getenv: variable("REDISCLI_AUTH", "secret,12")})
			open(t, connect.Single, connect.Options{Redis: "redis://:secret,12@" + addr, Getenv: variable("REDIS_PASSWORD", "secret-wrong")})
			open(t, connect.Single, connect.Options{Redis: "redis://:secret-wrong@" + addr, PasswordFile: file(t, "secret,12")})

			if name == "redis" { // a miniredis says so at the first command
				refuses(t, connect.Options{Redis: addr}, addr+" wants a password (NOAUTH)", "--password-file")
			}
			refuses(t, connect.Options{Redis: addr, PasswordFile: file(t, "secret-wrong")}, addr, `user "default"`, "WRONGPASS")
			refuses(t, connect.Options{Redis: addr, PasswordFile: file(t, "\n")}, "is empty")
			refuses(t, connect.Options{Redis: addr, PasswordFile: "/none"}, "--password-file", "no such file")
			refuses(t, connect.Options{Redis: addr, User: "ann"}, `no password for user "ann"`)
		})
	}
}

func TestPasswordThatNobodyAskedFor(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	_, err := dial(t, connect.Options{Redis: server.Addr(), Getenv: variable("REDIS_PASSWORD", "secret")})
	if err != nil { // else the default user takes any
		require.ErrorContains(t, err, server.Addr()+" has no password set")
	}
}

func TestUser(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	limited := redistest.AddUser(t, server, nil, "+get", "~key").Options()
	conn, err := dial(t, connect.Options{Redis: server.Addr(), User: limited.Username, PasswordFile: file(t, limited.Password)})
	require.NoError(t, err)
	notSet := fmt.Sprintf("user %q may not run SET (NOPERM): ACL SETUSER %[1]s +set", limited.Username)
	for words, err := range map[string]error{
		notSet:                   conn.Client.Set(t.Context(), "key", "x", 0).Err(),
		"may not use these keys": conn.Client.Get(t.Context(), "other").Err(),
	} {
		err := conn.Explain(err)
		require.ErrorContains(t, err, words)
		assert.True(t, redis.HasErrorPrefix(err, "NOPERM"), "it wraps the server's")
	}
	require.NoError(t, conn.Explain(nil))

	open(t, connect.Single, connect.Options{
		Redis: "redis://other:secret@" + server.Addr(), User: "default", Getenv: variable("REDIS_PASSWORD", "any"),
	})
	refuses(t, connect.Options{Redis: "redis://ann:secret@" + server.Addr()}, `user "ann"`, "WRONGPASS")
	refuses(t, connect.Options{Redis: "redis://ann:secret@a,redis://bob:secret@b"}, "differ in scheme, login or database")
	refuses(t, connect.Options{Redis: server.Addr(), SentinelUser: "ann"}, "need --sentinel-master")
}

func TestWhereNobodyAnswers(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	addr := m.Addr()
	m.Close()
	refuses(t, connect.Options{Redis: addr}, "can't reach "+addr, "connection refused")
	refuses(t, connect.Options{Redis: addr + ",127.0.0.1:1"}, addr, "127.0.0.1:1")
	refuses(t, connect.Options{Redis: "no.such.host.invalid:6379"}, "no.such.host.invalid")
	refuses(t, connect.Options{Redis: "http://localhost"}, `the scheme "http" is none of redis, rediss (TLS) and unix`)
	refuses(t, connect.Options{Redis: "localhost:0x"}, "the server's URL")
	refuses(t, connect.Options{Redis: "a,,b"}, "an address is empty")
	refuses(t, connect.Options{Redis: "[::1]:1"}, "[::1]:1")
	refuses(t, connect.Options{Redis: "::1"}, "[::1]:6379")
}

func TestAServerThatDoesNotAnswerIsGivenUpInTime(t *testing.T) {
	t.Parallel()
	var config net.ListenConfig
	silent, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	addr := silent.Addr().String()
	for _, o := range []connect.Options{
		{Redis: addr}, {Redis: addr, Ring: true}, {Redis: addr, SentinelMaster: "main"}, {Redis: addr, TLS: true},
	} {
		o.Timeout = 200 * time.Millisecond
		refuses(t, o, addr+" gave no answer in time")
	}
	// One that is silent is no reason not to ask the other.
	m := miniredis.RunT(t)
	refuses(t, connect.Options{Redis: addr + "," + m.Addr(), Timeout: 4 * time.Second}, m.Addr()+" is no node of a cluster")

	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel) // most likely while it waits
	_, err = (&connect.Options{Redis: addr, Timeout: time.Hour, Getenv: variable("", "")}).Open(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

// FuzzParseURL is somebody who mistypes: no error shows the password.
func FuzzParseURL(f *testing.F) {
	f.Add("redis", "ann", "@127.0.0.1:6379/0")
	f.Add("rediss", "", "@[::1]:6379/1?db=2&read_timeout=-1&skip_verify=true")
	f.Add("unix", "ann:x", "@/run/redis.sock?db=x")
	f.Add("redis", "", "@host:port/%zz")
	f.Add("http", "%", "")
	f.Add("red\x7fis", "[", "@:0/0/0?max_retries=1e3")
	f.Add("", "", "@a@b:c?pool_size=99999999999999999999&dial_timeout=1&x=y")
	fuzztest.Run(f, func(t testing.TB, scheme, user, rest string) {
		const password = "oPeNsEsAmE"
		if strings.ContainsAny(scheme+user, ":/?#") {
			return // it is another part of the URL then
		}
		opts, err := connect.ParseURL(scheme + "://" + user + ":" + password + rest)
		switch {
		case err == nil && (opts == nil || opts.Addr == ""):
			t.Errorf("%q %q %q: no address", scheme, user, rest)
		case err != nil && (opts != nil || strings.Contains(err.Error(), password)):
			t.Errorf("%q %q %q: %v", scheme, user, rest, err)
		}
	})
}

func TestNoErrorShowsAPassword(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"redis://ann:sec/ret@host:6379", "redis://ann:sec?ret@host", "redis://ann:sec%ret@host", "redis://ann:secret",
		"redis://:12/sec@host:6379", "redis://ann@x:12/sec@host", "redis://:secret@local host:1",
	} {
		_, err := connect.ParseURL(address)
		if assert.ErrorContains(t, err, "the server's URL", address) {
			assert.NotContains(t, err.Error(), "sec", address)
		}
	}
	_, err := connect.ParseURL("redis://ann:secret@host/x")
	assert.ErrorContains(t, err, `invalid database number: "x"`)
}
