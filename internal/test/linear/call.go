package linear

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// A Call is what a caller asks of a limiter.
type Call struct {
	Name      CallName
	Permits   int64
	Timeout   time.Duration
	Config    rratelimiter.Config
	Keep      bool  // with KeepState
	Override  int   // that SetRate makes and End ends; 0: none
	Base      int64 // the default of SetRate's handle, if that makes an override; 0: none
	ByDefault bool  // on a handle that gives the limiter Config if it has no rate

	Reservation int           // that Reserve makes or Settle settles, of Permits
	Hold        time.Duration // of it, shorter than every interval; 0: none
	Used        int64         // what Settle says that it cost
}

// A CallName is which call one is.
type CallName string

// The calls.
const (
	Try       CallName = "TryAcquire"
	Acquire   CallName = "Acquire"
	Take      CallName = "Take"
	UpTo      CallName = "TakeUpTo"
	Peek      CallName = "Peek"
	All       CallName = "TryAcquireAll"
	Reserve   CallName = "Reserve"
	Settle    CallName = "Settle"
	Release   CallName = "Release"
	Available CallName = "AvailablePermits"
	TrySet    CallName = "TrySetRate"
	Set       CallName = "SetRate"
	Update    CallName = "UpdateRate"
	End       CallName = "the end of an override" // which no one calls
	Reset     CallName = "Reset"
	Delete    CallName = "Delete"
)

func (c Call) String() string {
	keep, held := "", ""
	if c.Hold > 0 {
		held = fmt.Sprintf(", held %v", c.Hold)
	}
	switch {
	case c.Override > 0:
		keep = fmt.Sprint(", override ", c.Override)
	case c.Keep:
		keep = ", KeepState"
	}
	text := string(c.Name)
	switch c.Name {
	case Try, Reserve:
		text += fmt.Sprintf("(%d, %v%s)", c.Permits, c.Timeout, held)
	case Settle:
		text += fmt.Sprintf("(%d of %d%s)", c.Used, c.Permits, held)
	case Acquire, Take, UpTo, Peek, All, Release:
		text += fmt.Sprintf("(%d)", c.Permits)
	case End:
		text += fmt.Sprintf(" %d", c.Override)
	case TrySet, Set, Update:
		text += fmt.Sprintf("(%d/%v%s)", c.Config.Rate, c.Config.Interval, keep)
	default:
		text += "()"
	}
	if c.ByDefault {
		text += fmt.Sprintf(" with default %d/%v", c.Config.Rate, c.Config.Interval)
	}
	return text
}

func (c Call) waits() bool { return c.Timeout > 0 || c.Name == Acquire }

// An Outcome is how a call ended.
type Outcome string

// The outcomes.
const (
	Done      Outcome = "done"
	Exceeds   Outcome = "ErrPermitsExceedRate"
	NoRate    Outcome = "ErrNotInitialized"
	Cancelled Outcome = "cancelled"         // with no word of the result
	Unknown   Outcome = "ErrUnknownOutcome" // the context's end among the causes or not
	Unsent    Outcome = "ErrUnavailable"    // in time, by a machine that is busy
	Failed    Outcome = "failed"
)

// OutcomeOf returns the outcome of a call that returned err.
func OutcomeOf(err error) Outcome {
	switch {
	case err == nil:
		return Done
	case errors.Is(err, rratelimiter.ErrUnknownOutcome):
		return Unknown
	case errors.Is(err, rratelimiter.ErrUnavailable):
		return Unsent
	case errors.Is(err, rratelimiter.ErrPermitsExceedRate):
		return Exceeds
	case errors.Is(err, rratelimiter.ErrNotInitialized):
		return NoRate
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return Cancelled
	}
	return Failed
}

// An Answer is what a call was answered.
type Answer struct {
	Outcome Outcome
	OK      bool
	Taken   int64 // of TakeUpTo
	Free    int64 // of Take and its like, and of AvailablePermits
	Limit   int64 // of Take and its like; 0 if its figures were not noted
	Wait    time.Duration
	Reset   time.Duration
}

// A Record is a call and its answer. Moments are counted: of two, the later has the greater
// number.
type Record struct {
	Call
	Answer

	Claims           string // of a call of several limiters: the permits of each
	Number           int
	Client, Caller   int
	Began, Ended     int64
	BeganAt, EndedAt int64 // ms of a clock that is known

	Final  bool // when all has come to rest
	Doubts int  // how many of its client's requests went without an answer meanwhile

	tight spell // of the request that most likely carried it
	wide  spell // of all that may have
	alone bool  // no other call of its client was waiting meanwhile
	late  bool  // a request that may have carried it was under way when it ended
	later bool  // or began after, and may have been made before
	lost  int   // Doubts, and losses after it ended
	open  bool  // the result is left out
}

func (r *Record) String() string {
	answer := string(r.Outcome)
	switch {
	case r.open:
		answer = "..."
	case r.Outcome == Done:
		switch r.Name {
		case Try, All, Update, TrySet, Delete:
			answer = fmt.Sprint(r.OK)
		case Take, UpTo, Peek, Reserve:
			answer = fmt.Sprint(r.OK)
			if r.Name == UpTo {
				answer = fmt.Sprint(r.Taken)
			}
			if r.Limit > 0 {
				answer = fmt.Sprintf("%v, %d of %d left, retry %v, reset %v", answer, r.Free, r.Limit, r.Wait, r.Reset)
			}
		case Available:
			answer = fmt.Sprint(r.Free)
		}
	}
	who := fmt.Sprintf("client %d caller %d", r.Client, r.Caller)
	if r.Final {
		who = "at rest"
	}
	return fmt.Sprintf("%-17s %v = %s", who, r.Call, answer)
}

func (r *Record) unseen() bool { return r.Outcome == Cancelled || r.Outcome == Unknown }

// mayHaveLeft reports whether the caller waited without success, and its last request may have
// been answered after it left.
func (r *Record) mayHaveLeft() bool { return r.waits() && r.Outcome == Done && !r.OK && r.later }
