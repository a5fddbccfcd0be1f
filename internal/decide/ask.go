// Package decide has what every call for permits is made of: what is asked, the answer, and the reservation that a
// grant may be.
package decide

import (
	"context"
	"encoding"
	"math"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/local"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Ask is what a caller asks of a limiter.
type Ask struct {
	Call    string    // the method's name
	Key     string    // of a limiter of keys
	Made    string    // what middleware made the Key of, as the program has it
	Start   time.Time // when Redis is asked; zero: once it is
	Permits int64
	UpTo    bool          // as many as are free, at most Permits
	MayWait bool          // until the permits are granted or the timeout is over
	Timeout time.Duration // 0 with MayWait: none
	Until   time.Time     // with MayWait: a refusal by Redis until later than that ends the wait; zero: none does
	Figures bool          // the figures of the Decision are wanted
	Undo    bool          // a grant is to be undone, perhaps
	Reserve bool          // a grant is settled later, so it needs a member of its own
	Hold    time.Duration // with Reserve: how long it counts unless it is settled; 0: an interval
	Watched bool          // the caller lets all pass: the answer is what it would be in earnest, and Report reports it
	Within  time.Duration // how long Redis may take to answer, if that is less than a call may; 0: no matter
}

// RoundHold returns the Hold of an ask as scripts read it, in whole milliseconds; false if d is too short for one.
func RoundHold(d time.Duration) (hold time.Duration, ok bool) {
	d = min(d, math.MaxInt64-time.Millisecond)
	return (d + time.Millisecond - 1).Truncate(time.Millisecond), d >= time.Millisecond
}

// Answer is the caller's answer.
type Answer struct {
	limit.Decision

	By    limit.Source
	Taken int64                       // permits that the caller has
	Each  []Answer                    // of several limiters, one for each
	Undo  func(context.Context) error // undoes a grant; may be nil
	// Settle corrects a grant to the permits that were used, and calls then with the result,
	// also if ctx ended before. It is nil if Redis was not charged.
	Settle func(ctx context.Context, used int64, then func(error)) error
	// Renew makes a grant that Settle settles count from now on, or returns limit.ErrSettled if it has come back. It is
	// nil if Settle is, or it can't be.
	Renew func(context.Context) error
	// Reserved writes by what other programs settle the grant; nil if none can.
	Reserved encoding.BinaryAppender
	// Unanswered says that ctx ended before Redis had said anything, a refusal included.
	Unanswered bool
	Undecided  bool // the error leaves the decision open, even if it is no limit.ErrUnavailable

	Report func()        // to the limiter's observer, if Watched
	Cause  error         // why Redis did not decide, if something else answered
	Known  bool          // Cause, or the error, says of an outage only what others have met before
	Window time.Duration // of a local limiter that answered
}

// Part returns the answer of one of the limiters.
func (a *Answer) Part(i int) Answer {
	if len(a.Each) == 0 {
		return *a
	}
	return a.Each[i]
}

// Limiter is a limiter that is asked for permits.
type Limiter struct {
	Of interface {
		// Fail returns err with the call and the limiter.
		Fail(q Ask, err error) error
	}

	Observed string     // its name, for observers
	Name     string     // its own, by which this program counts what Redis was not charged for
	Rule     local.Rule // zero if it is not known
	Permits  int64      // that are asked of it
	Most     int64      // permits that a grant can be settled with
	Once     bool       // settling is not repeated if its outcome is unknown
	Releases bool       // callers may release permits that they have
}

type enteredKey struct{}

// WithEntered returns a context for a call that waits for permits. entered is called once the call is in
// the limiter's line: those that are made after that are served after it. It may be called several
// times, or never if the call ends before.
func WithEntered(ctx context.Context, entered func()) context.Context {
	return context.WithValue(ctx, enteredKey{}, entered)
}

// Entered calls the function of WithEntered, if there is one.
func Entered(ctx context.Context) {
	if entered, ok := ctx.Value(enteredKey{}).(func()); ok {
		entered()
	}
}
