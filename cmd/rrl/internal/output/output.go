// Package output writes the command's output: text for people, in colour
// on a terminal, or JSON for programs.
package output

import (
	"encoding/json"
	"fmt"
	"io"

	"golang.org/x/term"

	"github.com/rratelimiter/rratelimiter/limit"
)

// ANSI escapes of the few colours used.
const (
	Bold   = "\x1b[1m"
	Red    = "\x1b[31m"
	Green  = "\x1b[32m"
	Yellow = "\x1b[33m"
	Faint  = "\x1b[2m"
	reset  = "\x1b[0m"
)

// Printer holds where answers go, and in what form.
type Printer struct {
	io.Writer

	JSON  bool
	Color bool
	Width int // columns of the terminal; 0 if there is none, and lines may be of any length
}

// WantsColor reports whether w is a terminal whose user did not turn colours off.
func WantsColor(w io.Writer, getenv func(string) string) bool {
	if getenv("NO_COLOR") != "" || getenv("TERM") == "dumb" {
		return false
	}
	f, ok := w.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd()))
}

// Paint returns s in the given colour, if colours are wanted.
func (p *Printer) Paint(color, s string) string {
	if !p.Color {
		return s
	}
	return color + s + reset
}

// Print writes v if JSON is wanted, otherwise the line of text.
func (p *Printer) Print(v any, text string) error {
	if p.JSON {
		return WriteJSON(p, v)
	}
	_, err := fmt.Fprintln(p, text)
	return err
}

// WriteJSON writes v on a line of its own.
func WriteJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// Decision is a limit.Decision in JSON, with times in milliseconds.
type Decision struct {
	Granted      bool  `json:"granted"`
	Limit        int64 `json:"limit"`
	Remaining    int64 `json:"remaining"`
	RetryAfterMS int64 `json:"retry_after_ms"`
	ResetAfterMS int64 `json:"reset_after_ms"`
}

// DecisionOf returns what JSON has of d.
func DecisionOf(d limit.Decision) Decision {
	return Decision{
		Granted: d.Granted, Limit: d.Limit, Remaining: d.Remaining,
		RetryAfterMS: d.RetryAfter.Milliseconds(), ResetAfterMS: d.ResetAfter.Milliseconds(),
	}
}
