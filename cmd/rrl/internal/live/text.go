package live

import (
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Safe returns a name as a table can show it. What would move the cursor, join
// the letter before or turn the direction of the line is written as an escape.
func Safe(name string) string {
	if name == "" {
		return `""`
	}
	for _, r := range name {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar || unicode.Is(unicode.M, r) || rightToLeft(r) {
			return strconv.QuoteToASCII(name)
		}
	}
	return name
}

func rightToLeft(r rune) bool {
	return r >= 0x590 && r <= 0x8ff || r >= 0xfb1d && r <= 0xfdff || r >= 0xfe70 && r <= 0xfeff ||
		r >= 0x10800 && r <= 0x10fff || r >= 0x1e800 && r <= 0x1efff
}

// runeWidth is how many columns a printable rune takes. If terminals differ
// it takes the more.
func runeWidth(r rune) int {
	switch {
	case r < 0x1100:
		return 1
	case r <= 0x115f, r >= 0x2e80 && r <= 0xa4cf, r >= 0xac00 && r <= 0xd7a3, r >= 0xf900 && r <= 0xfaff,
		r >= 0xfe30 && r <= 0xfe6f, r >= 0xff00 && r <= 0xff60, r >= 0xffe0 && r <= 0xffe6,
		r >= 0x2600 && r <= 0x27bf, r >= 0x1b000 && r <= 0x1b2ff, r >= 0x1f000:
		return 2
	}
	return 1
}

// Width is how many columns a text takes that [Safe] has passed.
func Width(s string) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

// Fit returns a text cut to this many columns, with an ellipsis in its middle: names often
// differ at their ends.
func Fit(s string, columns int) string {
	if columns <= 0 {
		return ""
	}
	if len(s) <= columns || Width(s) <= columns {
		return s
	}
	if columns < 5 {
		return prefix(s, columns)
	}
	room := columns - 1
	head := prefix(s, (room+1)/2)
	return head + "…" + suffix(s, room-Width(head))
}

// cut returns a text's first columns.
func cut(s string, columns int) string {
	if columns <= 0 || Width(s) <= columns {
		return prefix(s, columns)
	}
	return prefix(s, columns-1) + "…"
}

func prefix(s string, columns int) string {
	for i, r := range s {
		if columns -= runeWidth(r); columns < 0 {
			return s[:i]
		}
	}
	return s
}

func suffix(s string, columns int) string {
	runes := []rune(s)
	for i, r := range slices.Backward(runes) {
		if columns -= runeWidth(r); columns < 0 {
			return string(runes[i+1:])
		}
	}
	return s
}

// left and right pad a text to this many columns, or cut it.
func left(s string, columns int) string {
	s = Fit(s, columns)
	return s + strings.Repeat(" ", max(columns-Width(s), 0))
}

func right(s string, columns int) string {
	s = Fit(s, columns)
	return strings.Repeat(" ", max(columns-Width(s), 0)) + s
}
