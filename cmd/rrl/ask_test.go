package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// asked runs a command line on a terminal, on which the user types something.
func (s servers) asked(ctx context.Context, typed io.Reader, line string) outcome {
	var stdout, stderr bytes.Buffer
	a := newApp(&stdout, &stderr, func(string) string { return "" })
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
