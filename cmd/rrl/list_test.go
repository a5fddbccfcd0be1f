package main

import (
	"bytes"
	"fmt"
	"strconv"
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
	s.HSet("user", "name", "ann", "type", "0")
	s.HSet("car", "rate", "fast", "interval", "monthly", "type", "0")
	require.NoError(t, s.Set("text", "rate interval type"))
	assert.Equal(t, outcome{exitYes, "[]\n", ""}, s.rrl("ls --json"))
	s.play(`
ls                                      => no limiters
set-rate api:orders 100/1s              => ...
set-rate api:mail 5/1m --type per-client --keep-alive 1h => ...
set-rate "jobs\n" 7/1h                  => ...
acquire api:orders                      => ...
`)
	mail := listed{Name: "api:mail", Rate: 5, IntervalMS: 60_000, Type: "PER_CLIENT", KeepAliveMS: 3_600_000}
	all := s.list("*")
	all[0].TTLMS = nil // it has one, as it is deleted when unused
	assert.Equal(t, []listed{
		mail, {Name: "api:orders", Rate: 100, IntervalMS: 1000, Type: "OVERALL"}, {Name: "jobs\n", Rate: 7, IntervalMS: 3_600_000, Type: "OVERALL"},
	}, all)
	assert.Len(t, s.list("api:*"), 2)

	s.SetTTL("jobs\n", time.Hour)
	text := s.rrl("ls").stdout
	assert.Regexp(t, `(?m)^NAME +RATE +TYPE +KEEP-ALIVE +EXPIRES IN$`, text)
	assert.Regexp(t, `(?m)^api:mail +5/1m +PER_CLIENT +1h `, text)
	assert.Regexp(t, `(?m)^api:orders +100/1s +OVERALL +- +-$`, text)
	assert.Regexp(t, `(?m)^"jobs\\n" +7/1h +OVERALL +- +1h$`, text)
}

// One long name does not make each line as long, and wide letters keep the columns
// straight; a terminal has room for all.
func TestListStaysATable(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	long := strings.Repeat("x", 4096)
	for _, name := range []string{"orders", "限流器", long} {
		require.Zero(t, s.rrl("set-rate %s 100/1s", name).code)
	}
	assert.Equal(t, "NAME    RATE    TYPE     KEEP-ALIVE  EXPIRES IN\n"+
		"orders  100/1s  OVERALL  -           -\n"+
		long+"  100/1s  OVERALL  -           -\n"+
		"限流器  100/1s  OVERALL  -           -\n", s.rrl("ls").stdout)
	for line := range strings.SplitSeq(table([][]string{{"NAME", "RATE"}, {long, "100/1s"}, {"a", "1/1s"}}, 40), "\n") {
		assert.LessOrEqual(t, utf8.RuneCountInString(line), 40)
	}
}

func TestListWalksManyKeys(t *testing.T) {
	t.Parallel()
	s := shared(t)
	prefix := redistest.Name(t)
	pipe := s.rdb.Pipeline()
	for i := range 3 * scanCount {
		pipe.HSet(t.Context(), fmt.Sprintf("%s:%04d", prefix, i), "rate", i+1, "interval", 1000, "type", i%2)
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	all := s.list(look.EscapeGlob(prefix) + ":*")
	require.Len(t, all, 3*scanCount)
	for i, l := range all {
		require.EqualValues(t, i+1, l.Rate)
	}
}

func TestProgressLeavesNoTrace(t *testing.T) {
	t.Parallel()
	w := newWalk(nil, "")
	w.add([]listed{{Name: "a"}}, 1000, 500)
	assert.Equal(t, "[###############               ]  50% of 1000 keys, 1 limiter", w.progress(80))
	w.add([]listed{{Name: "b"}}, 0, 5000)
	assert.Equal(t, "[######] 100% of 1000 keys, 2 limiters", w.progress(39))
	assert.Equal(t, " 100% of 1000 keys", w.progress(19))
	var to bytes.Buffer
	shown := make(chan struct{}, 100)
	stop := drawProgress(&to, func() string {
		shown <- struct{}{}
		return "half"
	}, 0)
	<-shown
	stop()
	assert.Contains(t, to.String(), "half")
	assert.True(t, strings.HasSuffix(to.String(), "\r\x1b[K"))

	stop = drawProgress(&to, func() string { return "never" }, time.Hour)
	stop()
	assert.NotContains(t, to.String(), "never")
}

// A limiter whose calls fail is broken in whatever shows it, and not unused.
func TestBrokenLimitersAreShownAsSuch(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.play("set-rate fine 10/1h => ...\nset-rate set 10/1h => ...\nset-rate value 10/1h => ...\n")
	require.NoError(t, s.Set("{set}:permits", "x"))
	require.NoError(t, s.Set("{value}:value", "\x1b[31m"+strings.Repeat("many", 100)))
	s.HSet("rate", "rate", "ten\x1b[31m", "interval", "1000", "type", "0")
	s.HSet("user", "name", "ann", "type", "0")

	list, top := s.rrl("ls"), s.rrl("top --count 1")
	assert.NotContains(t, list.stdout+top.stdout, "user")
	assert.Contains(t, top.stdout, "4 limiters, 0 in use, 0 used up, 3 broken")
	assert.Regexp(t, `(?m)^fine +0% +10 `, top.stdout)
	for name, why := range map[string]string{
		"set":   "key {set}:permits is not a sorted set",
		"value": `key {value}:value holds "\x1b[31m` + strings.Repeat("many", 8) + `man"..., not a whole number`,
		"rate":  `field rate is "ten\x1b[31m", not a whole number from 0 to 9007199254740991`,
	} {
		assert.Regexp(t, `(?m)^`+name+` +broken +`, list.stdout)
		assert.Contains(t, list.stdout, name+" is broken: "+why+"\n")
		assert.Regexp(t, `(?m)^`+name+` +broken: `, top.stdout)
		watched := s.rrl("watch %s --count 1", name)
		assert.Equal(t, exitYes, watched.code)
		assert.Contains(t, watched.stdout, "  broken: "+why+"\n")
		assert.Equal(t, why, object(t, s.rrl("watch %s --count 1 --json", name).stdout)["broken"])
		shown := s.rrl("show %s", name)
		assert.Equal(t, exitNo, shown.code)
		assert.Contains(t, shown.stdout, "\nbroken\n  - ")
		s.fails(name, "acquire", name)
	}
	assert.Contains(t, s.rrl("show set").stdout, "key {set}:permits is a string, not a sorted set")
	assert.Regexp(t, `in use +unknown\n`, s.rrl("show set").stdout)

	require.NoError(t, s.Set("text", "x"))
	assert.Contains(t, s.rrl("watch text --count 1").stdout, "broken: key text is not a hash")
	for name, what := range map[string]string{
		"text": "key text is a string, not a hash",
		"user": "key user is a hash of something else\n    no limiter can have this name: choose another",
	} {
		shown := s.rrl("show %s", name)
		assert.Equal(t, exitNo, shown.code)
		assert.Contains(t, shown.stdout, what)
	}
	assert.Equal(t, exitNo, s.rrl("watch user").code)
}

// Names, and what keys hold, may be anything: a terminal shows them quoted.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	show := []string{
		"acquire NAME", "release NAME", "show NAME", "ls", "top --count 1", "watch NAME --count 1", "watch OTHER", "doctor",
	}
	for _, name := range []string{"a\nb\x1b[31m", "\u202egnp", strings.Repeat("\x1b]0;x\a", 700), "\xff\xfe"} {
		quoted := strings.NewReplacer("NAME", strconv.Quote(name), "OTHER", strconv.Quote(name+"?"))
		run := func(lines ...string) {
			for _, line := range lines {
				got := s.run(t.Context(), argsOf(quoted.Replace(line))...)
				for _, bad := range []string{"\x1b", "a\nb", "\u202e", "\a", "\xff"} {
					assert.NotContains(t, got.stdout+got.stderr, bad, line)
				}
			}
		}
		run("try-set-rate NAME 5/1s", "try-set-rate NAME 5/1s", "set-rate NAME 5/1s", "update-rate NAME 6/1s")
		run(show...)
		s.Del("{" + name + "}:permits")
		require.NoError(t, s.Set("{"+name+"}:permits", "x"))
		require.NoError(t, s.Set("{"+name+"}:value", "\x1b[31m"))
		run(show...)
		run("expire NAME 1h", "expire NAME --clear", "delete NAME", "delete NAME", "show NAME", "acquire NAME")
	}
}
