package limit

import (
	"context"
	"errors"
	"time"
)

// Observer receives what limiters do, for metrics, traces and logs: see WithObserver of a Client,
// [WithObserver] for the other limiters, and WithObserver of packages httplimit and grpclimit, which
// report Decided and Happened only. Decided runs on the caller's goroutine, which waits for it. All else
// follows soon after, one after another, and is left out while an observer is thousands behind. No
// lock of a limiter is held while a method runs, and a panic in one ends nothing.
//
// Embed [NoObserver] to have only some methods, and those that are to come.
//
// A limiter is called by its name, and one of keys by its prefix or its own name, never by a key: there
// are no more names than the program has limiters.
type Observer interface {
	// Decided receives each call that asks for permits, when it is answered. ctx is the
	// caller's, which may have ended.
	Decided(ctx context.Context, d Decided)

	// Landed receives each round trip in which requests for permits went together.
	Landed(f Flight)

	// Waiting receives how many callers wait for permits of a limiter, when that has changed;
	// of many changes at once the last.
	Waiting(limiter string, callers int)

	// Leased receives each lease that is taken or ends.
	Leased(l Lease)

	// Settled receives each reservation that is settled, or could not be.
	Settled(s Settled)

	// Happened receives rare events that an operator may want to know of.
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

// Decided is the answer to one call that asked a limiter for permits: one for each limiter, if it
// asks several.
type Decided struct {
	Limiter string // its name, the prefix of keys, or the name of middleware's limit
	Call    string // the method, such as "TryAcquire", or the middleware, such as "httplimit"
	Permits int64
	Outcome Outcome
	Err     error     // nil unless Failed
	Kind    ErrorKind // of Err

	// Source is what decided, "" if nothing was asked.
	Source Source

	// Shadow says that the limiter only watches: its caller may go on, whatever the Outcome.
	Shadow bool

	// Start is when the call came, and Waited how long its caller had to wait for the
	// answer, for permits included.
	Start  time.Time
	Waited time.Duration
}

// Outcome is how a call ended.
type Outcome string

// The outcomes.
const (
	Granted Outcome = "granted"
	Refused Outcome = "refused"
	Failed  Outcome = "failed"
)

// Source is what decided a call.
type Source string

// The sources.
const (
	FromRedis  Source = "redis"
	FromOpen   Source = "open"   // FailOpen, while Redis did not decide
	FromLocal  Source = "local"  // FailLocal, while Redis did not decide
	FromMemory Source = "memory" // a lease or a remembered refusal, without a round trip
	// Middleware reports FromLimiter for the limiter it asked, and FromFallback for the one that
	// answers while that fails.
	FromLimiter  Source = "limiter"
	FromFallback Source = "fallback"
)

// ErrorKind is the kind of an error: one of few words, for metrics.
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

// Flight is one round trip to a server, with the requests that went together.
type Flight struct {
	Requests  int           // callers' requests
	Calls     int           // script calls: one for each key
	Repeats   int           // of Calls, those sent before: the answer was lost, or the server could not run them
	RoundTrip time.Duration // until the answer, or until it was given up
	Err       error         // of a flight that brought no answer at all
}

// Lease is permits that a limiter's handle took ahead, or the end of that.
type Lease struct {
	Limiter string
	Permits int64 // that were taken
	Ended   bool
	Unused  int64 // of Permits, given back at the end
}

// Settled is a reservation of a RateLimiter that was settled.
type Settled struct {
	Limiter  string
	Reserved int64     // permits
	Actual   int64     // that were used
	Charged  bool      // in Redis: not if WithFailure or WithShadow let the caller through
	Err      error     // why it may not be settled; nil if it is
	Kind     ErrorKind // of Err
}

// Event is something rare.
type Event struct {
	Kind    EventKind
	Limiter string // "" if it concerns all
	Permits int64  // 0 if it concerns none
	Err     error  // the reason, if there is one

	// Found and Want are the rate that Redis had and the one that the handle is to have,
	// if it concerns rates.
	Found, Want Rate
}

// EventKind is what happened.
type EventKind string

// The events.
const (
	// ServerSilent: a master answers no call for now.
	ServerSilent EventKind = "server silent"

	// ServerAnswers: it does again.
	ServerAnswers EventKind = "server answers"

	// PermitsGivenUp: Permits of Limiter, of callers who had gone, could not be given back, or may
	// have been taken: they come back by themselves, an interval after they were.
	PermitsGivenUp EventKind = "permits given up"

	// StateRepaired: keys of Limiter were lost or did not match, and were set right. It is
	// reported once a minute at most.
	StateRepaired EventKind = "state repaired"

	// LayoutsExclude: Limiter is shared with Redissons that WithRedissonVersion does not name and
	// that misread what this Client writes. It is reported once a minute at most.
	LayoutsExclude EventKind = "layouts exclude each other"

	// AskedNoMore: a server, or the limiter of middleware, left calls undecided, so that
	// WithFailure's policy answers at once until a probe shows that it decides again.
	AskedNoMore EventKind = "asked no more"

	// AskedAgain: it does.
	AskedAgain EventKind = "asked again"

	// ReplicasBehind: too few replicas of a master confirmed in time that they have what
	// it granted, so that WithReplicas fails calls.
	ReplicasBehind EventKind = "replicas behind"

	// ReplicasKeepUp: they have confirmed all for a second.
	ReplicasKeepUp EventKind = "replicas keep up"

	// RateReplaced: a handle with WithRate found Limiter with another rate, Found, at its first
	// call, and has set its own, Want. Or Found was the default of a program that began before,
	// and Want is the handle's: reported once for all keys of a limiter.
	RateReplaced EventKind = "rate replaced"

	// RateDiffers: an answer showed that Limiter now has another rate, Found, than the Want that a
	// handle with WithRate has set; both have Permits and Interval only. Nothing was done: the rate
	// was changed at run time, or two programs do not agree. Or Want is the handle's default, and
	// Found that of a program that began later, or of another handle of the same Client, even if
	// nothing was asked yet: reported once.
	RateDiffers EventKind = "rate differs"

	// PrefixesMeet: two limiters of keys of a Client, Limiter and that which Err names, have
	// prefixes of which one continues the other, so that a key of one may be a key of the
	// other. The same prefix with two rates is RateDiffers.
	PrefixesMeet EventKind = "prefixes meet"

	// NameNotNoted: the name of WithClientName could not be written. It is tried again while the
	// Client is used, and reported once until it works.
	NameNotNoted EventKind = "name not noted"

	// RedissonUntested: WithRedissonVersion names a Redisson newer than any that was tested
	// with this module. It counts as the newest tested; Err names both.
	RedissonUntested EventKind = "Redisson untested"
)
