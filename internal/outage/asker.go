package outage

import (
	"context"
	"fmt"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Asker asks Redis, for permits of one limiter or of several that grant together.
type Asker interface {
	// FromMemory returns the answer if it is known without asking, an error for what can't be asked.
	FromMemory(ctx context.Context, q decide.Ask) (a decide.Answer, known bool, err error)
	Ask(ctx context.Context, q decide.Ask) (decide.Answer, error)
	// Fail returns err with the call and the limiter that it speaks of.
	Fail(q decide.Ask, err error) error
	// Breaker returns the server's, and Probe what asks the server whether it decides.
	Breaker(ctx context.Context, q decide.Ask) *Breaker
	Probe(ctx context.Context, q decide.Ask) func() bool
	// Learn notes what an answer shows of the limiters' rates, which local limiters will need.
	Learn(q decide.Ask, a decide.Answer)
	Limiters(q decide.Ask) []decide.Limiter
}

// Joint is an Asker whose limiter Redis can ask together with others, in one call that charges all or none.
type Joint interface {
	Asker

	// Group returns what limiters that go together have in common; nil if this one is to be asked alone.
	Group(q decide.Ask) any
	// Together returns what asks all of a group, for the Permits and the Hold of each ask.
	Together(all []Asker, asks []decide.Ask) Asker
}

// ErrNotSent says why a call was not sent.
var ErrNotSent = fmt.Errorf("%w: the last calls were not decided, and this one was not sent", limit.ErrUnavailable)

// Keyed is a limiter of keys, as middleware asks it.
type Keyed interface {
	// Policy returns its own.
	Policy() Policy
	// Asker returns what to ask about the key of an ask.
	Asker(q decide.Ask) Asker
	// Suffix returns what makes a key another's second one, at its end; "" if there is none.
	Suffix() string
	// Holds reports whether reservations can have a hold.
	Holds() bool
}
