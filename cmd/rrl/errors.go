package main

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/words"
	"github.com/rratelimiter/rratelimiter/limit"
)

// inWords returns an error's text as rrl's users need it: of its commands and
// flags, not of the packages behind them.
func inWords(err error) string {
	if errors.Is(err, context.Canceled) {
		return "interrupted"
	}
	text := err.Error()
	if errors.Is(err, limit.ErrCorrupt) {
		// Redis repeats the error, with the script's name.
		text, _, _ = strings.Cut(text, ": WRONGTYPE")
	}
	m := callOf.FindStringSubmatch(text)
	if m == nil && !errors.Is(err, limit.ErrInvalidConfig) {
		return text // in our own words
	}
	if m != nil {
		text = strings.TrimPrefix(text, m[0])
		if name, err := strconv.Unquote(m[1]); err == nil && name != "" {
			text = words.Printable(name) + ": " + text
		}
	}
	text = strings.Replace(text, "invalid configuration: ", "", 1)
	return outsideQuotes.ReplaceAllStringFunc(text, func(part string) string {
		if command, ok := commands[part]; ok {
			return command
		}
		if d, err := time.ParseDuration(part); err == nil {
			return words.Duration(d)
		}
		return part
	})
}

var (
	// callOf is the package and the call that an error begins with.
	callOf = regexp.MustCompile(`^(?:rratelimiter|fixedwindow|slidinglog|tokenbucket): (?:\w+ )?("(?:[^"\\]|\\.)*"): `)
	// outsideQuotes finds what has another name here, and times; it takes quoted
	// text as a whole, which may be a limiter's name.
	outsideQuotes = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|` + anyCommand() + `|\b[0-9][0-9hms.µ]*s\b`)
)

// commands are what one does with rrl in place of what an error names.
var commands = map[string]string{
	"call TrySetRate first, or give the handle one by WithDefault": "give it one by rrl try-set-rate",
	"call TrySetRate first":             "give it one by rrl try-set-rate",
	"SetRate or Delete":                 "rrl set-rate --reset or rrl delete",
	"not hash; remove the key":          "not hash; rrl show says what it looks like", // it may be an application's
	"KeepState":                         "keeping permits in use (give --reset to start full)",
	"which WithRedissonVersion names, ": "which --redisson names, ",
	"WithRedissonVersion: ":             "--redisson: ",
	"in WithRedissonVersion":            "by --redisson",
	"WithClientID: ":                    "--client-id: ",
	"Config.Thresholds":                 "--thresholds",
	"ClearExpire":                       "rrl expire --clear",
}

func anyCommand() string {
	var all []string
	for text := range commands {
		all = append(all, regexp.QuoteMeta(text))
	}
	// The longest that fits is meant.
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	return strings.Join(all, "|")
}
