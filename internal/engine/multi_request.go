package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Claim is permits of one of several limiters.
type Claim struct {
	Limiter *Limiter
	Permits int64
	Hold    time.Duration // of a reservation: how long it counts unless it is settled; 0: an interval
	Undo    bool          // among reservations: it is never settled, but may go back
}

// multiRequest is one caller's request for permits of several limiters, all or none. Each try counts as a
// call of each limiter: while its outcome is in doubt, its members must stay as they were written.
type multiRequest struct {
	engine   *Engine
	claims   []Claim
	keys     *script.Keys // of all limiters
	queues   []*queue     // the limiters' queues
	ordered  []*queue     // the same, in the order of their keys
	figures  bool
	reserves bool
	within   time.Duration // how long a try may take, if that is less than a call may; 0: no matter
	deadline time.Time     // zero: one try
	waiter   jointWaiter

	// The last try.
	member   []byte // of the first limiter; those of the others differ in their permits
	sent     time.Time
	told     bool // the figures are in the answer: for the caller, for the line, or to know the rate
	left     bool // the caller left before it was answered
	doubtful bool // an attempt of it may come yet
	said     said
}

// said is what an answer says beside the caller's.
type said struct {
	free     []int64         // permits that each limiter has left; nil if that is not known
	holds    []Hold          // of each claim; nil as well
	keep     []time.Duration // the keep-alive time of each; 0: none
	refusals []int64         // of each limiter that refused: its number from 1, wait and interval in ms
}

// AcquireAll takes the permits of all claims, or none of any. Reservations want figures.
func (e *Engine) AcquireAll(ctx context.Context, claims []Claim, q decide.Ask) (a decide.Answer, err error) {
	m := &multiRequest{engine: e, claims: claims, figures: q.Figures, told: q.Figures, reserves: q.Reserve, within: q.Within}
	a, err = m.acquire(ctx, q)
	a.By, a.Unanswered = limit.FromRedis, !q.MayWait // one that waits may have been refused before
	for i := range a.Each {
		one := &a.Each[i]
		one.By = limit.FromRedis
		if a.Granted {
			one.Taken = claims[i].Permits
		}
		if a.Granted && q.Reserve && !claims[i].Undo {
			e.Reserved(one, claims[i].Limiter, m.memberOf(i), one.Taken, m.said.holds[i], m.sent, time.Now(), m.doubtful)
		}
	}
	return a, err
}

// acquire tries until the permits are granted or the timeout is over.
func (m *multiRequest) acquire(ctx context.Context, ask decide.Ask) (a decide.Answer, err error) {
	e := m.engine
	start := time.Now()
	e.book.Used(start)
	defer func() { m.locked(func(q *queue) { q.users-- }) }()
	var names []string
	for _, claim := range m.claims {
		names = append(names, claim.Limiter.Keys().Names()...)
		q, err := e.lock(ctx, claim.Limiter)
		if err != nil {
			return decide.Answer{}, err
		}
		q.users++
		m.queues = append(m.queues, q)
		q.unlock()
	}
	m.keys = script.KeysOf(names...)
	m.ordered = slices.SortedFunc(slices.Values(m.queues), func(a, b *queue) int { return strings.Compare(a.config, b.config) })
	if !ask.MayWait {
		return m.try(ctx, start)
	}
	m.deadline = start.Add(ask.Timeout)
	m.join()
	defer func() { m.leave(err) }()
	for {
		last := a // a refusal
		if turn, err := m.awaitTurn(ctx); !turn {
			return last, err
		}
		a, err = m.try(ctx, time.Now())
		doubtful := !m.left && errors.Is(err, limit.ErrUnknownOutcome) // what a caller who left may have got goes back
		if m.waiter.refused && !doubtful && errors.Is(err, limit.ErrUnavailable) && !time.Now().Before(m.deadline) {
			return last, nil
		}
		if err != nil || !m.waitsOn(a) {
			return a, err
		}
	}
}

// locked calls f with each of the queues, under its lock.
func (m *multiRequest) locked(f func(q *queue)) {
	for _, q := range m.queues {
		q.lock()
		f(q)
		q.unlock()
	}
}

// try asks once. It returns early when ctx ends; a later grant goes back. start is when the caller asked.
func (m *multiRequest) try(ctx context.Context, start time.Time) (decide.Answer, error) {
	e := m.engine
	var last time.Time // the end of the caller's time
	switch {
	case !m.deadline.IsZero():
		last = m.deadline.Add(e.grace)
	case m.within > 0:
		last = start.Add(m.within)
	}
	for draws := redraws(0); ; {
		switch err := m.enter(ctx, lane.Sooner(start.Add(e.conn.Timeout), last)); {
		case errors.Is(err, lane.ErrLate):
			return decide.Answer{}, lane.NoAnswer(time.Since(start), false)
		case err != nil:
			return decide.Answer{}, err
		}
		c := m.call(start)
		c.Last = last
		if done, err := e.lanes.Do(ctx, c); !done {
			m.left = true
			return decide.Answer{}, cmp.Or(ctx.Err(), err)
		}
		reply, err := c.Outcome()
		older, number, isOlder := olderDefault(reply)
		switch l := m.one(number); {
		case isOlder && l != nil:
			if err := m.giveDefault(ctx, l, older, start, last); err != nil {
				return decide.Answer{}, err
			}
		case draws.again(e, reply, err):
			m.exit()
		default:
			return m.over(ctx, c, false)
		}
	}
}

// enter counts a try in at all limiters. It waits for its turns in the order of the keys, so that no try waits for
// another that waits for it.
func (m *multiRequest) enter(ctx context.Context, late time.Time) error {
	for i, q := range m.ordered {
		q.lock()
		turn := q.turn()
		q.unlock()
		if err := q.awaitTurn(ctx, turn, late); err != nil {
			for _, entered := range m.ordered[:i] {
				entered.lock()
				entered.exit()
				entered.unlock()
			}
			return err
		}
	}
	return nil
}

// exit counts out a try that is over.
func (m *multiRequest) exit() { m.locked((*queue).exit) }

// call returns the call of a new try.
func (m *multiRequest) call(start time.Time) *lane.Call {
	m.member, m.said = m.engine.ids.Next(nil, 1), said{}
	redisson.SetPermits(m.member, m.claims[0].Permits)
	m.told = m.told || slices.ContainsFunc(m.claims, func(c Claim) bool { return c.Limiter.asksFigures.Load() })
	m.sent = time.Now()
	var rider *lane.Call
	for i, q := range m.queues {
		if r := q.rider(m.claims[i].Limiter); r != nil {
			r.Rider, rider = rider, r
		}
	}
	return &lane.Call{
		Rider:    rider,
		Call:     script.Call{Script: lua.AcquireAll, Keys: m.keys, Args: m, Repeat: true, Since: start},
		Requests: 1,
		Late: func(c *lane.Call) {
			if c == nil {
				m.exit()
				return
			}
			_, _ = m.over(context.Background(), c, true)
		},
	}
}

// Append appends the arguments of the script.
func (m *multiRequest) Append(words []any, at script.Attempt) []any {
	age, token := at.Words()
	flags := m.engine.rules.Flags()
	if m.told {
		flags += "f"
	}
	words = append(words, m.member, m.numbers(), flags, age, token)
	for _, claim := range m.claims {
		l := claim.Limiter
		word := m.engine.fallback(l, m.sent)
		if l.defaultCheckDue(m.sent) {
			word = "d" + word
		}
		if l.auditDue(m.sent) {
			word = "a" + word
		}
		words = append(words, word)
	}
	return words
}

// numbers returns the permits and holds as the script reads them.
func (m *multiRequest) numbers() any {
	first := m.claims[0]
	other := func(c Claim) bool { return c.Permits != first.Permits || c.Hold > 0 }
	if !slices.ContainsFunc(m.claims, other) {
		return script.Number(first.Permits)
	}
	all := make([]string, len(m.claims))
	for i, claim := range m.claims {
		all[i] = strconv.FormatInt(claim.Permits, 10)
		if claim.Hold > 0 {
			all[i] += "h" + strconv.FormatInt(claim.Hold.Milliseconds(), 10)
		}
	}
	return strings.Join(all, " ")
}

// memberOf returns the member of the limiter at that place.
func (m *multiRequest) memberOf(place int) []byte {
	return redisson.WithPermits(m.member, m.claims[place].Permits)
}
