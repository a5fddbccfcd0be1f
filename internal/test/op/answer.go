package op

import (
	"context"
	"errors"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limit"
)

// An Outcome is how a call ended.
type Outcome string

// The outcomes.
const (
	Done        Outcome = "done"
	Unknown     Outcome = "unknown"     // ErrUnknownOutcome, the context's end among the causes or not
	Unavailable Outcome = "unavailable" // ErrUnavailable alone: nothing was done
	Gone        Outcome = "gone"        // the caller's context ended, with no word of the result
	Closed      Outcome = "closed"
	Killed      Outcome = "killed"  // its process was, before the answer came
	Missing     Outcome = "missing" // there is no limiter
	Exceeds     Outcome = "exceeds" // more permits than the rate
	Failed      Outcome = "failed"  // anything else
)

// OutcomeOf returns the outcome of a call that returned err.
func OutcomeOf(err error) Outcome {
	for _, known := range []struct {
		err     error
		outcome Outcome
	}{
		{nil, Done},
		{rratelimiter.ErrUnknownOutcome, Unknown}, // beside others
		{rratelimiter.ErrUnavailable, Unavailable},
		{context.Canceled, Gone},
		{context.DeadlineExceeded, Gone},
		{rratelimiter.ErrClosed, Closed},
		{rratelimiter.ErrNotInitialized, Missing},
		{rratelimiter.ErrPermitsExceedRate, Exceeds},
	} {
		if errors.Is(err, known.err) {
			return known.outcome
		}
	}
	return Failed
}

// An Answer is what came of a call.
type Answer struct {
	Outcome Outcome             `json:"outcome"`
	OK      bool                `json:"ok,omitempty"`    // permits were granted, a rate was set, a key was there ...
	Taken   int64               `json:"taken,omitempty"` // by TakeUpTo
	Free    int64               `json:"free,omitempty"`  // of Take and its like, and of AvailablePermits
	Limit   int64               `json:"limit,omitempty"` // of Take and its like; 0 if its figures were not noted
	Wait    time.Duration       `json:"wait,omitempty"`
	Reset   time.Duration       `json:"reset,omitempty"`
	Set     rratelimiter.Config `json:"set,omitzero"`   // of Config
	Left    time.Duration       `json:"left,omitempty"` // of TTL

	Reserved *rratelimiter.Reservation `json:"-"`
	Err      error                     `json:"-"`
}

// Did reports whether the call was answered, and with yes.
func (a Answer) Did() bool { return a.Outcome == Done && a.OK }

// decide notes a decision.
func (a *Answer) decide(d limit.Decision, err error) error {
	a.OK, a.Free, a.Limit, a.Wait, a.Reset = d.Granted, d.Remaining, d.Limit, d.RetryAfter, d.ResetAfter
	return err
}
