package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A limiter whose calls fail is broken in whatever shows it, and not unused.
func TestBrokenLimitersAreShownAsSuch(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	require.Zero(t, s.rrl("set-rate", "fine", "10/1h").code)
	require.Zero(t, s.rrl("set-rate", "set", "10/1h").code)
	require.NoError(t, s.Set("{set}:permits", "x"))
	require.Zero(t, s.rrl("set-rate", "value", "10/1h").code)
	require.NoError(t, s.Set("{value}:value", "\x1b[31m"+strings.Repeat("many", 100)))
	s.HSet("rate", "rate", "ten\x1b[31m", "interval", "1000", "type", "0")
	s.HSet("user", "name", "ann", "type", "0")

	why := map[string]string{
		"set": "key {set}:permits is not a sorted set", "value": `key {value}:value holds "\x1b[31m` + strings.Repeat("many", 8) + `man"..., not a whole number`,
		"rate": `field rate is "ten\x1b[31m", not a whole number from 0 to 9007199254740991`,
	}
	list, top := s.rrl("ls"), s.rrl("top", "--count", "1")
	assert.NotContains(t, list.stdout+top.stdout, "user")
	assert.Contains(t, top.stdout, "4 limiters, 0 in use, 0 used up, 3 broken")
	assert.Regexp(t, `(?m)^fine +0% +10 `, top.stdout)
	for name, why := range why {
		assert.Regexp(t, `(?m)^`+name+` +broken +`, list.stdout)
		assert.Contains(t, list.stdout, name+" is broken: "+why+"\n")
		assert.Regexp(t, `(?m)^`+name+` +broken: `, top.stdout)
		watched := s.rrl("watch", name, "--count", "1")
		assert.Equal(t, exitYes, watched.code)
		assert.Contains(t, watched.stdout, "  broken: "+why+"\n")
		assert.Equal(t, why, object(t, s.rrl("watch", name, "--count", "1", "--json").stdout)["broken"])
		shown := s.rrl("show", name)
		assert.Equal(t, exitNo, shown.code)
		assert.Contains(t, shown.stdout, "\nbroken\n  - ")
		assert.NotContains(t, list.stdout+top.stdout+watched.stdout+shown.stdout, "\x1b")
		s.fails(name, "acquire", name)
	}
	assert.Contains(t, s.rrl("show", "set").stdout, "key {set}:permits is a string, not a sorted set")
	assert.Regexp(t, `in use +unknown\n`, s.rrl("show", "set").stdout)

	require.NoError(t, s.Set("text", "x"))
	assert.Contains(t, s.rrl("watch", "text", "--count", "1").stdout, "broken: key text is not a hash")
	for name, what := range map[string]string{"text": "key text is a string, not a hash", "user": "key user is a hash of something else\n    no limiter can have this name: choose another"} {
		shown := s.rrl("show", name)
		assert.Equal(t, exitNo, shown.code)
		assert.Contains(t, shown.stdout, what)
	}
	assert.Equal(t, exitNo, s.rrl("watch", "user").code)
}

// Doctor looks at all limiters while it has time, also at hashes that were meant for one.
func TestDoctorFindsTheOneThatIsBroken(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	rdb := server.Client(t, nil)
	pipe := rdb.Pipeline()
	const limiters = 2000
	for i := range limiters {
		pipe.HSet(t.Context(), fmt.Sprint("limiter:", i), "rate", 10, "interval", 60_000, "type", 0)
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	doctor := func(args ...string) outcome {
		return rrl(t, append([]string{"doctor", "--redis", server.URL(), "--time", "1m"}, args...)...)
	}
	// A busy machine's round trips are slow, of which doctor warns: exitNo.
	got := doctor()
	assert.NotEqual(t, exitError, got.code, "%+v", got)
	assert.Contains(t, got.stdout, "all 2000 limiters looked at; nothing is wrong with what was looked at")
	got = doctor("--sample", "100")
	assert.NotEqual(t, exitError, got.code, "%+v", got)
	assert.Regexp(t, `note +limiters: 100 of about \d+ limiters looked at, about 500 of 2000 keys walked; nothing is wrong`, got.stdout)
	assert.Contains(t, got.stdout, "--all looks at all of them")

	// SCAN shows this one last: a sample would not have it.
	names, _, err := rdb.Scan(t.Context(), 0, "", 10*limiters).Result()
	require.NoError(t, err)
	require.NoError(t, rdb.HSet(t.Context(), names[limiters-1], "rate", "ten").Err())
	got = doctor()
	assert.Equal(t, exitError, got.code)
	assert.Contains(t, strings.Join(strings.Fields(got.stdout), " "), "bad_config: 1 limiter: "+names[limiters-1]+`: field rate is "ten"`)
	assert.Contains(t, got.stdout, "all 2000 limiters looked at\n")
	require.NoError(t, rdb.HSet(t.Context(), names[limiters-1], "rate", 10).Err())
	require.NoError(t, rdb.Set(t.Context(), "{"+names[limiters-1]+"}:permits", "x", 0).Err())
	got = rrl(t, "doctor", "--redis", server.URL(), "--all")
	assert.Equal(t, exitError, got.code)
	assert.Contains(t, got.stdout, "wrong_type: 1 limiter")
	assert.Contains(t, rrl(t, "doctor", "--all", "--time", "1s", "--redis", server.URL()).stderr, "--all and --time exclude each other")
}

// Names, and what keys hold, may be anything.
func TestBrokenLimitersOfHostileNames(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	const name = "a\nb\x1b[31m"
	require.Zero(t, s.rrl("set-rate", name, "10/1h").code)
	require.NoError(t, s.Set("{"+name+"}:permits", "x"))
	require.NoError(t, s.Set("{"+name+"}:value", "\x1b[31m"))
	for _, args := range [][]string{{"ls"}, {"top", "--count", "1"}, {"watch", name, "--count", "1"}, {"show", name}, {"doctor"}, {"acquire", name}, {"release", name}} {
		got := s.rrl(args...)
		assert.NotContains(t, got.stdout+got.stderr, "\x1b", args)
		assert.NotContains(t, got.stdout+got.stderr, "a\nb", args)
	}
}
