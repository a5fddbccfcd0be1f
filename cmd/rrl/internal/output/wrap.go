package output

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

var escape = regexp.MustCompile("\x1b\\[[0-9;]*m")

// Columns returns how many columns a line without tabs takes, colours left out.
func Columns(line string) int { return utf8.RuneCountInString(escape.ReplaceAllString(line, "")) }

// Wrap breaks lines that the terminal has no room for between words, as far as
// it can; what follows is indented as the line is, by two more.
func (p *Printer) Wrap(text string) string {
	if p.Width <= 0 {
		return text
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		bare := strings.TrimSuffix(line, "\n")
		b.WriteString(wrapLine(bare, p.Width) + line[len(bare):])
	}
	return b.String()
}

func wrapLine(line string, width int) string {
	if Columns(line) <= width {
		return line
	}
	indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
	if len(indent) > width/2 {
		indent = ""
	}
	var lines []string
	current, empty := indent, true
	for word := range strings.SplitSeq(line[len(indent):], " ") {
		space := " "
		if empty {
			space = ""
		}
		if !empty && Columns(current)+1+Columns(word) > width {
			lines = append(lines, strings.TrimRight(current, " "))
			current, space = indent+"  ", ""
		}
		current += space + word
		empty = false
	}
	return strings.Join(append(lines, current), "\n")
}

// Clip cuts a line without colours so that it takes at most that many columns.
func Clip(line string, columns int) string {
	runes := []rune(line)
	if len(runes) <= columns {
		return line
	}
	if columns < 1 {
		return ""
	}
	return string(runes[:columns-1]) + "…"
}
