package engine

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/merge"
)

// grant is permits of one member that will be given back.
type grant struct {
	member    []byte        // nil if none are kept
	shared    *merge.Member // the member's; nil if no other grant uses it
	permits   int64
	sent      time.Time // when they were asked for
	hold      Hold      // zero for none
	windowEnd int64     // epoch ms, if the value counts a fixed window
}

// Hold says when a member is dated that runs out before an interval is over: Early before the grant, which came
// at At, in epoch ms by the server's clock. If a repeat found the grant, it came somewhat earlier.
type Hold struct {
	Early time.Duration
	At    int64
}

// words are the Hold as scripts read it, "" for none.
func (h Hold) words() (early, at string) {
	if h.Early == 0 {
		return "", ""
	}
	return strconv.FormatInt(h.Early.Milliseconds(), 10), strconv.FormatInt(h.At, 10)
}

// handleLease is the lease of one handle. Its queue's lock guards everything except the current lease.
type handleLease struct {
	current atomic.Pointer[leased]
	asking  bool        // a batch that takes permits ahead is under way
	timer   *time.Timer // runs while the handle is one of its queue's holders
}

// lasts reports whether there is a lease with permits left.
func (h *handleLease) lasts() bool {
	a := h.current.Load()
	return a != nil && a.Left() > 0
}

// leased is a lease, with how to undo it and its figures.
type leased struct {
	*lease.Lease

	rest    grant // the grant that goes back; the permits are set then
	unused  int64 // permits that went back; the queue's lock guards it
	figures *atomic.Pointer[figures]
}

// part is a number of permits of the lease, to be given back.
func (a *leased) part(permits int64) grant {
	part := a.rest
	part.permits = permits
	return part
}

// figures are what Redis last said about a limiter, less what its Client took since.
type figures struct {
	rate, free int64
	interval   time.Duration // 0 until Redis has said something
	asked      int           // how many answers with figures had come when these were asked for
	live       []*leased     // the leases that are charged already
}

// remaining returns how many permits the Client may still take: those that are free, and those left of its
// leases, so many of that one.
func (f *figures) remaining(of *leased, left int64) int64 {
	free := f.free
	for _, a := range f.live {
		if a == of {
			free += left
		} else {
			free += max(0, a.Left())
		}
	}
	return free
}
