package connect_test

import (
	"context"
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
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// file writes a password to a file.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// env answers for an environment with one variable.
func env(name, value string) func(string) string {
	return func(asked string) string {
		if asked == name {
			return value
		}
		return ""
	}
}

func TestPassword(t *testing.T) {
	t.Parallel()
	for name, addr := range map[string]string{
		"redis":     redistest.StartRedis(t, "--requirepass", "secret,12").Addr(),
		"miniredis": withPassword(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			open(t, connect.Single, connect.Options{Redis: "redis://:secret,12@" + addr})
			open(t, connect.Single, connect.Options{Redis: ":secret%2C12@" + addr})
			open(t, connect.Single, connect.Options{Redis: addr, PasswordFile: file(t, "secret,12\n")})
			open(t, connect.Single, connect.Options{Redis: addr, Getenv: env("REDIS_PASSWORD", "secret,12")})
			open(t, connect.Single, connect.Options{Redis: addr, Getenv: env("REDISCLI_AUTH", "secret,12")})
			open(t, connect.Single, connect.Options{Redis: "redis://:secret,12@" + addr, Getenv: env("REDIS_PASSWORD", "secret-wrong")})
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

func withPassword(t *testing.T) string {
	t.Helper()
	m := miniredis.RunT(t)
	m.RequireAuth("secret,12")
	return m.Addr()
}

func TestPasswordThatNobodyAskedFor(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	conn, err := (&connect.Options{Redis: server.Addr(), Getenv: env("REDIS_PASSWORD", "secret")}).Open(t.Context())
	if err == nil { // the default user takes any
		require.NoError(t, conn.Close())
		return
	}
	require.ErrorContains(t, err, server.Addr()+" has no password set")
}

func TestUser(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	limited := redistest.AddUser(t, server, nil, "+get", "~key").Options()
	o := connect.Options{Redis: server.Addr(), User: limited.Username, PasswordFile: file(t, limited.Password), Getenv: nothing}
	conn, err := o.Open(t.Context())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	for command, words := range map[string]string{
		"set key x": `user "` + limited.Username + `" may not run SET (NOPERM): ACL SETUSER ` + limited.Username + " +set",
		"get other": "may not use these keys",
	} {
		var args []any
		for word := range strings.FieldsSeq(command) {
			args = append(args, word)
		}
		err := conn.Explain(conn.Client.Do(t.Context(), args...).Err())
		require.ErrorContains(t, err, words)
		assert.True(t, redis.HasErrorPrefix(err, "NOPERM"), "it wraps the server's")
	}
	require.NoError(t, conn.Explain(nil))

	open(t, connect.Single, connect.Options{
		Redis: "redis://other:secret@" + server.Addr(), User: "default", Getenv: env("REDIS_PASSWORD", "any"),
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
		{Redis: addr},
		{Redis: addr, Ring: true},
		{Redis: addr, SentinelMaster: "main"},
		{Redis: addr, TLS: true},
	} {
		o.Timeout, o.Getenv = 200*time.Millisecond, nothing
		start := time.Now()
		_, err := o.Open(t.Context())
		require.ErrorContains(t, err, addr+" gave no answer in time", "%+v", o)
		assert.Less(t, time.Since(start), 2*time.Second)
	}
	// One that is silent is no reason not to ask the other.
	m := miniredis.RunT(t)
	refuses(t, connect.Options{Redis: addr + "," + m.Addr(), Timeout: 400 * time.Millisecond}, m.Addr()+" is no node of a cluster")

	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err = (&connect.Options{Redis: addr, Timeout: time.Hour, Getenv: nothing}).Open(ctx)
	require.ErrorIs(t, err, context.Canceled)
}
