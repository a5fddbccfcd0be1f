package output

import (
	"io"

	"golang.org/x/term"
)

// defaultWidth is the width of a terminal that does not report it.
const defaultWidth = 80

// Width returns how many columns w has, and whether it is a terminal at all.
func Width(w io.Writer) (columns int, terminal bool) {
	f, ok := w.(interface{ Fd() uintptr })
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return defaultWidth, false
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil || columns <= 0 {
		columns = defaultWidth
	}
	return columns, true
}
