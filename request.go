package rratelimiter

import (
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/chain"
)

// request is one caller's wish for permits.
type request struct {
	limiter  *RateLimiter
	permits  int64
	fallback string    // configuration for a limiter that has none, or ""
	figures  bool      // the answer's figures are wanted
	undoable bool      // so is what undoes a grant
	waits    bool      // stands in line until it is granted or gives up
	since    time.Time // when the caller asked
	deadline time.Time // when the caller gives up; zero: never

	state   state
	round   int       // the line's round in which it was asked for last
	refused bool      // it stayed in line
	sent    time.Time // when it was asked for last
	before  counts    // when it was sent; see refusals
	answer  answer
	place   chain.Link[*request] // in the line, or among those that want one try
	done    chan struct{}        // closed with the answer; nil while nobody waits for it
}

type state int

const (
	queued state = iota
	inFlight
	left     // the caller went away while its request was in flight
	answered // the answer is there
)

// The pools hold no channels, which would not outlive a bubble of
// testing/synctest.
var requests sync.Pool

func newRequest(l *RateLimiter, permits int64) *request {
	r, ok := requests.Get().(*request)
	if !ok {
		r = &request{}
	}
	r.limiter, r.permits = l, permits
	return r
}

// free lets a request be used anew whose answer its caller has.
func (r *request) free() {
	*r = request{}
	requests.Put(r)
}

// link returns the request's place, for a list that it is to join.
func (r *request) link() *chain.Link[*request] {
	r.place.Element = r
	return &r.place
}

// take returns the answer that is there, and lets go of the request.
func (r *request) take() (answer, error) {
	a := r.answer
	if a.refused() && !r.waits {
		r.limiter.refused.remember(r, a)
	}
	r.free()
	return a, a.err
}

// tell gives the caller its answer, with which the request leaves its list.
func (r *request) tell(a answer) {
	r.place.Leave()
	r.state, r.answer = answered, a
	if r.done != nil {
		close(r.done)
	}
}
