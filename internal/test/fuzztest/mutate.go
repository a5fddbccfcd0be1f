package fuzztest

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"slices"
)

// maxLength is where text no longer grows.
const maxLength = 4096

// words are what parsers tend to have rules for.
var words = []string{
	"0", "-1", "1e3", "9007199254740992", "9223372036854775808", "18446744073709551616", "nan", "inf", "0x10", "\x00", "\xff", "é", "\u202e",
	":", ":::", "/", "//", "@", "%", "%2f", "?", "#", "[", "]", "{", "}", "{}", "\"", "\\", "=", ";", ",", " ", "\t", "\r\n",
	"for=", "::1", "::ffff:", "127.0.0.1", "%eth0", "ms", "h", "again", "taken", "keys", "CORRUPT 1 ", "WRONGTYPE ",
}

// edges are numbers at which counting goes wrong.
var edges = []uint64{0, 1, 2, 3, 7, 8, 16, 20, 127, 128, 255, 256, 1<<16 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<53 - 1, 1 << 53, 1 << 63, 1<<64 - 1}

// one returns one of the choices.
func one[T any](draw *rand.Rand, choices []T) T { return choices[draw.IntN(len(choices))] }

// mutate draws an input of the corpus into args, and changes a few things about it.
func (r *run) mutate(draw *rand.Rand, args []reflect.Value) {
	copy(args, one(draw, r.corpus))
	for range 1 + draw.IntN(4) {
		i := draw.IntN(len(args))
		other := one(draw, r.corpus)[i]
		switch arg := args[i]; arg.Kind() {
		case reflect.String:
			args[i] = reflect.ValueOf(string(mutated(draw, []byte(arg.String()), []byte(other.String()))))
		case reflect.Slice:
			args[i] = reflect.ValueOf(mutated(draw, bytes.Clone(arg.Bytes()), other.Bytes()))
		case reflect.Bool:
			args[i] = reflect.ValueOf(draw.IntN(2) == 0)
		default:
			n := one(draw, edges)
			if draw.IntN(2) == 0 {
				n = draw.Uint64() >> draw.IntN(64)
			}
			args[i] = reflect.ValueOf(n).Convert(arg.Type())
		}
	}
}

// mutated changes text in one place. other is text of another input.
func mutated(draw *rand.Rand, text, other []byte) []byte {
	at := draw.IntN(len(text) + 1)
	end := min(len(text), at+1+draw.IntN(8))
	var more []byte
	switch draw.IntN(8) {
	case 0:
		return text[:at]
	case 1:
		return slices.Delete(text, at, end)
	case 2:
		more = []byte(one(draw, words))
	case 3:
		more = bytes.Clone(text[at:end])
	case 4:
		more = []byte{byte(draw.Uint32())}
	case 5:
		return append(text[:at], other[draw.IntN(len(other)+1):]...)
	default:
		if at == len(text) {
			return text
		}
		if text[at] ^= 1 << draw.IntN(8); draw.IntN(2) == 0 {
			text[at] = byte(draw.Uint32())
		}
		return text
	}
	if len(text)+len(more) > maxLength {
		return text
	}
	return slices.Insert(text, at, more...)
}
