package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/look"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestListFindsLimitersAlone(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	require.Equal(t, outcome{exitYes, "no limiters\n", ""}, s.rrl("ls"))
	require.Equal(t, outcome{exitYes, "[]\n", ""}, s.rrl("ls", "--json"))

	require.Zero(t, s.rrl("set-rate", "api:orders", "100/1s").code)
	require.Zero(t, s.rrl("set-rate", "api:mail", "5/1m", "--type", "per-client", "--keep-alive", "1h").code)
	require.Zero(t, s.rrl("set-rate", "jobs\n", "7/1h").code)
	require.Zero(t, s.rrl("acquire", "api:orders").code)
	s.HSet("user", "name", "ann", "type", "0")
	s.HSet("car", "rate", "fast", "interval", "monthly", "type", "0")
	require.NoError(t, s.Set("text", "rate interval type"))

	var all []listed
	require.NoError(t, json.Unmarshal([]byte(s.rrl("ls", "--json").stdout), &all))
	require.Len(t, all, 3)
	assert.Equal(t, listed{Name: "api:orders", Rate: 100, IntervalMS: 1000, Type: "OVERALL"}, all[1])
	assert.Equal(t, "jobs\n", all[2].Name)
	mail := all[0]
	assert.EqualValues(t, 3_600_000, mail.KeepAliveMS)
	assert.Equal(t, "PER_CLIENT", mail.Type)

	text := s.rrl("ls").stdout
	assert.Regexp(t, `(?m)^NAME +RATE +TYPE +KEEP-ALIVE +EXPIRES IN$`, text)
	assert.Regexp(t, `(?m)^api:mail +5/1m +PER_CLIENT +1h `, text)
	assert.Regexp(t, `(?m)^api:orders +100/1s +OVERALL +- +-$`, text)
	assert.Regexp(t, `(?m)^"jobs\\n" +7/1h`, text)

	require.NoError(t, json.Unmarshal([]byte(s.rrl("ls", "api:*", "--json").stdout), &all))
	assert.Len(t, all, 2)
}

// One long name does not make each line as long, and wide letters keep the columns
// straight; a terminal has room for all.
func TestListStaysATable(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	long := strings.Repeat("x", 4096)
	for _, name := range []string{"orders", "限流器", long} {
		require.Zero(t, s.rrl("set-rate", name, "100/1s").code)
	}
	lines := strings.Split(s.rrl("ls").stdout, "\n")
	require.Len(t, lines, 5)
	assert.Equal(t, "NAME    RATE    TYPE     KEEP-ALIVE  EXPIRES IN", lines[0])
	assert.Equal(t, "orders  100/1s  OVERALL  -           -", lines[1])
	assert.Equal(t, long+"  100/1s  OVERALL  -           -", lines[2])
	assert.Equal(t, "限流器  100/1s  OVERALL  -           -", lines[3])
	for line := range strings.SplitSeq(table([][]string{{"NAME", "RATE"}, {long, "100/1s"}, {"a", "1/1s"}}, 40), "\n") {
		assert.LessOrEqual(t, utf8.RuneCountInString(line), 40)
	}
}

func TestListTellsTTL(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	require.Zero(t, s.rrl("set-rate", "orders", "100/1s").code)
	s.SetTTL("orders", time.Hour)
	assert.Regexp(t, `(?m)^orders +100/1s +OVERALL +- +1h$`, s.rrl("ls").stdout)
}

func TestListWalksManyKeys(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	rdb := server.Client(t, nil)
	prefix := redistest.Name(t)
	pipe := rdb.Pipeline()
	for i := range 3 * scanCount {
		pipe.HSet(t.Context(), fmt.Sprintf("%s:%04d", prefix, i), "rate", i+1, "interval", 1000, "type", i%2)
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	got := rrl(t, "ls", look.EscapeGlob(prefix)+":*", "--json", "--redis", server.URL())
	require.Equal(t, exitYes, got.code, "%+v", got)
	var all []listed
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &all))
	require.Len(t, all, 3*scanCount)
	for i, l := range all {
		require.EqualValues(t, i+1, l.Rate)
	}
}
