package script

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lua"
)

// Attempt is what the arguments of a script may depend on.
type Attempt struct {
	Age      time.Duration // since the first attempt that may have run was sent; below 0 if there is none
	Token    string        // from the script's last answer {"again", token, ...}
	Repeated bool          // an attempt with this token may have run already
}

// Words describe the earlier attempts to a script. After a lost answer, a step that changes nothing goes on
// from its place. For what another step has left behind the script searches: see lua/include/search.lua.
func (a Attempt) Words() (age, token string) {
	if a.Age >= 0 {
		age = LongAge(a.Age)
	}
	if !a.Repeated || strings.HasPrefix(a.Token, "find:") || strings.HasPrefix(a.Token, "found:") {
		return age, a.Token
	}
	if searched, found := strings.CutPrefix(a.Token, "searched:"); found {
		began, _, _ := strings.Cut(searched, ";")
		return age, "since:" + began
	}
	return age, ""
}

// Arguments makes the arguments for the attempts of a call.
type Arguments interface {
	// Append appends them to all.
	Append(all []any, a Attempt) []any
}

// Constant is arguments that are the same for all attempts.
type Constant []any

// Append appends them.
func (c Constant) Append(all []any, _ Attempt) []any { return append(all, c...) }

// Paged is arguments followed by the token, "" on the first call.
type Paged []any

// Append appends them and the token.
func (p Paged) Append(all []any, a Attempt) []any { return append(append(all, p...), a.Token) }

// ArgumentsFunc is a function that implements Arguments.
type ArgumentsFunc func(all []any, a Attempt) []any

// Append calls f.
func (f ArgumentsFunc) Append(all []any, a Attempt) []any { return f(all, a) }

// Call is a script call with its attempts: Begin, Next and Ended, until it is done.
type Call struct {
	Script *lua.Script
	Keys   *Keys
	Args   Arguments
	Repeat bool   // the script can tell a repeated attempt from a new one, or may run any number of times
	Reads  bool   // the script changes nothing that matters; then Repeat is set too
	Joint  *Joint // how the first attempt may be merged with other calls; nil: not at all

	// Continued, if not nil, gets an answer {"again", token, ...}, and reports whether the call goes
	// on: otherwise it is done with that answer, or fails with the error.
	Continued func(token string, rest []any) (more bool, err error)

	// Since is when the time until the first answer began, which is the Conn's timeout. Zero means
	// the first attempt. Each answer restarts that time, but a call in doubt ends within twice the timeout.
	Since time.Time

	// Wanted, if not nil, is called before the first attempt. If it returns false, the call is not
	// sent and ends with ErrUnwanted.
	Wanted func() bool

	step

	sent   time.Time // the last attempt
	until  time.Time // when the call is overdue; zero before the first attempt
	doubt  time.Time // the first attempt that may have run
	doubts int       // attempts that may have run

	reply any
	err   error
}

// step is what a call was through since its last answer.
type step struct {
	token    string
	eval     bool // the server does not know the script
	repeated bool // an attempt with this token may have run
	attempts int
	counted  int   // those not refused because servers change places
	last     error // of the last attempt, which will be repeated
}

const (
	maxAttempts = 5
	minBackoff  = 8 * time.Millisecond
	maxBackoff  = 512 * time.Millisecond

	// patientBackoff is the longest pause while servers change places: until they have, a call is
	// refused however often it is made.
	patientBackoff = 128 * time.Millisecond
)

// Begin says that an attempt is made now, and returns when it must have ended: at end if the server is silent, at last
// if it answers others.
func (c *Call) Begin(to *Conn) (end, last time.Time) {
	c.sent = time.Now()
	c.attempts++
	if c.until.IsZero() {
		c.until = cmp.Or(c.Since, c.sent).Add(to.callTime)
	}
	if end = c.sent.Add(to.AttemptTimeout); c.Repeat && end.Before(c.until) {
		return end, c.until
	}
	return c.until, c.until // without a repeat, nothing is gained by giving up sooner
}

// Overdue reports whether to give up the call, be it before its first attempt.
func (c *Call) Overdue(to *Conn, now time.Time) bool {
	until := c.until
	if until.IsZero() && !c.Since.IsZero() {
		until = c.Since.Add(to.callTime)
	}
	return !until.IsZero() && !now.Before(until)
}

// Joinable returns how the attempt can be merged with others; nil if it can't.
func (c *Call) Joinable() *Joint {
	if c.attempts > 1 || c.token != "" || c.doubts > 0 {
		return nil
	}
	return c.Joint
}

// Next makes the command of an attempt.
func (c *Call) Next(ctx context.Context) Command {
	// A hook of the client may keep a command and its words.
	words := make([]any, 0, 2+len(c.Keys.args)+8)
	if c.eval {
		words = append(words, "eval", c.Script.Source)
	} else {
		words = append(words, "evalsha", c.Script.Word)
	}
	a := Attempt{Age: -1, Token: c.token, Repeated: c.repeated}
	if c.doubts > 0 {
		a.Age = c.sent.Sub(c.doubt)
	}
	return NewCommand(ctx, c.Args.Append(append(words, c.Keys.args...), a), 3)
}

// Ended records how the attempt ended: with the script's answer or an error. If the call is not done, it must
// be repeated after backoff.
func (c *Call) Ended(to *Conn, reply any, err error) (done bool, backoff time.Duration) {
	if err == nil {
		return c.answered(to, reply), 0
	}
	if Code(err) == "NOSCRIPT" && !c.eval {
		c.eval = true
		return false, 0
	}
	c.eval, c.last = false, err
	if backoff, again := c.failed(to, err); again {
		return false, backoff
	}
	c.Expire()
	return true, 0
}

// UnknownJoint says that the attempt was to be merged with others, and did not run: the server does not
// know the merged script. The attempt is repeated with the script's source.
func (c *Call) UnknownJoint() {
	c.attempts--
	c.Joint.Eval = true
}

// answered reports whether the call is done with that answer. {"again"} and {"again", token, ...} ask for another
// call of the script.
func (c *Call) answered(to *Conn, reply any) bool {
	values, _ := reply.([]any)
	more, token := len(values) > 0 && values[0] == "again", ""
	if more && len(values) > 1 {
		token, more = values[1].(string)
		if more && c.Continued != nil {
			more, c.err = c.Continued(token, values[2:])
		}
	}
	if !more || c.err != nil {
		c.reply = reply
		return true
	}
	c.step, c.until = step{token: token}, time.Now().Add(to.callTime)
	if end := c.doubt.Add(to.Timeout + to.callTime); c.doubts > 0 && end.Before(c.until) {
		c.until = end
	}
	return false
}

// Attempts returns how often the call was sent since its last answer.
func (c *Call) Attempts() int { return c.attempts }

// Doubts returns how many attempts may have run without an answer.
func (c *Call) Doubts() int { return c.doubts }

// Outcome returns the answer of a call that is done.
func (c *Call) Outcome() (any, error) { return c.reply, c.err }

// Unwanted says that the call is not made, since Wanted says so.
func (c *Call) Unwanted() { c.last = ErrUnwanted }

// Expire ends a call whose time is over, with the error of its last attempt.
func (c *Call) Expire() {
	c.err = cmp.Or(c.last, errUnsent)
	if c.doubts > 0 {
		c.err = c.Lost(c.err)
	}
}

// failed records that an attempt failed, and reports whether to make another after backoff.
func (c *Call) failed(to *Conn, err error) (backoff time.Duration, again bool) {
	m := meaningOf(err)
	switch {
	case m&maybeRun != 0:
		c.repeated = true
		if c.doubts++; c.doubts == 1 {
			c.doubt = c.sent
		}
	case m&notRun == 0:
		return 0, false
	case isDial(err):
		to.Reload()
	}
	longest := maxBackoff
	if m&moving != 0 {
		longest = patientBackoff
	} else {
		c.counted++
	}
	if c.counted == maxAttempts || c.doubts > 0 && !c.Repeat || errors.Is(err, errPanicked) {
		return 0, false
	}
	backoff = min(minBackoff<<min(c.attempts-1, 10), longest)
	backoff = backoff/2 + rand.N(backoff/2)
	need := backoff
	if Silent(err) {
		need += to.AttemptTimeout / 4 // a server that was silent so long needs at least that
	}
	return backoff, !c.Overdue(to, time.Now().Add(need))
}

// Lost returns the error of a call that may have run, with its cause.
func (c *Call) Lost(err error) error {
	if c.Reads {
		return fmt.Errorf("%w: %w", errUnread, err)
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// Joint says how a call of a script can be merged with such calls for other keys into one call of
// another script. That script gets the keys of all, how many of the calls are Early, and the Args of
// each, the Early ones first. It answers each with an integer: what the call itself would have
// answered, or 0 if it did nothing and the call must be made.
type Joint struct {
	Script *lua.Script
	Args   [2]any
	Early  bool
	Eval   bool // the server does not know the script
}
