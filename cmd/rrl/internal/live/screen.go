package live

import (
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Screen is a terminal that is drawn on again and again.
type Screen struct {
	Out  io.Writer
	Size func() (columns, rows int)
	Keys <-chan Key
	// Close restores the terminal.
	Close func()
}

// Key is a key that was pressed: a letter as it is, or one of these.
type Key rune

// Keys that are no letters.
const (
	keyEnter  Key = '\r'
	keyEscape Key = 0x1b
	keyDelete Key = 0x7f
	keyStop   Key = 3 // Ctrl-C, which in raw mode is a key like any other

	keyUp Key = -1 - iota
	keyDown
	keyPageUp
	keyPageDown
	keyHome
	keyEnd
)

// sequences are what terminals send for keys that are no letters, behind an escape.
var sequences = map[string]Key{
	"[A": keyUp, "OA": keyUp, "[B": keyDown, "OB": keyDown, "[5~": keyPageUp, "[6~": keyPageDown,
	"[H": keyHome, "OH": keyHome, "[1~": keyHome, "[F": keyEnd, "OF": keyEnd, "[4~": keyEnd,
}

const (
	enter = "\x1b[?1049h\x1b[?25l" // the other screen, without a cursor
	leave = "\x1b[?25h\x1b[?1049l"
	home  = "\x1b[H"
	toEnd = "\x1b[K" // clears the rest of the line
	below = "\x1b[J" // clears the lines below
)

// OpenScreen takes over the terminal that out is, or returns nil if it is
// none. Keys come from in if that is a terminal too.
func OpenScreen(out io.Writer, in *os.File) (*Screen, error) {
	f, ok := out.(interface{ Fd() uintptr })
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil, nil //nolint:nilnil // no terminal, which is no error
	}
	s := &Screen{Out: out, Close: func() { _, _ = io.WriteString(out, leave) }}
	s.Size = func() (int, int) {
		columns, rows, err := term.GetSize(int(f.Fd()))
		if err != nil || columns < 1 || rows < 1 {
			return 80, 24
		}
		return columns, rows
	}
	if term.IsTerminal(int(in.Fd())) {
		before, err := term.MakeRaw(int(in.Fd()))
		if err != nil {
			return nil, err
		}
		s.Close = func() {
			_, _ = io.WriteString(out, leave)
			_ = term.Restore(int(in.Fd()), before)
		}
		s.Keys = readKeys(in)
	}
	_, err := io.WriteString(out, enter)
	return s, err
}

// readKeys reads keys until in ends; a read of a terminal can't be ended before.
func readKeys(in io.Reader) <-chan Key {
	keys := make(chan Key)
	go func() {
		defer close(keys)
		buf := make([]byte, 256)
		for {
			n, err := in.Read(buf)
			for _, k := range keysOf(buf[:n]) {
				keys <- k
			}
			if err != nil {
				return
			}
		}
	}()
	return keys
}

// keysOf separates keys. Keys that are held down come several at once. What begins with
// an escape and is not known is none.
func keysOf(typed []byte) []Key {
	var keys []Key
	if len(typed) > 1 && typed[0] == 0x1b {
		for sequence := range strings.SplitSeq(string(typed[1:]), "\x1b") {
			if key := sequences[sequence]; key != 0 {
				keys = append(keys, key)
			}
		}
		return keys
	}
	for _, r := range string(typed) {
		switch r {
		case '\n':
			r = rune(keyEnter)
		case '\b':
			r = rune(keyDelete)
		}
		keys = append(keys, Key(r))
	}
	return keys
}

// Draw shows the lines, from the top.
func (s *Screen) Draw(lines []string) error {
	var b strings.Builder
	b.WriteString(home)
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line + toEnd)
	}
	b.WriteString(below)
	_, err := io.WriteString(s.Out, b.String())
	return err
}
