package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestReset_FreesAllPermits(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.play(`
set-rate orders 5/1h --keep-alive 2h  => ...
acquire orders -n 5                   => ...
reset orders                          => orders has all 5 permits free
acquire orders -n 5                   => granted 5 permits, 0 left
reset orders --json                   => {"name":"orders","reset":true}
reset none                            -> none is no limiter, nothing changed
reset none --json                     -> {"name":"none","reset":false}
reset                                 !> NAME is missing; usage: rrl reset NAME
set-rate own 5/1h --type per-client   => ...
reset own                             => own has all 5 permits free
acquire own -n 4 --client-id ann      => ...
acquire own -n 4 --client-id bob      => ...
reset own --client-id ann             => own has all 5 permits free, of client ann
acquire own -n 4 --client-id ann      => granted 4 permits, 1 left
acquire own -n 4 --client-id bob      -> denied 4 permits, 1 left...
reset own                             => own has all 5 permits free, of 2 clients
acquire own -n 4 --client-id ann      => granted 4 permits, 1 left
acquire own -n 4 --client-id bob      => granted 4 permits, 1 left
`)
	orders := s.show("orders")
	assert.Equal(t, []any{int64(5), (2 * time.Hour).Milliseconds()}, []any{*orders.Rate, *orders.KeepAliveMS})
	assert.EqualValues(t, 5, *orders.States[0].Free)

	s.HSet("bad", "rate", "x", "interval", "1", "type", "0")
	s.HSet("hash", "color", "red")
	s.play(`
reset bad   !> bad: corrupt state: key "bad": rate is no integer: x; rrl set-rate --reset or rrl delete cures it
reset hash  !> hash is a hash of something else, not a limiter: nothing changed
`)
}

func TestSetRate_ForAWhile(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.play(`
set-rate orders 5/1h --for 20h                    !> orders: there is no rate to go back to; give it that one first by rrl try-set-rate
update-rate orders 5/1h --for 20h                 -> orders has no rate, nothing changed
set-rate orders 5/1h                              => ...
set-rate orders 9/1h --for 20h                    => orders: 5/1h -> 9/1h, override until ...
update-rate orders 7/1h --for 20h --json          => {"name":"orders","set":true,"created":false,"from":"9/1h","to":"7/1h","ends":{"at_ms":...
set-rate orders 9/1h --for 20h --reset            !> --for and --reset exclude each other
set-rate orders 9/1h --for 0s                     !> --for is not longer than 0
set-rate mail 9/1h                                => ...
set-rate mail 9/1h --for 1h                       => mail: 9/1h -> 9/1h, override until ...
set-rate mail 9/1h                                => mail has 9 permits every 1h, which has no end any more
set-rate mail 9/1h                                => mail has 9 permits every 1h, as before
update-rate mai* 9/1h --yes                       => 0 of 1 limiter would change, 1 have that rate already
update-rate mai* 9/1h --for 1h --dry-run          => 1 of 1 limiter would change for 1h...
update-rate mai* 9/1h --for 1h --yes              => ...
update-rate mai* 9/1h --for 9h --yes              => ...
`)
	assert.InDelta(t, time.Now().Add(9*time.Hour).UnixMilli(), s.show("mail").Ends.AtMS, 60_000)
	assert.Contains(t, s.rrl("update-rate mai* 9/1h --yes").stdout, "changed 1 of 1 limiter", "it has no end any more")
	assert.Nil(t, s.show("mail").Ends)
	found := s.show("orders")
	require.NotNil(t, found.Ends)
	assert.Equal(t, []any{int64(7), look.Override, int64(5)}, []any{*found.Rate, found.Origin, found.Ends.Rate})
	assert.InDelta(t, time.Now().Add(20*time.Hour).UnixMilli(), found.Ends.AtMS, 60_000)
	s.HSet("orders", "override", "x")
	assert.Contains(t, s.show("orders").Broken, "override")

	// One of a millisecond may be over before it is read.
	var out bytes.Buffer
	a, from, to := &app{out: output.Printer{Writer: &out}}, "5/1h", "9/1h"
	l := limitertest.NewLimiter(t, redistest.MiniClient(t, s.Miniredis, nil), rratelimiter.PerHour(5))
	require.NoError(t, a.answerOverride(t.Context(), l, rateChange{From: &from, To: &to}))
	assert.Contains(t, out.String(), "5/1h -> 9/1h, override\n")
}

// A program that runs with another default takes a limiter over once its override was taken back, and not
// before. Permits in use stay counted, and at no time the limiter has no rate.
func TestUseDefault_TakesAnOverrideBack(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	client := rratelimiter.New(s.rdb, limitertest.Patient())
	limit := func() int64 {
		// A handle compares its default at its first request.
		d, err := client.RateLimiter("orders", rratelimiter.WithDefault(rratelimiter.PerHour(10))).Take(t.Context(), 1)
		require.NoError(t, err)
		return d.Limit
	}
	assert.EqualValues(t, 10, limit())
	assert.Contains(t, s.rrl("show orders").stdout, "\n  rate        10/1h\n  origin      default\n")
	s.play("use-default orders -> orders has a default already, nothing changed\nset-rate orders 50/1h => ...\n")
	assert.EqualValues(t, 50, limit())
	assert.Equal(t, look.Override, s.show("orders").Origin)
	s.play(`
use-default orders --json => {"name":"orders","changed":true}
set-rate orders 50/1h     => ...
use-default orders        => orders follows programs' defaults again; 50/1h stays until a program has another one
acquire orders            => granted 1 permit, 47 left
`)
	assert.Equal(t, look.TakenBack, s.list("orders")[0].Origin, "50/1h counts yet")
	assert.EqualValues(t, 10, limit())
	assert.Equal(t, look.Default, s.show("orders").Origin)
	assert.EqualValues(t, 4, s.show("orders").States[0].InUse)

	// One that has an end is over: it does not stay for good.
	s.play(`
set-rate mail 7/1h            => ...
set-rate mail 50/1h --for 20h => ...
use-default mail              => mail follows programs' defaults again; 7/1h stays until a program has another one
`)
	assert.Equal(t, look.TakenBack, s.show("mail").Origin)

	s.HSet("bad", "rate", "x", "interval", "1", "type", "0")
	s.HSet("hash", "default", "red")
	s.play(`
use-default orders --json -> {"name":"orders","changed":false}
use-default none          -> none is no limiter, nothing changed
use-default bad           !> bad: corrupt state: key "bad": rate is no integer: x; rrl set-rate --reset or rrl delete cures it
use-default hash          !> hash is a hash of something else, not a limiter: nothing changed
use-default               !> NAME is missing; usage: rrl use-default NAME
`)
}

// A limiter with a keep-alive time would set that at its next request, so rrl does not say that it expires. Without one
// an override ends in time, and the program's rate counts again.
func TestExpire_RefusesKeepAliveTimes(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	keyed := limitertest.NewClient(t, s.rdb).Keyed("user:", rratelimiter.PerMinute(10))
	limit := func() int64 {
		d, err := keyed.Take(t.Context(), "ann", 1)
		require.NoError(t, err)
		return d.Limit
	}
	limit()
	const refused = `user:ann has a keep-alive time of 1m, and its next request would set its time to live back to that: nothing changed; ` +
		`first take that off: rrl set-rate user:ann RATE --keep-alive 0`
	s.play(`
set-rate user:ann 50/1m --for 20h          => ...
expire user:ann 20h                        !> REFUSED
`, "REFUSED", strings.Replace(refused, "RATE", "10/1m", 1))
	s.play(`
set-rate user:ann 100/1m                   => ...
expire user:ann 20h                        !> REFUSED
expire user:ann --clear                    !> REFUSED
set-rate user:ann 100/1m --keep-alive 0    => ...
expire user:ann 20h                        => user:ann expires in 20h
`, "REFUSED", strings.Replace(refused, "RATE", "100/1m", 1))
	assert.EqualValues(t, 100, limit())
	assert.InDelta(t, 20*time.Hour, s.TTL("user:ann"), float64(time.Minute), "a request leaves it")
	s.FastForward(21 * time.Hour)
	assert.EqualValues(t, 10, limit())
}

// asked runs a command line on a terminal, on which the user types something.
func (s servers) asked(ctx context.Context, typed io.Reader, line string) outcome {
	var stdout, stderr bytes.Buffer
	a := patientApp(&stdout, &stderr, nil)
	a.terminal = true
	a.in = typed
	code := a.run(ctx, append(argsOf(line), s.flags...))
	return outcome{code, stdout.String(), stderr.String()}
}

func TestSetRate_AsksBeforeItCreatesALimiter(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	const question = "orders is no limiter: create it with 5 permits every 1h? [y/N] "
	for _, typed := range []string{"\n", "no\n", "", "yess\n"} {
		got := s.asked(t.Context(), strings.NewReader(typed), "set-rate orders 5/1h")
		assert.Equal(t, outcome{exitNo, "nothing changed\n", question}, got, "%q", typed)
	}
	assert.Empty(t, redistest.Keys(t, s.rdb, "*"))

	got := s.asked(t.Context(), strings.NewReader("y\n"), "set-rate orders 5/1h")
	assert.Equal(t, outcome{exitYes, "orders created: 5 permits every 1h\n", question}, got)
	for _, c := range [][2]string{
		{"set-rate orders 6/1h", "orders: 5/1h -> 6/1h\n"}, // it is there
		{"set-rate mail 5/1h --yes", "mail created: 5 permits every 1h\n"},
		{"set-rate jobs 5/1h --json", `{"name":"jobs","set":true,"created":true,"from":null,"to":"5/1h"}` + "\n"},
		{"try-set-rate rest 5/1h", "rest has 5 permits every 1h\n"},
	} {
		got := s.asked(t.Context(), strings.NewReader(""), c[0])
		assert.Equal(t, outcome{exitYes, c[1], ""}, got, c[0])
	}
}

func TestDelete_AsksBefore(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.play(`
set-rate orders 5/1h                  => ...
acquire orders -n 2                   => ...
set-rate own 5/1h --type per-client   => ...
`)
	s.HSet("bad", "rate", "x", "interval", "1", "type", "0")
	require.NoError(t, s.Set("text", "x"))
	for _, c := range []struct{ line, typed, question, want string }{
		{"delete orders", "n\n", "delete orders, a limiter of 5/1h with 2 permits in use? [y/N] ", "nothing changed\n"},
		{"delete orders", "Y\n", "delete orders, a limiter of 5/1h with 2 permits in use? [y/N] ", "deleted orders\n"},
		{"delete orders", "", "", "orders is no limiter, nothing changed\n"},
		{"delete own", "", "delete own, a limiter of 5/1h? [y/N] ", "nothing changed\n"},
		{"delete bad", "yes\n", "delete bad, a broken limiter? [y/N] ", "deleted bad\n"},
		{"delete text --force", "", "delete text, a string? [y/N] ", "nothing changed\n"},
		{"delete text --force --yes", "", "", "deleted text\n"},
		{"delete own --json", "", "", `{"deleted":true,"name":"own"}` + "\n"},
	} {
		got := s.asked(t.Context(), strings.NewReader(c.typed), c.line)
		assert.Equal(t, []string{c.want, c.question}, []string{got.stdout, got.stderr}, c.line)
	}
	assert.Empty(t, redistest.Keys(t, s.rdb, "*"))
}

func TestUpdateRate_AsksBeforeItChangesMany(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.play("set-rate orders 5/1h => ...\n")
	const plan, question = "1 of 1 limiter would change\n  orders  5/1h -> 6/1h\n", "change 1 limiter? [y/N] "
	got := s.asked(t.Context(), strings.NewReader("n\n"), "update-rate ord* 6/1h")
	assert.Equal(t, outcome{exitNo, plan + "nothing changed\n", question}, got)
	got = s.asked(t.Context(), strings.NewReader("y\n"), "update-rate ord* 6/1h")
	assert.Equal(t, outcome{exitYes, plan + "changed 1 of 1 limiter\n", question}, got)
	got = s.asked(t.Context(), strings.NewReader("orders\n"), "update-rate - 7/1h") // names, no answer
	assert.Contains(t, got.stderr, "--yes changes them")
}

// Ctrl-C ends a command that waits for the answer.
func TestAsk_EndsWhenInterrupted(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	typed, keyboard := io.Pipe() // on which nothing is typed
	t.Cleanup(func() { _ = keyboard.Close() })
	got := s.asked(ctx, onRead{typed, cancel}, "set-rate orders 5/1h")
	assert.Equal(t, outcome{exitError, "", "orders is no limiter: create it with 5 permits every 1h? [y/N] \nrrl: interrupted\n"}, got)
	assert.Empty(t, redistest.Keys(t, s.rdb, "*"))
}

// onRead calls a function when it is read.
type onRead struct {
	io.Reader

	f func()
}

func (r onRead) Read(p []byte) (int, error) {
	r.f()
	return r.Reader.Read(p)
}

func TestAnUnknownCommandHasSuggestions(t *testing.T) {
	t.Parallel()
	for typed, want := range map[string]string{
		"acqire":          "; did you mean acquire?",
		"lst":             "; did you mean ls?",
		"list":            "; did you mean ls?",
		"rm":              "; did you mean delete?",
		"set":             "; did you mean set-rate or try-set-rate?",
		"RATE":            "; did you mean set-rate or try-set-rate or update-rate?",
		"get":             "; did you mean show?",
		"foo":             "; rrl help lists all",
		"frobnicate":      "; rrl help lists all",
		`"x\" for rrl y"`: "; rrl help lists all",
	} {
		for _, line := range []string{typed, "help " + typed} {
			got := rrl(t, "%s", line)
			assert.Equal(t, exitError, got.code, line)
			assert.Regexp(t, `^rrl: unknown command ".*"`+want[:1]+` [^\n]*\n$`, got.stderr, line)
			assert.Contains(t, got.stderr, want+"\n", line)
		}
	}
	assert.Contains(t, object(t, rrl(t, "acqire --json").stderr)["error"], "did you mean acquire?")
}
