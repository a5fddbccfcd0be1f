package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// answer is what came of a call.
type answer string

const (
	granted     answer = "granted"
	refused     answer = "refused"
	done        answer = "done"        // a call that asks for no permits
	unknown     answer = "unknown"     // ErrUnknownOutcome
	unavailable answer = "unavailable" // ErrUnavailable alone: nothing was done
	gone        answer = "gone"        // the caller's context ended
	closed      answer = "closed"
	killed      answer = "killed"  // its process was, before the answer came
	missing     answer = "missing" // there is no limiter
	exceeds     answer = "exceeds" // more permits than the rate
	failed      answer = "failed"  // anything else; no fault may bring it about
)

// A call is one call of a limiter. Whoever makes calls writes them down in this form,
// in this process or, a line of JSON each, in another one.
type call struct {
	Worker   string        `json:"worker"`
	Redisson string        `json:"redisson,omitempty"` // its release, where the call is one of its own
	Client   string        `json:"client"`             // one Client; a worker may have several, one after another
	Op       string        `json:"op"`
	Limiters []string      `json:"limiters"` // more than one: TryAcquireAll
	Permits  int64         `json:"permits,omitempty"`
	Asked    int64         `json:"asked,omitempty"`   // of TakeUpTo, at most; Permits are what it was granted
	Rate     int64         `json:"rate,omitempty"`    // that is set
	Timeout  time.Duration `json:"timeout,omitempty"` // of a TryAcquire that waits
	Ends     time.Duration `json:"ends,omitempty"`    // after which the context does
	Cancels  bool          `json:"cancels,omitempty"` // the context is cancelled then; else it has a deadline
	Bound    time.Duration `json:"bound"`             // by which there must be an answer
	Start    time.Duration `json:"start"`             // since the round's beginning
	End      time.Duration `json:"end"`               // the same
	Answer   answer        `json:"answer"`
	Free     int64         `json:"free,omitempty"` // what AvailablePermits told
	Did      bool          `json:"did,omitempty"`  // a rate was set, or Peek told of a grant
	Error    string        `json:"error,omitempty"`
}

// takes tells whether the call asks for permits.
func (c *call) takes() bool { return takers[c.Op] }

// name is that of the operation in records.
func (c *call) name() string {
	if c.Redisson != "" {
		return c.Op + ", of Redisson"
	}
	return c.Op
}

var takers = map[string]bool{opTry: true, opWait: true, opAcquire: true, opTake: true, opUpTo: true, opAll: true}

func (c *call) String() string {
	var args []string
	for _, arg := range []struct {
		there bool
		text  string
	}{
		{c.Permits != 0, fmt.Sprintf("%d permits", c.Permits)},
		{c.Asked != 0, fmt.Sprintf("of %d asked for", c.Asked)},
		{c.Rate != 0, fmt.Sprintf("rate %d", c.Rate)},
		{c.Timeout != 0, fmt.Sprintf("timeout %v", c.Timeout)},
		{c.Ends != 0 && c.Cancels, fmt.Sprintf("cancelled after %v", c.Ends)},
		{c.Ends != 0 && !c.Cancels, fmt.Sprintf("deadline %v", c.Ends)},
	} {
		if arg.there {
			args = append(args, arg.text)
		}
	}
	text := fmt.Sprintf("%s-%s ms  %s  %s %s(%s): %s", millis(c.Start), millis(c.End), c.Client, strings.Join(c.Limiters, "+"),
		c.Op, strings.Join(args, ", "), c.Answer)
	if c.Error != "" {
		text += "  [" + c.Error + "]"
	}
	return text
}

func millis(d time.Duration) string {
	return fmt.Sprintf("%8.1f", float64(d)/float64(time.Millisecond))
}

// answerOf classifies what a call returned; ok is what the call answers where it does.
func answerOf(err error, ok answer) answer {
	for _, known := range []struct {
		err    error
		answer answer
	}{
		{nil, ok},
		{rratelimiter.ErrUnknownOutcome, unknown}, // beside others
		{rratelimiter.ErrUnavailable, unavailable},
		{context.Canceled, gone},
		{context.DeadlineExceeded, gone},
		{rratelimiter.ErrClosed, closed},
		{rratelimiter.ErrNotInitialized, missing},
		{rratelimiter.ErrPermitsExceedRate, exceeds},
	} {
		if errors.Is(err, known.err) {
			return known.answer
		}
	}
	return failed
}
