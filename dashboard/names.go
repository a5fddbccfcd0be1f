package dashboard

import (
	"encoding/base64"
	"unicode/utf8"

	"github.com/rratelimiter/rratelimiter/internal/words"
)

const (
	// maxName is how long a name may be, in bytes, to be looked at and changed here.
	maxName = 16 << 10

	// maxShown is how many bytes of a name a list shows.
	maxShown = 160

	// maxTold is how many bytes are shown of a text that has what keys hold.
	maxTold = 1000
)

// named is a name as the page gets it. Names are bytes: ID has them all, Name is for
// display.
type named struct {
	ID    string `json:"id"` // base64url; "" if the name is too long
	Name  string `json:"name"`
	Bytes int    `json:"bytes"`
}

func nameOf(name string) named {
	n := named{Bytes: len(name), Name: shown(name)}
	if len(name) <= maxName {
		n.ID = idOf(name)
	}
	return n
}

func idOf(name string) string { return base64.RawURLEncoding.EncodeToString([]byte(name)) }

// shown returns a name as lists show it.
func shown(name string) string {
	if name == "" {
		return `""`
	}
	return cut(name, maxShown)
}

// cut returns a text for display, and of a long one the beginning and the end.
func cut(text string, most int) string {
	if len(text) <= most {
		return words.Printable(text)
	}
	begin, end := most/2, len(text)-most/2
	if utf8.ValidString(text) { // no letter is cut in two
		for !utf8.RuneStart(text[begin]) {
			begin--
		}
		for !utf8.RuneStart(text[end]) {
			end++
		}
	}
	return words.Printable(text[:begin]) + " … " + words.Printable(text[end:])
}
