package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// multi is one caller's wish for the same permits of several limiters. Each
// try counts as a call of each limiter: while its outcome is in doubt its
// members must stay as they were written.
type multi struct {
	engine   *Engine
	limiters []*Limiter
	keys     *script.Keys // of all of them
	groups   []*group     // theirs
	permits  int64
	deadline time.Time     // zero: one try
	woken    chan struct{} // holds one where permits may have become free since

	// The try under way, after which there is no other where its caller goes.
	lane.Pending
	mu      sync.Mutex // guards State, Asked and asleep; taken behind a group's
	asleep  time.Time  // until when the caller waits to ask again; zero: it does not, or was woken
	ctx     context.Context
	call    lane.Call
	member  []byte
	redo    redo
	sent    time.Time
	verdict verdict
	err     error
}

// verdict is the script's answer.
type verdict struct {
	granted bool
	wait    time.Duration   // until none of those that refused would
	keeps   []time.Duration // of each limiter the keep-alive time, which was started anew; 0 for none
}

// AcquireAll takes permits of each of the limiters or of none. With a timeout of 0
// or less it asks once.
func (e *Engine) AcquireAll(ctx context.Context, limiters []*Limiter, permits int64, timeout time.Duration) (bool, error) {
	m := &multi{engine: e, limiters: limiters, permits: permits, woken: make(chan struct{}, 1)}
	var names []string
	for _, l := range limiters {
		names = append(names, l.Keys.Names()...)
	}
	m.keys = script.KeysOf(names...)
	start := time.Now()
	e.book.Used(start)
	defer m.leave()
	for _, l := range limiters {
		if _, err := e.haveRate(ctx, l, timeout); err != nil {
			return false, &Error{Name: l.Name, Err: err}
		}
	}
	to := e.lanes.Of(ctx, limiters[0].Config) // they are on one server
	for _, l := range limiters {
		g, err := e.enterBy(to, l, nil)
		if err != nil {
			return false, err
		}
		m.groups = append(m.groups, g)
	}
	if timeout <= 0 {
		v, err := m.ask(ctx, start)
		return v.granted, err
	}
	m.deadline = e.clock.At(start).Add(timeout)
	each(m.groups, func(g *group) { g.crowd.join(m) })
	defer each(m.groups, func(g *group) { delete(g.crowd.waiting, m) })
	for refused := false; ; refused, start = true, time.Now() {
		select {
		case <-m.woken:
		default:
		}
		v, err := m.ask(ctx, start)
		if refused && errors.Is(err, limit.ErrUnavailable) && !e.clock.Now().Before(m.deadline) {
			return false, nil
		}
		if err != nil || v.granted {
			return v.granted, err
		}
		if more, err := m.wait(ctx, v); !more || err != nil {
			return false, err
		}
	}
}

// leave counts the caller, or a try, out at each limiter's group.
func (m *multi) leave() {
	for _, g := range m.groups {
		m.engine.leave(g)
	}
}

// ask makes one try, and returns early when ctx ends: what is granted then
// goes back. start is when the question arose.
func (m *multi) ask(ctx context.Context, start time.Time) (verdict, error) {
	end := m.engine.answerBy(start.Add(m.engine.conn.Timeout()), m.engine.clock.Machine(m.deadline))
	if err := m.begin(ctx, start, end); err != nil {
		return verdict{}, err
	}
	for _, g := range m.groups {
		m.engine.stay(g)
	}
	m.Pending, m.ctx = lane.Pending{Mu: &m.mu, Asked: start}, ctx
	if !m.deadline.IsZero() {
		m.Last = m.engine.clock.Machine(m.deadline).Add(m.engine.grace)
	}
	m.prepare()
	to := m.groups[0].lane.Load()
	if to.Enter() {
		m.State = lane.Sent
		to.Alone(ctx, &m.call, !m.deadline.IsZero())
	} else {
		m.Wait()
		to.Ready(m)
	}
	if answered, err := m.Await(ctx, m.engine.lanes, m, end, true); !answered {
		return verdict{}, err
	}
	return m.verdict, m.err
}

// Progressed has the caller of a try that takes several calls wait on: the
// server answers.
func (m *multi) Progressed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.Asked = time.Now()
}

// Board has the try sent, unless its caller has gone.
func (m *multi) Board(time.Time) (c *lane.Call, more bool) {
	m.mu.Lock()
	gone := m.State == lane.Gone
	if !gone {
		m.State = lane.Sent
	}
	m.mu.Unlock()
	if gone {
		m.end()
		return nil, false
	}
	return &m.call, false
}

// prepare makes the call of a new try.
func (m *multi) prepare() {
	m.member = m.engine.ids.Next(nil, 1)
	redisson.SetPermits(m.member, m.permits)
	m.sent = m.engine.clock.Now()
	m.call = lane.Call{Call: script.Call{Script: lua.AcquireAll, Keys: m.keys, Args: m, Repeat: true, Since: m.Asked}, Owner: m}
	m.call.By(m.ctx)
}

// Append appends the arguments of the script.
func (m *multi) Append(words []any, at script.Attempt) []any {
	age, token := attemptWords(at)
	words = append(words, m.member, script.Number(m.permits), m.engine.rules.Letters(), age, token)
	for _, l := range m.limiters {
		word := l.Fallback
		if l.compareDue(m.sent) {
			word = "d" + word
		}
		if l.auditDue(m.sent) {
			word = "a" + word
		}
		words = append(words, word)
	}
	return words
}

// Finished tells the caller what came of the try. Where it has gone, what was
// granted goes back.
func (m *multi) Finished(c *lane.Call) (again bool) {
	return m.engine.finished(m, &m.redo, c)
}

func (m *multi) finish(reply any, err error) {
	var v verdict
	switch {
	case m.redo.giving != nil:
		err = &Error{Name: m.redo.giving.Name, Err: m.engine.gaveNoDefault(m.redo.giving, err)}
	case err != nil:
		err = m.explain(err)
	default:
		v, err = m.parse(reply)
		for _, l := range m.limiters {
			l.hasCompared(m.sent)
		}
	}
	if err != nil || v.granted {
		took := outcome{}
		if v.granted {
			took.Taken = m.permits
		}
		each(m.groups, func(g *group) {
			m.engine.Granted(g.config)
			g.hear(took, m.sent)
		})
	}
	unwanted, short := false, m.call.Unreplicated()
	m.mu.Lock()
	if v.granted && short != nil {
		unwanted, v, err = true, verdict{}, short
	}
	gone := m.State == lane.Gone
	unwanted = unwanted || v.granted && gone
	m.verdict, m.err = v, err
	m.Tell()
	m.mu.Unlock()
	if gone && errors.Is(err, limit.ErrUnknownOutcome) {
		each(m.groups, func(g *group) { m.engine.givenUp(g, m.permits, err) })
	}
	if unwanted {
		each(m.groups, func(g *group) { g.giveBack(grant{member: m.member, permits: m.permits, sent: m.sent}) })
	}
	m.end()
}

// begin has a try hold up the turns of all its groups, as a batch does, until
// m.end. Tries go through the groups in the same order, so that none waits for
// another that waits for it.
func (m *multi) begin(ctx context.Context, start, end time.Time) error {
	order := slices.Clone(m.groups)
	slices.SortFunc(order, func(a, b *group) int { return strings.Compare(a.config, b.config) })
	for i, g := range order {
		if err := g.beginBehindTurns(ctx, start, end); err != nil {
			endOf(order[:i])
			return err
		}
	}
	return nil
}

// beginBehindTurns counts a try in once the turns that came before are over. It
// waits for them until end at the latest.
func (g *group) beginBehindTurns(ctx context.Context, start, end time.Time) error {
	g.mu.Lock()
	if !g.turnsBefore() {
		g.calls++
		g.mu.Unlock()
		return nil
	}
	admitted := make(chan struct{})
	if g.turns.behind == nil {
		g.turns.behind = make(map[chan struct{}]struct{})
	}
	g.turns.behind[admitted] = struct{}{}
	g.mu.Unlock()
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	var err error
	select {
	case <-admitted:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = lane.NoAnswer(time.Since(start), false)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, waits := g.turns.behind[admitted]; waits {
		delete(g.turns.behind, admitted)
	} else {
		g.calls-- // it was admitted just now
		g.next(g.engine.clock.Now())
	}
	return err
}

// end is told that a try is finished, or was not sent.
func (m *multi) end() {
	endOf(m.groups)
	m.leave()
}

func endOf(groups []*group) {
	each(groups, func(g *group) {
		g.calls--
		g.next(g.engine.clock.Now())
	})
}

// each has f do something with each of the groups, whose lock is held.
func each(groups []*group, f func(g *group)) {
	for _, g := range groups {
		g.mu.Lock()
		f(g)
		g.mu.Unlock()
	}
}
