package doctor

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

const (
	indent   = 9  // of what stands below a finding
	minWidth = 30 // of a line's text
)

var colors = map[Level]string{Fine: output.Green, Note: output.Bold, Warning: output.Bold, Error: output.Red}

// Text returns the report for people, in lines of this many columns.
func Text(r *Report, columns int, paint func(color, text string) string) string {
	var b strings.Builder
	head := fmt.Sprintf("%s, looked at in %s", r.Name, words.Duration(time.Duration(r.TookMS)*time.Millisecond))
	b.WriteString(wrap(head, columns) + "\n")
	for _, f := range r.Findings {
		text := f.Check + ": " + f.Text
		if f.Server != "" {
			text = f.Server + " " + text
		}
		b.WriteString("\n" + paint(colors[f.Level], fmt.Sprintf("%-*s", indent, f.Level)))
		b.WriteString(wrap(text, columns))
		for _, more := range [][2]string{{"why: ", f.Reason}, {"do: ", f.Advice}} {
			if more[1] != "" {
				b.WriteString("\n" + strings.Repeat(" ", indent) + wrap(more[0]+more[1], columns))
			}
		}
	}
	count := map[Level]int{}
	for _, f := range r.Findings {
		count[f.Level]++
	}
	fmt.Fprintf(&b, "\n\n%s, %s, %s, %d ok\n", words.Plural(int64(count[Error]), "error"), words.Plural(int64(count[Warning]), "warning"),
		words.Plural(int64(count[Note]), "note"), count[Fine])
	return b.String()
}

// wrap breaks a text between words, with the indent before all lines but the
// first.
func wrap(text string, columns int) string {
	room := max(columns-indent, minWidth)
	var b strings.Builder
	used := 0
	for word := range strings.FieldsSeq(text) {
		word = printable(word)
		n := utf8.RuneCountInString(word)
		switch {
		case used == 0:
		case used+1+n > room:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			used = 0
		default:
			b.WriteByte(' ')
			used++
		}
		b.WriteString(word)
		used += n
	}
	return b.String()
}

// printable writes what a terminal would act on as escapes: servers may say
// anything.
func printable(word string) string {
	quoted := words.Printable(word)
	if quoted == word || strings.ContainsFunc(word, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) {
		return quoted
	}
	return word // quoted for its quotes alone
}
