package limit

import (
	"context"
	"errors"
	"time"
)

// Observer receives what limiters do, for metrics, traces and logs: see WithObserver of a Client,
// for all limiters made on it, and WithObserver of packages httplimit and grpclimit, which
// report Decided and Happened only. Decided runs on the caller's goroutine, which waits for it. The
// other methods run soon after, one at a time, and are skipped while an observer is thousands behind.
// No lock of a limiter is held while a method runs, and a panic in one is caught.
//
// Embed [NoObserver] to implement only some methods, and to stay compatible when methods are added.
//
// A limiter is reported under its name, and a limiter of keys under its prefix or its own name, never
// under a key: there are no more names than the program has limiters. Only Decided.Key has keys.
type Observer interface {
	// Decided receives each call that asks for permits, once it is answered. ctx is the
	// caller's, which may have ended.
	Decided(ctx context.Context, d Decided)

	// Landed receives each round trip with the requests for permits that shared it.
	Landed(f Flight)

	// Waiting receives how many callers wait for permits of a limiter, each time that has
	// changed. Of many quick changes it receives only the last.
	Waiting(limiter string, callers int)

	// Leased receives each lease when it is taken and when it ends.
	Leased(l Lease)

	// Settled receives each reservation when it is settled or could not be.
	Settled(s Settled)

	// Happened receives rare events that an operator may want to know.
	Happened(e Event)
}

// NoObserver is an Observer that does nothing.
type NoObserver struct{}

// Decided does nothing.
func (NoObserver) Decided(context.Context, Decided) {}

// Landed does nothing.
func (NoObserver) Landed(Flight) {}

// Waiting does nothing.
func (NoObserver) Waiting(string, int) {}

// Leased does nothing.
func (NoObserver) Leased(Lease) {}

// Settled does nothing.
func (NoObserver) Settled(Settled) {}

// Happened does nothing.
func (NoObserver) Happened(Event) {}

// Decided is the answer to one call that asked a limiter for permits. A call that asks several
// limiters has one for each.
type Decided struct {
	Limiter string // its name, the prefix of keys, or the name of middleware's limit
	Call    string // the method, such as "TryAcquire", or the middleware, such as "httplimit"
	Permits int64

	// Key is what middleware counted a request by, as it is in Redis: with the prefix, and its parts escaped. It is "" for
	// other calls. There are as many as clients, so it is for logs, and not for labels of metrics.
	Key string

	// Limit and Remaining are those of the Decision; Limit is 0 if it has no figures, as most grants of TryAcquire.
	Limit, Remaining int64

	Outcome Outcome
	Err     error     // nil unless Failed
	Kind    ErrorKind // of Err

	// Source is what decided, "" if nothing was asked.
	Source Source

	// Shadow reports whether the limiter only watches: the caller may go on, whatever the Outcome.
	Shadow bool

	// Start is when the call came, and Waited how long its caller had to wait for the
	// answer, including the wait for permits.
	Start  time.Time
	Waited time.Duration
}

// Outcome is how a call ended.
type Outcome string

// The outcomes.
const (
	Granted Outcome = "granted"
	Refused Outcome = "refused"

	// TooCostly: refused because of its size, as no waiting helps a request for more permits than the limit. The
	// caller's error is ErrPermitsExceedRate, or ErrInvalidPermits for more permits than any limiter has.
	TooCostly Outcome = "too_costly"

	Failed Outcome = "failed"
)

// Source says what decided a call.
type Source string

// The sources.
const (
	FromRedis  Source = "redis"
	FromOpen   Source = "open"   // FailOpen, while Redis did not decide
	FromLocal  Source = "local"  // FailLocal, while Redis did not decide
	FromMemory Source = "memory" // a lease or a remembered refusal, without a round trip
	// Middleware reports FromLimiter for the limiter it asked, and FromFallback for the one
	// that answers if that fails.
	FromLimiter  Source = "limiter"
	FromFallback Source = "fallback"
)

// ErrorKind is the kind of an error, in one word, for metrics.
type ErrorKind string

// The kinds.
const (
	KindUnavailable    ErrorKind = "unavailable"         // ErrUnavailable
	KindUnknownOutcome ErrorKind = "unknown_outcome"     // ErrUnknownOutcome
	KindExceeds        ErrorKind = "permits_exceed_rate" // ErrPermitsExceedRate
	KindInvalid        ErrorKind = "invalid_argument"    // ErrInvalidPermits, ErrInvalidConfig, ErrSettled
	KindNotInitialized ErrorKind = "not_initialized"     // ErrNotInitialized
	KindCorrupt        ErrorKind = "corrupt"             // ErrCorrupt
	KindUnsupported    ErrorKind = "unsupported"         // ErrUnsupported
	KindNotReplicated  ErrorKind = "not_replicated"      // ErrNotReplicated
	KindClosed         ErrorKind = "closed"              // ErrClosed
	KindCanceled       ErrorKind = "canceled"            // the caller's context was cancelled
	KindDeadline       ErrorKind = "deadline_exceeded"   // the caller's context, or middleware's timeout, came to its end
	KindOther          ErrorKind = "other"
)

var kinds = []struct {
	err  error
	kind ErrorKind
}{
	{ErrNotReplicated, KindNotReplicated},   // whatever WAIT met
	{ErrUnknownOutcome, KindUnknownOutcome}, // beside ErrUnavailable
	{ErrUnavailable, KindUnavailable},
	{ErrPermitsExceedRate, KindExceeds},
	{ErrInvalidPermits, KindInvalid},
	{ErrInvalidConfig, KindInvalid},
	{ErrSettled, KindInvalid},
	{ErrNotInitialized, KindNotInitialized},
	{ErrCorrupt, KindCorrupt},
	{ErrUnsupported, KindUnsupported},
	{ErrClosed, KindClosed},
	{context.Canceled, KindCanceled},
	{context.DeadlineExceeded, KindDeadline},
}

// KindOf returns the kind of a limiter's error, "" for nil.
func KindOf(err error) ErrorKind {
	if err == nil {
		return ""
	}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return k.kind
		}
	}
	return KindOther
}

// Flight describes one round trip to a server, with the requests that shared it.
type Flight struct {
	Requests  int           // of callers
	Calls     int           // script calls: one for each key
	Repeats   int           // calls sent again: the answer was lost, or the server could not run them
	RoundTrip time.Duration // until the answer, or until waiting ended
	Err       error         // if the flight brought no answer at all
}

// Lease describes permits that a limiter's handle took ahead, or the end of such a lease.
type Lease struct {
	Limiter string
	Permits int64 // taken ahead
	Ended   bool
	Unused  int64 // of Permits, given back at the end
}

// Settled describes a reservation that was settled, or could not be.
type Settled struct {
	Limiter  string
	Reserved int64     // permits taken by Reserve, or by a limit.Reserver
	Actual   int64     // permits used
	Charged  bool      // whether Redis was charged: not if WithFailure or WithShadow let the caller through
	Err      error     // why it may not be settled; nil if it is
	Kind     ErrorKind // of Err
}

// Event is a rare event.
type Event struct {
	Kind    EventKind
	Limiter string // "" if it concerns all limiters
	Permits int64  // 0 if it concerns none
	Err     error  // the reason, if there is one

	// Found and Want are the rate in Redis and the rate that the handle should have, if the event is about rates.
	Found, Want Rate
}

// EventKind says what happened.
type EventKind string

// The kinds of events.
const (
	// ServerSilent: a master answers no call for now.
	ServerSilent EventKind = "server silent"

	// ServerAnswers: it answers again.
	ServerAnswers EventKind = "server answers"

	// PermitsGivenUp: Permits of Limiter, whose callers had gone, could not be given back, or
	// may have been taken. They come back an interval after they were taken.
	PermitsGivenUp EventKind = "permits given up"

	// StateRepaired: keys of Limiter were lost or did not match, and were repaired. It is
	// reported at most once a minute.
	StateRepaired EventKind = "state repaired"

	// LayoutsExclude: Redissons that WithRedissonVersion does not name share Limiter and misread
	// what this Client writes. It is reported at most once a minute.
	LayoutsExclude EventKind = "layouts exclude each other"

	// AskedNoMore: a server, or the limiter of middleware, left calls undecided. WithFailure's
	// policy answers at once until a probe shows that it decides again.
	AskedNoMore EventKind = "asked no more"

	// AskedAgain: it decides again.
	AskedAgain EventKind = "asked again"

	// ReplicasBehind: too few replicas of a master confirmed its grants in time, so WithReplicas makes calls fail.
	ReplicasBehind EventKind = "replicas behind"

	// ReplicasKeepUp: they have confirmed all grants for a second.
	ReplicasKeepUp EventKind = "replicas keep up"

	// RateReplaced: Found was the default of a program that began before, and Want, the handle's
	// default, has replaced it. Reported once for all keys of a limiter.
	RateReplaced EventKind = "rate replaced"

	// RateDiffers: Want is the handle's default, and Found, which holds, is the default of a
	// program that began later, or of another handle of the same Client, even before any request.
	// Both may have Permits and Interval only. Nothing was done. Reported once.
	RateDiffers EventKind = "rate differs"

	// PrefixesMeet: two limiters of keys of a Client, Limiter and the one that Err names, have
	// prefixes of which one begins with the other, so a key of one may be a key of the other.
	// The same prefix with two rates is RateDiffers.
	PrefixesMeet EventKind = "prefixes meet"

	// NameNotNoted: the name of WithClientName could not be written. The Client tries again while
	// it is used, and reports this once until it works.
	NameNotNoted EventKind = "name not noted"

	// RedissonUntested: WithRedissonVersion names a Redisson newer than all tested with this
	// module. It counts as the newest tested; Err names both.
	RedissonUntested EventKind = "Redisson untested"
)
