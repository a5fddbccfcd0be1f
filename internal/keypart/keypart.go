// Package keypart makes keys for Redis of text from outside.
package keypart

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The longest part of a key, in bytes, and how much of a longer one stays.
const (
	maxPart  = 128
	headPart = 32
)

// hashMark comes between the head and the hash of an overlong part. After '%'
// Escape writes only upper-case hex digits, so that no short part looks so.
const hashMark = "%sha256-"

// Escape writes part so that it holds no ':', cannot choose a cluster's slot, is
// fit for a log, and is another for each part.
func Escape(part string) string {
	if len(part) <= maxPart && plain(part) {
		return part
	}
	const digits = "0123456789ABCDEF"
	var out strings.Builder
	head := 0 // end of the last character within headPart
	for i := 0; i < len(part) && out.Len() <= maxPart; {
		r, size := utf8.DecodeRuneInString(part[i:])
		char := part[i : i+size]
		if safe(r, size) {
			out.WriteString(char)
		} else {
			for _, b := range []byte(char) {
				out.Write([]byte{'%', digits[b>>4], digits[b&15]})
			}
		}
		i += size
		if out.Len() <= headPart {
			head = out.Len()
		}
	}
	if out.Len() <= maxPart {
		return out.String()
	}
	sum := sha256.Sum256([]byte(part))
	return out.String()[:head] + hashMark + hex.EncodeToString(sum[:])
}

// Join returns the parts that follow a key's prefix: the text of each, escaped,
// with ':' between; if tagged, as a hash tag, so that all keys which begin with it are in one slot of a cluster.
func Join[P any](parts []P, tagged bool, text func(P) (string, error)) (string, error) {
	var joined strings.Builder
	for i, part := range parts {
		s, err := text(part)
		if err != nil {
			return "", err
		}
		s = Escape(s)
		if len(parts) == 1 && !tagged {
			return s, nil
		}
		if i > 0 {
			joined.WriteByte(':')
		}
		joined.WriteString(s)
	}
	switch {
	case !tagged:
		return joined.String(), nil
	case joined.Len() == 0:
		return "{%}", nil // servers ignore an empty tag, and no part is a lone percent sign
	}
	return "{" + joined.String() + "}", nil
}

// EscapeSuffix returns another key if key ends in suffix, which leads from keys to their second
// ones: a client called "ann_time" must not reach the second key of "ann". The percent sign
// makes it unlike all other keys, as no escaped part ends with one.
func EscapeSuffix(key, suffix string) string {
	if suffix == "" || !strings.HasSuffix(key, suffix) {
		return key
	}
	return key + "%"
}

func plain(part string) bool {
	for i := range len(part) {
		if c := part[i]; c >= utf8.RuneSelf || !safe(rune(c), 1) {
			return false
		}
	}
	return true
}

// safe reports whether a rune of this many bytes stands for itself.
func safe(r rune, size int) bool {
	switch r {
	case ':', '%', '{', '}', ' ':
		return false
	case utf8.RuneError:
		return size > 1
	}
	return unicode.IsPrint(r)
}
