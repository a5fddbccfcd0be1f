package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/term"
)

// ANSI escapes of the few colours used.
const (
	bold  = "\x1b[1m"
	red   = "\x1b[31m"
	green = "\x1b[32m"
	faint = "\x1b[2m"
	reset = "\x1b[0m"
)

// wantsColor tells whether w is a terminal whose user did not turn colours off.
func wantsColor(w io.Writer, getenv func(string) string) bool {
	if getenv("NO_COLOR") != "" || getenv("TERM") == "dumb" {
		return false
	}
	f, ok := w.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd()))
}

// paint returns s in the given colour, where colours are wanted.
func (a *app) paint(color, s string) string {
	if !a.color {
		return s
	}
	return color + s + reset
}

// print writes v where JSON is wanted, else the line of text.
func (a *app) print(v any, text string) error {
	if a.json {
		return writeJSON(a.stdout, v)
	}
	_, err := fmt.Fprintln(a.stdout, text)
	return err
}

// printError writes err as people, or programs, expect it on standard error.
func (a *app) printError(err error) {
	text := strings.TrimPrefix(err.Error(), "rratelimiter: ")
	if errors.Is(err, context.Canceled) {
		text = "interrupted"
	}
	if a.json {
		_ = writeJSON(a.stderr, struct {
			Error string `json:"error"`
		}{text})
		return
	}
	_, _ = fmt.Fprintln(a.stderr, "rrl: "+text)
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// plural returns "1 permit", "2 permits".
func plural(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// millis returns d in milliseconds for JSON; nil stands for none.
func millis(d time.Duration) *int64 {
	if d < 0 {
		return nil
	}
	ms := d.Milliseconds()
	return &ms
}
