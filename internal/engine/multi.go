package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/lua"
)

// LimiterError says which limiter an error of several speaks of.
type LimiterError struct {
	Limiter *Limiter
	Err     error
}

func (e *LimiterError) Error() string { return e.Limiter.Name + ": " + e.Err.Error() }

func (e *LimiterError) Unwrap() error { return e.Err }

// multi is one caller's wish for the same permits of several limiters. Each
// attempt counts as a call of each limiter: while its outcome is in doubt its
// members must stay as they were written.
type multi struct {
	engine   *Engine
	limiters []*Limiter
	keys     *script.Keys // of all of them
	groups   []*group     // theirs, in the order of their names
	permits  int64
	deadline time.Time     // zero: one try
	woken    chan struct{} // holds one where permits may have become free since
}

// AcquireAll takes permits of each of the limiters or of none. With a timeout of 0
// or less it asks once.
func (e *Engine) AcquireAll(ctx context.Context, limiters []*Limiter, permits int64, timeout time.Duration) (bool, error) {
	names := make([]string, 0, 5*len(limiters))
	for _, l := range limiters {
		names = append(names, l.Keys.Names()...)
	}
	m := &multi{engine: e, limiters: limiters, keys: script.KeysOf(names...), permits: permits, woken: make(chan struct{}, 1)}
	start := time.Now()
	if err := m.enter(ctx); err != nil {
		return false, err
	}
	defer m.leave()
	if timeout <= 0 {
		v, err := m.ask(ctx, start)
		return v.granted, err
	}
	m.deadline = start.Add(timeout)
	m.join()
	defer m.part()
	for refused := false; ; refused, start = true, time.Now() {
		select {
		case <-m.woken:
		default:
		}
		v, err := m.ask(ctx, start)
		if refused && errors.Is(err, limit.ErrUnavailable) && !time.Now().Before(m.deadline) {
			return false, nil
		}
		if err != nil || v.granted {
			return v.granted, err
		}
		m.noteAsked(v.sent)
		if more, err := m.wait(ctx, v); !more || err != nil {
			return false, err
		}
	}
}

// attempt is one question about all limiters.
type attempt struct {
	lane.Call
	lane.Pending

	m      *multi
	member []byte
	sent   time.Time

	mu      sync.Mutex // guards State
	verdict verdict
	err     error
}

// verdict is the script's answer.
type verdict struct {
	granted bool
	wait    time.Duration   // until none of those that refused would
	keeps   []time.Duration // of each limiter the keep-alive time, which was started anew; 0 for none
	sent    time.Time
}

// ask makes one attempt, and returns early when ctx ends: what is granted then
// goes back. start is when the question arose.
func (m *multi) ask(ctx context.Context, start time.Time) (verdict, error) {
	until := start.Add(m.engine.conn.Timeout())
	end := until
	if last := m.deadline.Add(grace); !m.deadline.IsZero() && last.Before(end) {
		end = last
	}
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	if err := m.begin(ctx, timer.C); err != nil {
		return verdict{}, err
	}
	a := &attempt{m: m}
	for _, g := range m.groups {
		m.engine.stay(g)
	}
	a.prepare(until)
	to := m.groups[0].lane.Load()
	if to.Enter() {
		a.State = lane.Sent
		to.Alone(ctx, &a.Call)
	} else {
		a.Wait()
		to.Ready(a)
	}
	a.mu.Lock()
	answered := a.State == lane.Answered
	if !answered && a.State == lane.Sent && a.Done() == nil {
		a.Wait()
	}
	a.mu.Unlock()
	if answered {
		return a.verdict, a.err
	}
	sent := false
	answered, err := a.Await(ctx, timer.C, func() bool { return a.leave(&sent) })
	switch {
	case answered:
		return a.verdict, a.err
	case err != nil:
		return verdict{}, err
	}
	return verdict{}, lane.NoAnswer(time.Since(start), sent)
}

// leave takes the attempt back. It tells false where the answer is there.
func (a *attempt) leave(sent *bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.State == lane.Answered {
		return false
	}
	*sent = a.State == lane.Sent
	a.State = lane.Gone
	return true
}

// Board has the attempt sent, unless its caller has gone.
func (a *attempt) Board(time.Time) (c *lane.Call, more bool) {
	a.mu.Lock()
	gone := a.State == lane.Gone
	if !gone {
		a.State = lane.Sent
	}
	a.mu.Unlock()
	if gone {
		a.m.end()
		return nil, false
	}
	return &a.Call, false
}

// prepare makes the call of a new attempt.
func (a *attempt) prepare(until time.Time) {
	ids := a.m.engine.ids
	a.member = ids.Next(nil, 1)
	redisson.SetPermits(a.member, a.m.permits)
	a.sent = time.Now()
	a.Call = lane.Call{Call: script.Call{Script: lua.AcquireAll, Keys: a.m.keys, Args: a, Repeat: true, Until: until}, Owner: a}
}

// Append appends the arguments of the script.
func (a *attempt) Append(words []any, at script.Attempt) []any {
	age, token := "", at.Token
	if at.Age >= 0 {
		age = formatAge(at.Age)
	}
	if at.Repeated {
		token = "" // what it stood for may have been done
	}
	words = append(words, a.member, lane.Number(a.m.permits), a.m.engine.rules.Letters(), age, token)
	for _, l := range a.m.limiters {
		word := l.Fallback
		if l.auditDue(a.sent) {
			word = "a" + word
		}
		words = append(words, word)
	}
	return words
}

// Landed tells the caller what came of the attempt. Where it has gone, what was
// granted goes back.
func (a *attempt) Landed(c *lane.Call) (again bool) {
	reply, err := c.Outcome()
	if isTaken(reply, err) {
		a.m.engine.ids.Skip()
		a.prepare(a.Until)
		return true
	}
	var v verdict
	if err != nil {
		err = a.m.explain(err)
	} else {
		v, err = a.parse(reply)
	}
	if err != nil || v.granted {
		for _, g := range a.m.groups {
			a.m.engine.Granted(g.config())
		}
	}
	a.mu.Lock()
	gone := a.State == lane.Gone
	a.verdict, a.err = v, err
	a.Tell()
	a.mu.Unlock()
	if gone && v.granted {
		for _, g := range a.m.groups {
			g.mu.Lock()
			g.giveBack([]grant{{a.member, a.m.permits}}, a.sent, 0)
			g.mu.Unlock()
		}
	}
	a.m.end()
	return false
}

// parse reads the script's answer.
func (a *attempt) parse(reply any) (verdict, error) {
	v := verdict{sent: a.sent}
	if _, v.granted = reply.(int64); v.granted {
		return v, nil
	}
	m := a.m
	values, _ := reply.([]any)
	if len(values) == 3 && values[0] == "exceeds" {
		numbers, err := lane.Integers(values[1:], 2)
		if err != nil {
			return verdict{}, err
		}
		return verdict{}, m.blame(numbers[0], errExceeds(m.permits, numbers[1]))
	}
	all := len(m.limiters)
	numbers, err := lane.Integers(reply, all+3)
	if err != nil {
		return verdict{}, err
	}
	if (len(numbers)-all)%3 != 0 {
		return verdict{}, fmt.Errorf("unexpected answer of a script: %v", reply)
	}
	for _, keep := range numbers[:all] {
		v.keeps = append(v.keeps, lane.Millis(keep))
	}
	for refusal := range slices.Chunk(numbers[all:], 3) {
		v.wait = max(v.wait, lane.Millis(max(refusal[1], -refusal[1])))
		if l := m.limiter(refusal[0]); l != nil && l.auditDue(a.sent) {
			l.auditDone(time.Now(), lane.Millis(refusal[2]))
		}
	}
	return v, nil
}

// limiter returns the one of that number, from 1; nil where there is none.
func (m *multi) limiter(number int64) *Limiter {
	if number < 1 || number > int64(len(m.limiters)) {
		return nil
	}
	return m.limiters[number-1]
}

// blame says which limiter an error speaks of, by its number.
func (m *multi) blame(number int64, err error) error {
	if l := m.limiter(number); l != nil {
		return &LimiterError{l, err}
	}
	return err
}

// explain is Engine.explain, and says which limiter the error speaks of.
func (m *multi) explain(err error) error {
	var number int64
	if answer, ok := errors.AsType[redis.Error](err); ok {
		code := script.Code(answer)
		word, _, _ := strings.Cut(strings.TrimPrefix(answer.Error(), code+" "), " ")
		switch n, _ := strconv.ParseInt(word, 10, 64); code {
		case "NOTINIT":
			number = n
		case "CORRUPT":
			number = (n + 4) / 5 // of the key
		case "WRONGTYPE":
			return m.explainType(err)
		}
	}
	return m.blame(number, m.engine.explain(m.keys.Names(), err))
}

// explainType finds the key of the wrong type.
func (m *multi) explainType(err error) error {
	for _, l := range m.limiters {
		explained := m.engine.explainType(l.Keys.Names(), err)
		if !errors.Is(explained, err) { // which it wraps where it found none
			return &LimiterError{l, explained}
		}
	}
	return fmt.Errorf("%w: %w", limit.ErrCorrupt, err)
}

// enter counts the caller in at each limiter's group; leave counts it out.
func (m *multi) enter(ctx context.Context) error {
	to := m.engine.lanes.Of(ctx, m.limiters[0].config()) // they are on one server
	for _, l := range m.limiters {
		g, err := m.engine.enterBy(to, l, nil)
		if err != nil {
			m.leave()
			return err
		}
		m.groups = append(m.groups, g)
	}
	slices.SortFunc(m.groups, func(a, b *group) int { return strings.Compare(a.config(), b.config()) })
	return nil
}

func (m *multi) leave() {
	for _, g := range m.groups {
		m.engine.leave(g)
	}
}

// begin has an attempt hold up the turns of all its groups until end, as a batch
// does. Turns that came before are taken first. Attempts go through the groups in
// the same order, so that none waits for another that waits for it.
func (m *multi) begin(ctx context.Context, timer <-chan time.Time) error {
	for i, g := range m.groups {
		g.mu.Lock()
		if !g.turnsBefore() {
			g.calls++
			g.mu.Unlock()
			continue
		}
		admitted := make(chan struct{})
		g.turns.behind = append(g.turns.behind, admitted)
		g.mu.Unlock()
		var err error
		select {
		case <-admitted:
			continue
		case <-ctx.Done():
			err = ctx.Err()
		case <-timer:
			err = lane.NoAnswer(m.engine.conn.Timeout(), false)
		}
		g.mu.Lock()
		if place := slices.Index(g.turns.behind, admitted); place >= 0 {
			g.turns.behind = slices.Delete(g.turns.behind, place, place+1)
		} else {
			g.calls-- // it was admitted just now
			g.next(time.Now())
		}
		g.mu.Unlock()
		endOf(m.groups[:i])
		return err
	}
	return nil
}

// end is told that an attempt has landed, or was not sent.
func (m *multi) end() {
	endOf(m.groups)
	for _, g := range m.groups {
		m.engine.leave(g)
	}
}

func endOf(groups []*group) {
	for _, g := range groups {
		g.mu.Lock()
		g.calls--
		g.next(time.Now())
		g.mu.Unlock()
	}
}
