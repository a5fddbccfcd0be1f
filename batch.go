package rratelimiter

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/meet"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// maxMembers is how many requests go in one script call where each gets a member
// of its own, so that none holds the server up.
const maxMembers = 128

// batch is what one script call decides: requests in the order in which they
// are served.
type batch struct {
	meet.Batch

	rules    rules
	requests []*request
	reserved int // how many runs are kept for others now
	figures  bool
	audit    bool
	fallback string

	member []byte // the attempt's first member, permits for the sum of all requests; nil without members
	sent   time.Time
	walked []meet.Answer // room for the answers
	told   []answer      // room for the answers
	joint  script.Joint
}

// batches are those that are not in use, with room for what small ones need.
var batches sync.Pool

func newBatch(r rules) *batch {
	b, ok := batches.Get().(*batch)
	if !ok {
		b = &batch{}
	}
	b.rules = r
	return b
}

// free lets the batch be used anew, save one that was large.
func (b *batch) free() {
	if len(b.requests) > meet.MaxRuns {
		return
	}
	clear(b.requests)
	clear(b.walked)
	clear(b.told)
	b.Reset()
	*b = batch{Batch: b.Batch, requests: b.requests[:0], walked: b.walked[:0], told: b.told[:0]}
	batches.Put(b)
}

// add appends a request, or tells that it must wait for another batch.
func (b *batch) add(r *request, inLine bool) bool {
	if len(b.requests) > 0 && r.fallback != b.fallback || len(b.requests) == b.rules.maxRequests() || b.Sum+r.permits > MaxPermits ||
		!b.Add(r.permits, inLine, b.reserved) {
		return false
	}
	b.fallback = r.fallback
	b.requests = append(b.requests, r)
	b.figures = b.figures || r.figures
	return true
}

// patience is how long the batch is sent again while servers change places: as
// long as one of its callers waits, and for a second where all want one try.
func (b *batch) patience(now time.Time) time.Duration {
	longest := time.Duration(1) // 0 would stand for script.Patience
	for _, r := range b.requests {
		switch {
		case !r.waits:
			longest = max(longest, time.Second)
		case r.deadline.IsZero():
			return script.Patience
		default:
			longest = max(longest, r.deadline.Sub(now))
		}
	}
	return min(longest, script.Patience)
}

// args appends the arguments of the acquire script to all; age is below 0 for an
// attempt that cannot have happened yet.
func (b *batch) args(all []any, age time.Duration, token string) []any {
	before := len(all)
	ageText := ""
	if age >= 0 {
		ageText = formatAge(age)
	}
	all = append(all, b.member, meet.Number(b.Sum), b.fallback, b.flags(), ageText, token)
	if len(b.requests) > 1 {
		all = b.Args(append(all, b.Line))
	}
	for len(all) > before+1 && all[len(all)-1] == "" {
		all = all[:len(all)-1]
	}
	return all
}

// part returns how the batch can be decided in one script call with batches of
// other limiters; nil where it can't.
func (b *batch) part(keys *script.Keys) *script.Joint {
	flags := b.flags()
	if b.requests[0].limiter.shared.Load() != keys || len(b.requests) != 1 || flags != "" && flags != "a" {
		return nil
	}
	b.joint = script.Joint{Script: lua.AcquireMany, Args: [2]any{b.member, meet.Number(b.Sum)}, Early: flags == ""}
	return &b.joint
}

// flags returns the letters that tell the script how to decide.
func (b *batch) flags() string {
	flags := ""
	if b.figures {
		flags += "f"
	}
	if b.audit {
		flags += "a"
	}
	return flags + b.rules.letters()
}

// formatAge returns the age of an attempt in milliseconds, with room for what
// clocks of two servers may differ by.
func formatAge(age time.Duration) string {
	return strconv.FormatInt((age + time.Second).Milliseconds(), 10)
}

// outcome is the acquire script's answer to a batch.
type outcome struct {
	rate, free, taken int64
	interval, reset   time.Duration
	keep              time.Duration // the keep-alive time that the attempt started anew; 0 for none
	windowEnd         int64         // epoch ms, where the value counts a fixed window
	waits             []int64       // ms, for each refused run that has one
}

func (b *batch) parseOutcome(reply any) (outcome, error) {
	if short, ok := reply.(int64); ok {
		o := outcome{rate: b.Sum, taken: max(0, short), interval: time.Duration(b.requests[0].limiter.interval.Load())}
		if short < 0 {
			o.waits = []int64{-short}
		}
		return o, nil
	}
	values, _ := reply.([]any)
	numbers, err := integers(reply, len(values))
	if err != nil {
		return outcome{}, err
	}
	if len(numbers) < 6 {
		return outcome{}, fmt.Errorf("unexpected answer of the acquire script: %v", reply)
	}
	o := outcome{
		rate:     numbers[0],
		free:     numbers[1],
		taken:    numbers[2],
		interval: meet.Millis(numbers[3]),
		reset:    meet.Millis(numbers[4]),
		keep:     meet.Millis(numbers[5]),
		waits:    numbers[6:],
	}
	if b.rules.windowed() && len(o.waits) > 0 {
		o.windowEnd, o.waits = o.waits[0], o.waits[1:]
	}
	return o, nil
}

// answer is what a request is told.
type answer struct {
	decision limit.Decision
	atLeast  bool // RetryAfter is a lower bound: the script looked no further
	inLine   bool // refused unasked, for another before it in the line
	undo     func(context.Context) error
	err      error
}

// refused tells whether the request may be made again.
func (a answer) refused() bool { return a.err == nil && !a.decision.Granted }

// answers tells each request what came of it.
func (b *batch) answers(o outcome) []answer {
	b.walked = b.Answers(b.walked[:0], meet.Outcome{Limit: o.rate, Free: o.free, Taken: o.taken, Reset: o.reset, Waits: o.waits})
	all := b.told[:0]
	for i, a := range b.walked {
		told := answer{decision: a.Decision, atLeast: a.AtLeast, inLine: a.Unasked}
		if a.Exceeds {
			told.err = errExceeds(b.requests[i].permits, o.rate)
		}
		all = append(all, told)
	}
	b.told = all
	return all
}

func errExceeds(permits, rate int64) error {
	return fmt.Errorf("%w: %d permits of %d an interval; ask for fewer or raise the rate", ErrPermitsExceedRate, permits, rate)
}

// sign makes the batch a new attempt.
func (b *batch) sign(c *Client) {
	switch {
	case b.rules.windowed():
		b.member = nil // none is kept
	case b.rules.merge:
		b.member = c.identity(make([]byte, 0, 21), 1)
	default:
		b.member = c.identity(make([]byte, 0, 21), len(b.requests))
	}
	if b.member != nil {
		setPermits(b.member, b.Sum)
	}
	b.sent = time.Now()
}

// grant is what is to be given back of a batch: permits of one member.
type grant struct {
	member  []byte
	permits int64
}

// grants returns what these requests, by their places in the batch, were
// granted of it.
func (b *batch) grants(places []int, ahead int64, o outcome) []grant {
	all := grant{permits: ahead}
	var each []grant
	for _, place := range places {
		permits := b.requests[place].permits
		all.permits += permits
		if b.member != nil && !b.rules.merge {
			each = append(each, grant{withPermits(later(b.member, place), permits), permits})
		}
	}
	if each != nil {
		return each
	}
	if b.member != nil {
		all.member = withPermits(b.member, o.taken)
	}
	return []grant{all}
}

// again takes apart the answer {"again", token, ...} of a script that is to be
// called once more.
func again(reply any) (token string, rest []any, ok bool) {
	values, isArray := reply.([]any)
	if !isArray || len(values) < 2 {
		return "", nil, false
	}
	if word, isText := values[0].(string); !isText || word != "again" {
		return "", nil, false
	}
	token, ok = values[1].(string)
	return token, values[2:], ok
}
