package live

import (
	"errors"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/words"
)

// patience is how late a sample may be before it is said: the client's own timeouts,
// and its repeats, take much longer.
const patience = 2 * time.Second

// silence measures how long a server has not answered, from the first sample on.
type silence struct {
	since time.Time
	told  time.Duration
}

// silent is said in place of a sample that is late.
type silent time.Duration

func (s silent) Error() string { return "nothing for " + words.Duration(time.Duration(s)) }

// broken notes an answer.
func (s *silence) broken() { s.since, s.told = time.Now(), 0 }

// over returns the error to show, once each second, if a sample is late; nil if none is, or if
// old is a better reason.
func (s *silence) over(interval time.Duration, old error) error {
	if _, late := errors.AsType[silent](old); old != nil && !late {
		return nil
	}
	lasted := time.Since(s.since).Truncate(time.Second)
	if s.since.IsZero() || lasted-patience < interval || lasted == s.told {
		return nil
	}
	s.told = lasted
	return silent(lasted)
}
