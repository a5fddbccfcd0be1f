// Package linear is a model of a limiter that one call at a time happens to, and asks
// porcupine whether what many callers were answered at once has an order that the model
// explains.
//
// A call with an unknown outcome may have happened at any time from its beginning on,
// or never. What a call took whose caller has gone may be given back at any time.
package linear

import (
	"fmt"

	"github.com/rratelimiter/rratelimiter/internal/test/op"
)

// A Call is what a caller asks of a limiter.
type Call struct {
	op.Op

	ByDefault bool // on a handle that gives the limiter Config if it has no rate

	Reservation int // that Reserve makes or Settle settles, of Permits; its Hold is shorter than every interval
}

func (c Call) String() string {
	text := c.Op.String()
	if c.ByDefault {
		text += " by default"
	}
	return text
}

// A Record is a call and its answer. Moments are counted: of two, the later has the greater
// number.
type Record struct {
	Call
	op.Answer

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
	case r.Outcome != op.Done:
	case r.Limit > 0:
		answer = fmt.Sprintf("%v, %d taken, %d of %d left, retry %v, reset %v", r.OK, r.Taken, r.Free, r.Limit, r.Wait, r.Reset)
	case r.Name == op.Available:
		answer = fmt.Sprint(r.Free)
	case r.Name == op.UpTo:
		answer = fmt.Sprint(r.Taken)
	default:
		answer = fmt.Sprint(r.OK)
	}
	who := fmt.Sprintf("client %d caller %d", r.Client, r.Caller)
	if r.Final {
		who = "at rest"
	}
	return fmt.Sprintf("%-17s %v = %s", who, r.Call, answer)
}

func (r *Record) unseen() bool { return r.Outcome == op.Gone || r.Outcome == op.Unknown }

// mayHaveLeft reports whether the caller waited without success, and its last request may have
// been answered after it left.
func (r *Record) mayHaveLeft() bool { return r.Waits() && r.Outcome == op.Done && !r.OK && r.later }
