package outage

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/limit"
)

// Joint is an Asker whose limiter Redis can ask together with others, in one call that charges all or none.
type Joint interface {
	Asker

	// Group returns what limiters that go together have in common; nil if this one is to be asked alone.
	Group(q Ask) any
	// Together returns what asks the limiters of some parts, all of the same group.
	Together(parts []Part) Asker
}

// Part is what middleware asks of one of several limiters, by a policy of its own, and the answer. The permits are an
// estimate if the ask says Reserve.
type Part struct {
	Policy *Policy
	Asker  Asker
	Ask    Ask

	Answer  Answer
	Err     error
	Unasked bool // there is no answer, since another part asks for more than its limit
}

// FromMemory answers if the answer is known without asking. Errors, and answers of limiters that only watch, are
// for Decide.
func (p *Part) FromMemory(ctx context.Context) (known bool) {
	start := time.Now()
	if p.Policy.Shadow {
		return false
	}
	a, known, _ := p.Asker.FromMemory(ctx, p.Ask)
	if known {
		p.Answer, p.Err = p.Policy.complete(ctx, p.Asker, p.Ask, a, nil, start)
	}
	return known
}

// maxTries is how often a limiter is asked for an estimate that is above its limit, which may change meanwhile.
const maxTries = 3

// Decide answers a part alone. If an estimate is above the limit, it asks for the whole limit.
func (p *Part) Decide(ctx context.Context) {
	start := time.Now()
	p.decide(ctx, start, func() (Answer, error) { return p.Policy.answer(ctx, p.Asker, p.Ask, start) })
}

func (p *Part) decide(ctx context.Context, start time.Time, answer func() (Answer, error)) {
	for tries := 1; ; tries++ {
		p.Answer, p.Err = answer()
		if tries == maxTries || p.Policy.Shadow || !p.lower() {
			break
		}
	}
	p.Answer, p.Err = p.Policy.complete(ctx, p.Asker, p.Ask, p.Answer, p.Err, start)
}

// lower lowers an estimate to the limit of the answer, and reports whether it was above that: such a request would
// never pass, though it may cost less, or can be charged the rest.
func (p *Part) lower() bool {
	most := p.Answer.Limit
	if TooCostly(p.Err) && most == 0 {
		most = math.MaxInt32 // that limiters can count, so that the answer says what the limit is
	}
	if !p.Ask.Reserve || p.Answer.Granted || p.Err != nil && !TooCostly(p.Err) || most <= 0 || most >= p.Ask.Permits {
		return false
	}
	p.Ask.Permits = most
	return true
}

// TooCostly reports whether waiting can't make a request pass: if it asks for more than 0 permits, too many are the
// only possible mistake.
func TooCostly(err error) bool {
	return errors.Is(err, limit.ErrPermitsExceedRate) || errors.Is(err, limit.ErrInvalidPermits)
}

// DecideTogether answers parts of a group, none in shadow, by one call. While Redis does not decide, the policy of each
// answers. If an estimate is above its limit, another call asks for the whole limit. If any other part asks for more
// than its limit, its answer is limit.ErrPermitsExceedRate, and the others are left unasked.
//
// It returns false if one of the limiters can't be asked: then nothing was charged, and each is to be asked alone.
func DecideTogether(ctx context.Context, parts []Part) bool {
	joint, _ := parts[0].Asker.(Joint)
	start, q := time.Now(), parts[0].Ask
	q.Reserve = true // a grant can be undone, too, if it has a member of its own
	for tries := 0; ; tries++ {
		of := joint.Together(parts)
		if _, _, err := of.FromMemory(ctx, q); err != nil {
			return false
		}
		a, err := askTogether(ctx, of, q, parts)
		costly := slices.IndexFunc(parts, func(p Part) bool { return limit.KindOf(err) == limit.KindExceeds && p.Answer.Limit > 0 })
		switch {
		case a.Undecided: // the fallback of each has its time
			AtOnce(len(parts), func(i int) {
				p := &parts[i]
				p.decide(ctx, start, func() (Answer, error) { return p.Policy.instead(ctx, p.Asker, p.Ask, a.Known, err) })
			})
			return true
		case !isMistake(err):
			for i := range parts {
				parts[i].end(ctx, start)
			}
			return true
		case costly < 0:
			return false
		case tries == len(parts) || !parts[costly].lower():
			for i := range parts {
				parts[i].Unasked = i != costly
			}
			parts[costly].Err = errors.Unwrap(err) // without the limiter's name, which end adds
			parts[costly].end(ctx, start)
			return true
		case q.Within > 0:
			q.Within = max(1, parts[0].Ask.Within-time.Since(start))
		}
	}
}

// askTogether asks the limiters of the parts by one call.
func askTogether(ctx context.Context, of Asker, q Ask, parts []Part) (Answer, error) {
	by := make([]*Policy, len(parts))
	for i, p := range parts {
		by[i] = p.Policy
	}
	a, err := send(ctx, of, q, by...)
	for i := range parts {
		parts[i].Answer, parts[i].Err = Answer{By: a.By, Known: a.Known}, err
		if len(a.Each) > 0 {
			parts[i].Answer = a.Each[i]
		}
	}
	return a, err
}

// end completes the answer that Redis gave to one of several parts.
func (p *Part) end(ctx context.Context, start time.Time) {
	p.Policy.learn(p.Asker, p.Ask, p.Answer, p.Err)
	if settle := p.Answer.Settle; settle != nil && !p.Ask.Reserve {
		p.Answer.Settle, p.Answer.Undo = nil, func(ctx context.Context) error { return settle(ctx, 0, func(error) {}) }
	}
	p.Answer, p.Err = p.Policy.complete(ctx, p.Asker, p.Ask, p.Answer, p.Err, start)
}

// isMistake reports whether an error is that of one limiter, which the others need not share.
func isMistake(err error) bool {
	switch limit.KindOf(err) {
	case limit.KindExceeds, limit.KindInvalid, limit.KindCorrupt, limit.KindUnsupported, limit.KindNotInitialized:
		return true
	default:
		return false
	}
}

// AtOnce calls f with each number below n at the same time, and panics as the first that did.
func AtOnce(n int, f func(i int)) {
	if n == 1 {
		f(0)
		return
	}
	var calls sync.WaitGroup
	panicked := make([]any, n)
	for i := range n {
		calls.Go(func() {
			defer func() { panicked[i] = recover() }()
			f(i)
		})
	}
	calls.Wait()
	for _, v := range panicked {
		if v != nil {
			panic(v)
		}
	}
}
