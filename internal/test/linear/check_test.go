package linear

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

// recorded returns a call between two moments, in virtual time at the
// milliseconds of the same numbers.
func recorded(began, ended int64, client int, c Call, a Answer) Record {
	return Record{Call: c, Answer: a, Client: client, Began: began, Ended: ended, BeganAt: began, EndedAt: ended}
}

// The checks would be worth nothing if they let wrong answers pass. That they take right ones
// each history of a limiter shows that passes; here are those that few have.
func TestModelTellsRightFromWrong(t *testing.T) {
	t.Parallel()
	for _, some := range []struct {
		virtual bool
		all     map[string]judgedHistory
	}{{false, plainHistories}, {false, reservedHistories}, {false, doubtfulHistories}, {true, timedHistories}} {
		for name, tt := range some.all {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				h := &History{Records: tt.records, Virtual: some.virtual, Strict: true, Phantom: true}
				h.Start = Full(10, 5)
				for i := range h.Records {
					h.Records[i].Number = i + 1
					if some.virtual { // two calls may begin at the same millisecond
						h.Records[i].Began, h.Records[i].Ended = 2*h.Records[i].Began, 2*h.Records[i].Ended+1
					}
				}
				h.Prepare(nil)
				want := porcupine.Illegal
				if tt.right {
					want = porcupine.Ok
				}
				result, _ := h.Check(CheckTime)
				assert.Equal(t, want, result, "%v", h.List())
			})
		}
	}
}

// A caller that was refused leaves when its time is over, though a request for it may be
// under way: what that takes is in use until it has been given back.
func TestModel_LateGrantIsInUseUntilGivenBack(t *testing.T) {
	t.Parallel()
	request := func(began, ended int64) Request {
		return Request{Began: began, Ended: ended, Client: 1, Script: lua.Acquire}
	}
	lost := request(4, 5)
	lost.Lost = true
	for _, tt := range []struct {
		want     porcupine.CheckResult
		requests []Request
	}{
		{porcupine.Illegal, nil},
		{porcupine.Illegal, []Request{request(4, 5)}},
		{porcupine.Ok, []Request{request(5, 9)}},
		{porcupine.Ok, []Request{request(7, 9)}}, // made before the caller left
		{porcupine.Ok, []Request{lost, request(7, 9)}},
	} {
		h := &History{Start: Full(10, 5), Phantom: true, Records: []Record{
			recorded(1, 2, 0, try(8), granted), recorded(3, 6, 1, wait(2), refused),
			recorded(7, 8, 0, try(2), refused), recorded(12, 13, 0, try(2), granted),
		}}
		for i := range h.Records {
			h.Records[i].Number = i + 1
		}
		h.Prepare(tt.requests)
		result, _ := h.Check(CheckTime)
		assert.Equal(t, tt.want, result, "%v: %v", tt.requests, h.List())
	}
}

// A long history is decided by its beginning as far as the time goes.
func TestCheck_DecidesLongHistoryByItsBeginning(t *testing.T) {
	t.Parallel()
	h := &History{Start: Full(1000, time.Hour.Milliseconds())}
	for n := range int64(500) {
		r := recorded(n, n+3, 0, Call{Name: Try, Permits: 2}, Answer{Outcome: Done, OK: true})
		r.Number = int(n) + 1
		h.Records = append(h.Records, r)
	}
	result, ordered := h.Check(time.Minute)
	assert.Equal(t, porcupine.Ok, result)
	assert.Equal(t, 500, ordered)
	_, ordered = h.Check(0)
	assert.Less(t, ordered, 500)
	h.Records[150].Permits = 3
	result, ordered = h.Check(time.Minute)
	assert.Equal(t, porcupine.Illegal, result, "one more than there are")
	assert.GreaterOrEqual(t, ordered, 200)
}

// Each of many calls with unknown outcomes may have come or not: more states than any
// step can list.
func TestCheck_EndsInTheMiddleOfAStep(t *testing.T) {
	t.Parallel()
	start := Full(1<<50, time.Hour.Milliseconds())
	var loose []effect
	for i := range 50 {
		loose = append(loose, effect{kind: unseenEffect, call: i + 1, permits: 1 << i, outcome: Unknown})
		start.loose = start.loose.with(only(i))
	}
	within := newSearchTime(10 * time.Millisecond)
	assert.Empty(t, states{states: []State{start}}.follow(effect{kind: tickEffect}, loose, within).states)
	assert.True(t, within.cut.Load())
}

// These are calls and answers that histories are made of.
var (
	granted, refused  = Answer{Outcome: Done, OK: true}, Answer{Outcome: Done}
	nobodyKnows, gone = Answer{Outcome: Unknown}, Answer{Outcome: Cancelled}

	look   = Call{Name: Available}
	take   = Call{Name: Take, Permits: 3}
	reset  = Call{Name: Reset}
	remove = Call{Name: Delete}
)

func free(n int64) Answer { return Answer{Outcome: Done, Free: n} }
func took(n int64) Answer { return Answer{Outcome: Done, OK: n > 0, Taken: n} }
func try(n int64) Call    { return Call{Name: Try, Permits: n} }
func upTo(n int64) Call   { return Call{Name: UpTo, Permits: n} }
func peek(n int64) Call   { return Call{Name: Peek, Permits: n} }
func wait(n int64) Call   { return Call{Name: Try, Permits: n, Timeout: 3 * time.Millisecond} }
func give(n int64) Call   { return Call{Name: Release, Permits: n} }

// reserve and settle are of the only reservation of a history.
func reserve(n int64) Call      { return Call{Name: Reserve, Permits: n, Reservation: 1} }
func settle(n, used int64) Call { return Call{Name: Settle, Permits: n, Used: used, Reservation: 1} }

func set(rate int64, keep bool) Call {
	return Call{Name: Set, Config: limitertest.Every(rate, 5*time.Millisecond), Keep: keep}
}

func byDefault(c Call, rate int64) Call {
	c.ByDefault, c.Config = true, limitertest.Every(rate, 5*time.Millisecond)
	return c
}

func override(number int, rate int64) Call {
	return Call{Name: Set, Config: limitertest.Every(rate, 5*time.Millisecond), Keep: true, Override: number}
}

func ends(number int) Call { return Call{Name: End, Override: number} }

func figures(ok bool, free int64) Answer {
	reset := 5 * time.Millisecond
	return Answer{Outcome: Done, OK: ok, Free: free, Limit: 10, Reset: reset}
}

// waits are the figures of a refusal.
func waits(ms int64) Answer {
	wait := time.Duration(ms) * time.Millisecond
	return Answer{Outcome: Done, Limit: 10, Wait: wait, Reset: wait}
}

func doubtful(r Record) Record { r.Doubts = 1; return r }
func atRest(r Record) Record   { r.Final = true; return r }

// A judgedHistory is a history of a limiter of 10 permits each 5 ms, and whether it is right.
type judgedHistory struct {
	right   bool
	records []Record
}

// plainHistories have answers to all calls, and nothing runs out.
var plainHistories = map[string]judgedHistory{
	"grants beyond the rate": {false, []Record{recorded(1, 3, 0, try(6), granted), recorded(2, 4, 1, try(5), granted)}},
	"refused though free":    {false, []Record{recorded(1, 2, 0, try(6), granted), recorded(3, 4, 0, try(4), refused)}},
	"refused after a release": {false, []Record{
		recorded(1, 2, 0, try(10), granted), recorded(3, 4, 0, give(4), granted), recorded(5, 6, 0, try(4), refused),
	}},
	"more than the rate refused, not an error": {false, []Record{recorded(1, 2, 0, try(11), refused)}},
	"figures of another grant":                 {false, []Record{recorded(1, 2, 0, take, figures(true, 7)), recorded(3, 4, 0, take, figures(true, 3))}},
	"SetRate that kept what was in use": {false, []Record{
		recorded(1, 2, 0, try(8), granted), recorded(3, 4, 0, set(9, false), granted), recorded(5, 6, 0, look, free(1)),
	}},
	"fewer than are free":        {false, []Record{recorded(1, 2, 0, upTo(9), took(8))}},
	"more than were asked":       {false, []Record{recorded(1, 2, 0, upTo(3), took(4)), recorded(3, 4, 0, look, free(6))}},
	"a look that took":           {false, []Record{recorded(1, 2, 0, peek(4), figures(true, 6)), recorded(3, 4, 0, look, free(6))}},
	"a look that tells too much": {false, []Record{recorded(1, 2, 0, try(7), granted), recorded(3, 4, 0, peek(4), figures(true, 0))}},
	"an override that ended": {true, []Record{
		recorded(1, 2, 0, try(8), granted), recorded(3, 4, 0, override(1, 20), granted), recorded(5, 6, 0, try(9), granted),
		recorded(7, 8, 0, override(2, 3), granted), recorded(9, 10, 0, ends(1), granted), recorded(11, 12, 0, look, free(0)),
		recorded(13, 14, 0, ends(2), granted), recorded(15, 16, 0, give(8), granted), recorded(17, 18, 0, look, free(1)),
	}},
	"an override that ended for good": {true, []Record{
		recorded(1, 2, 0, override(1, 20), granted), recorded(3, 4, 0, set(7, true), granted), recorded(5, 6, 0, ends(1), granted),
		recorded(7, 8, 0, look, free(7)),
	}},
	"an override that did not end": {false, []Record{
		recorded(1, 2, 0, override(1, 20), granted), recorded(3, 4, 0, ends(1), granted), recorded(5, 6, 0, try(11), granted),
	}},
	"an override that forgot what is in use": {false, []Record{
		recorded(1, 2, 0, try(8), granted), recorded(3, 4, 0, override(1, 20), granted), recorded(5, 6, 0, ends(1), granted),
		recorded(7, 8, 0, try(3), granted),
	}},
	"a look at a default": {true, []Record{
		recorded(1, 2, 0, remove, granted), recorded(3, 4, 0, byDefault(look, 7), free(7)), recorded(5, 6, 0, look, Answer{Outcome: NoRate}),
	}},
	"a look at another rate than the default": {false, []Record{
		recorded(1, 2, 0, remove, granted), recorded(3, 4, 0, byDefault(look, 7), free(10)),
	}},
	"Reset of a limiter that has no rate": {false, []Record{recorded(1, 2, 0, remove, granted), recorded(3, 4, 0, reset, granted)}},
	"Reset that left some": {false, []Record{
		recorded(1, 2, 0, try(10), granted), recorded(3, 4, 1, reset, granted), recorded(5, 6, 0, look, free(9)),
	}},
}

// reservedHistories have a reservation.
var reservedHistories = map[string]judgedHistory{
	"one that cost less, which stays": {false, []Record{
		recorded(1, 2, 0, reserve(6), granted), recorded(3, 4, 0, settle(6, 1), granted), recorded(5, 6, 0, look, free(4)),
	}},
	"one that cost more, charged twice": {false, []Record{
		recorded(1, 2, 0, reserve(2), granted), doubtful(recorded(3, 4, 0, settle(2, 5), granted)), recorded(5, 6, 0, look, free(2)),
	}},
	"Release of the reservation, which comes back again": {false, []Record{
		recorded(1, 2, 0, reserve(4), granted), recorded(3, 4, 0, give(4), granted), recorded(5, 6, 0, try(4), granted),
		recorded(7, 8, 0, settle(4, 0), granted), recorded(9, 10, 0, look, free(10)),
	}},
}

// doubtfulHistories have calls of which not all is known.
var doubtfulHistories = map[string]judgedHistory{
	"a call that Redis did not decide": {true, []Record{
		recorded(1, 2, 0, look, Answer{Outcome: Unsent}), recorded(3, 4, 0, give(1), Answer{Outcome: Unsent}),
		recorded(5, 6, 0, try(10), granted), recorded(7, 8, 0, set(3, true), Answer{Outcome: Unsent}), recorded(9, 10, 0, look, free(0)),
	}},
	"a cancelled call that took and gave back": {true, []Record{
		recorded(1, 2, 0, try(3), gone), recorded(3, 4, 1, look, free(7)), recorded(5, 6, 1, look, free(10)),
	}},
	"a cancelled call that took after its end": {true, []Record{
		recorded(1, 2, 0, try(3), gone), recorded(3, 4, 1, look, free(10)), recorded(5, 6, 1, look, free(7)),
	}},
	"a cancelled call that took twice": {false, []Record{
		recorded(1, 2, 0, try(3), gone), recorded(3, 4, 1, look, free(7)), recorded(5, 6, 1, look, free(10)),
		recorded(7, 8, 1, look, free(7)),
	}},
	"a cancelled call that gave back a part": {false, []Record{
		recorded(1, 2, 0, try(3), gone), recorded(3, 4, 1, look, free(7)), recorded(5, 6, 1, look, free(9)),
	}},
	"a cancelled call that kept its permits": {false, []Record{recorded(1, 2, 0, try(3), gone), atRest(recorded(3, 4, 1, look, free(7)))}},
	"a cancelled release had not begun": {false, []Record{
		recorded(1, 2, 0, try(3), granted), recorded(3, 4, 0, give(3), gone), recorded(5, 6, 1, look, free(10)),
	}},
	"a release that comes late": {true, []Record{
		recorded(1, 2, 0, try(3), granted), recorded(3, 4, 0, give(2), nobodyKnows), recorded(5, 6, 1, look, free(7)),
		recorded(7, 8, 1, look, free(9)),
	}},
	"a release that comes twice": {false, []Record{
		recorded(1, 2, 0, try(4), granted), recorded(3, 4, 0, give(2), nobodyKnows), recorded(5, 6, 1, look, free(10)),
	}},
	"a call without an answer that took and gave back": {true, []Record{
		recorded(1, 2, 0, try(3), nobodyKnows), recorded(3, 4, 1, look, free(7)), recorded(5, 6, 1, look, free(10)),
	}},
	"a repeat that takes again what was released": {true, []Record{
		doubtful(recorded(1, 8, 0, try(7), granted)), recorded(2, 3, 1, look, free(3)), recorded(4, 5, 1, give(7), granted),
		recorded(6, 7, 1, look, free(10)), recorded(9, 10, 1, look, free(3)),
	}},
	"a repeat that takes twice": {false, []Record{
		doubtful(recorded(1, 6, 0, try(4), granted)), recorded(2, 3, 1, try(1), granted), recorded(4, 5, 1, give(1), granted),
		recorded(7, 8, 1, look, free(2)),
	}},
	"a repeat that finds a part, as much as another of its call wanted": {true, []Record{
		doubtful(recorded(1, 9, 0, try(6), refused)), doubtful(recorded(1, 9, 0, try(5), granted)), recorded(2, 3, 1, look, free(4)),
		recorded(4, 5, 1, give(1), granted), recorded(6, 7, 1, look, free(5)), recorded(10, 11, 1, look, free(5)),
	}},
	"a repeat that finds a part and grants it to no one": {false, []Record{
		doubtful(recorded(1, 9, 0, try(6), refused)), doubtful(recorded(1, 9, 0, try(5), refused)), recorded(2, 3, 1, look, free(4)),
		recorded(4, 5, 1, give(1), granted), recorded(6, 7, 1, look, free(5)), recorded(10, 11, 1, look, free(10)),
	}},
	"a repeat that finds a part, after the other of its call was answered": {false, []Record{
		doubtful(recorded(1, 9, 0, try(6), refused)), doubtful(recorded(1, 2, 0, try(2), granted)), recorded(3, 4, 1, look, free(2)),
		recorded(5, 6, 1, give(4), granted), recorded(7, 8, 1, look, free(6)), recorded(10, 11, 1, look, free(8)),
	}},
	"a repeat that loses a part": {false, []Record{
		doubtful(recorded(1, 9, 0, try(6), refused)), doubtful(recorded(1, 9, 0, try(4), granted)), recorded(2, 3, 1, look, free(4)),
		recorded(4, 5, 1, give(1), granted), recorded(6, 7, 1, look, free(5)), recorded(10, 11, 1, look, free(6)),
	}},
	"Reset that comes late": {true, []Record{
		recorded(1, 2, 0, try(10), granted), recorded(3, 4, 1, reset, nobodyKnows), recorded(5, 6, 0, look, free(0)), recorded(7, 8, 0, look, free(10)),
	}},
	"as many as are free, twice": {false, []Record{doubtful(recorded(1, 2, 0, upTo(4), took(4))), recorded(3, 4, 0, look, free(2))}},
	"a repeat that finds what others have left of as many as were free": {true, []Record{
		doubtful(recorded(1, 6, 0, upTo(9), took(6))), recorded(2, 3, 1, look, free(1)), recorded(4, 5, 1, give(3), granted),
		recorded(7, 8, 1, look, free(4)),
	}},
	"a cancelled call that took what was free": {true, []Record{
		recorded(1, 2, 0, try(6), granted), recorded(3, 4, 0, upTo(9), gone), recorded(5, 6, 1, look, free(0)), recorded(7, 8, 1, look, free(4)),
	}},
}

// timedHistories are in virtual time.
var timedHistories = map[string]judgedHistory{
	"a millisecond early":                      {false, []Record{recorded(1, 1, 0, try(10), granted), recorded(5, 5, 1, try(1), granted)}},
	"a millisecond late":                       {false, []Record{recorded(1, 1, 0, try(10), granted), recorded(6, 6, 1, try(1), refused)}},
	"a wait that ended too soon":               {false, []Record{recorded(1, 1, 0, try(10), granted), recorded(3, 5, 0, wait(4), granted)}},
	"a wait without success for what was free": {false, []Record{recorded(3, 6, 0, wait(4), refused)}},
	"others' are released last": {false, []Record{
		recorded(1, 1, 0, try(4), granted), recorded(3, 3, 1, try(4), granted), recorded(4, 4, 0, give(4), granted),
		recorded(6, 6, 0, look, free(10)),
	}},
	"a look that promises too much": {false, []Record{recorded(1, 1, 0, try(10), granted), recorded(3, 3, 0, peek(2), waits(2))}},
}
