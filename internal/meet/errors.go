package meet

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Explain turns what a script or go-redis answered into an error that callers
// can test for and act on. keys are the script's; kind says what they should be,
// and advice how the keys are to be named that must be together.
func Explain(err error, keys []string, kind, advice string) error {
	code, text := "", ""
	if answer, ok := errors.AsType[redis.Error](err); ok {
		code, text = script.Code(answer), answer.Error()
	}
	switch code {
	case "CORRUPT":
		if key, field, why, ok := Corrupt(text, keys); ok {
			return fmt.Errorf("%w: key %q: %s %s; set it right or remove the key", limit.ErrCorrupt, key, field, why)
		}
	case "WRONGTYPE":
		return fmt.Errorf("%w: key %s is not %s; name it otherwise or remove it: %w", limit.ErrCorrupt, quoted(keys), kind, err)
	case "CROSSSLOT":
		return fmt.Errorf("%w: the keys %q fall in different slots of the cluster: %s: %w", limit.ErrUnsupported, keys, advice, err)
	}
	if errors.Is(err, script.ErrLost) {
		return fmt.Errorf("%w: %w", limit.ErrUnknownOutcome, err)
	}
	return err
}

func quoted(keys []string) string {
	all := make([]string, len(keys))
	for i, key := range keys {
		all[i] = strconv.Quote(key)
	}
	return strings.Join(all, " or ")
}

// Corrupt takes apart the error of a script that found a key's state to be none:
// "CORRUPT place field why", place being the key's number.
func Corrupt(text string, keys []string) (key, field, why string, ok bool) {
	_, text, _ = strings.Cut(text, "CORRUPT ")
	place, rest, _ := strings.Cut(text, " ")
	field, why, _ = strings.Cut(rest, " ")
	n, _ := strconv.Atoi(place)
	if n < 1 || n > len(keys) {
		return "", "", "", false
	}
	return keys[n-1], field, why, true
}

// Fail says which package's limiter and which call an error speaks of.
func Fail(pkg, op, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s %q: %w", pkg, op, key, err)
}

func exceeds(permits, most int64) error {
	return fmt.Errorf("%w: %d permits of %d; ask for fewer or raise the limit", limit.ErrPermitsExceedRate, permits, most)
}
