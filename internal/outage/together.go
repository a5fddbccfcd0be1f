package outage

import (
	"context"
	"errors"
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

// Part is what is asked of one of several limiters of a Client that are asked together, and its answer. Each has
// a policy of its own; none is in shadow.
type Part struct {
	Policy *Policy
	Asker  Asker
	Ask    Ask

	Answer  Answer
	Err     error
	Unasked bool // there is no answer, since another part asks for more than its limit
}

// Uncharged reports whether Redis charged nothing because another part was refused.
func (p *Part) Uncharged() bool {
	return p.Err == nil && p.Answer.By == limit.FromRedis && p.Answer.Granted && p.Answer.Taken == 0
}

// DecideTogether answers the parts by one call. While Redis does not decide, the policy of each part answers. If an
// estimate is above its limit, another call asks for the whole limit. If any other part asks for more than its limit,
// its answer is limit.ErrPermitsExceedRate, and the others are left unasked.
//
// An error says that one of the limiters can't be asked: then nothing was charged, and each is to be asked alone.
func DecideTogether(ctx context.Context, parts []Part) error {
	joint, ok := parts[0].Asker.(Joint)
	if !ok {
		return limit.ErrUnsupported
	}
	start, q := time.Now(), parts[0].Ask
	q.Reserve = true // a grant can be undone, too, if it has a member of its own
	for tries := 0; ; tries++ {
		of := joint.Together(parts)
		if _, _, err := of.FromMemory(ctx, q); err != nil {
			return err
		}
		undecided, err := askTogether(ctx, of, q, parts)
		costly := slices.IndexFunc(parts, func(p Part) bool { return limit.KindOf(err) == limit.KindExceeds && p.Answer.Limit > 0 })
		switch {
		case undecided: // the fallback of each has its time
			AtOnce(len(parts), func(i int) { parts[i].end(ctx, true, start) })
			return nil
		case !isMistake(err):
			for i := range parts {
				parts[i].end(ctx, false, start)
			}
			return nil
		case costly < 0:
			return err
		case tries == len(parts) || !parts[costly].lower():
			for i := range parts {
				parts[i].Unasked = i != costly
			}
			parts[costly].Err = errors.Unwrap(err) // without the limiter's name, which end adds
			parts[costly].end(ctx, false, start)
			return nil
		case q.Within > 0:
			q.Within = max(1, parts[0].Ask.Within-time.Since(start))
		}
	}
}

// askTogether asks the limiters of the parts by one call, and reports whether it was left undecided.
func askTogether(ctx context.Context, of Asker, q Ask, parts []Part) (undecided bool, err error) {
	var a Answer
	switch guard := parts[0].Policy.Guard; {
	case !slices.ContainsFunc(parts, func(p Part) bool { return p.Policy.guards() }):
		a, err = of.Ask(ctx, q)
	case guard.ended() != nil:
		err = guard.ended()
	default:
		a, undecided, err = (&Policy{}).ask(ctx, of, q, func() (all []Watcher) {
			for _, part := range parts {
				all = append(all, part.Policy.watchers()...)
			}
			return all
		})
	}
	for i := range parts {
		parts[i].Answer, parts[i].Err = Answer{By: a.By, Unanswered: a.Unanswered}, err
		if len(a.Each) > 0 {
			parts[i].Answer = a.Each[i]
		}
	}
	return undecided, err
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

// lower lowers an estimate to the limit of the answer, and reports whether it was above that: such a request would
// never pass, though it may cost less, or can be charged the rest.
func (p *Part) lower() bool {
	most := p.Answer.Limit
	if !p.Ask.Reserve || p.Answer.Granted || most <= 0 || most >= p.Ask.Permits {
		return false
	}
	p.Ask.Permits = most
	return true
}

// end completes the answer of one part, and reports it.
func (p *Part) end(ctx context.Context, undecided bool, start time.Time) {
	a := &p.Answer
	_, isLocal := p.Policy.Local()
	if isLocal && p.Err == nil {
		p.Asker.Learn(p.Ask, *a)
	}
	switch settle := a.Settle; {
	case undecided:
		cause := p.Err
		*a, p.Err = p.Policy.instead(ctx, p.Asker, p.Ask, cause)
		for p.lower() {
			*a, p.Err = p.Policy.instead(ctx, p.Asker, p.Ask, cause)
		}
	case settle != nil && !p.Ask.Reserve:
		a.Settle, a.Undo = nil, func(ctx context.Context) error { return settle(ctx, 0, func(error) {}) }
	}
	*a, p.Err = named(p.Asker, p.Ask, *a), p.Asker.Fail(p.Ask, p.Err)
	p.Policy.report(ctx, p.Asker, p.Ask, *a, p.Err, start)
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
