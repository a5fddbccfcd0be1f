package linear

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/op"
)

// verbs are the calls that histories are told with: a word, and what the number behind it is.
var verbs = map[string]func(n int64) Call{
	"try":       permits(op.Op{Name: op.Try}),
	"wait":      permits(op.Op{Name: op.Try, Timeout: 3 * time.Millisecond}),
	"take":      permits(op.Op{Name: op.Take}),
	"upTo":      permits(op.Op{Name: op.UpTo}),
	"peek":      permits(op.Op{Name: op.Peek}),
	"give":      permits(op.Op{Name: op.Release}),
	"look":      permits(op.Op{Name: op.Available}),
	"reset":     permits(op.Op{Name: op.Reset}),
	"remove":    permits(op.Op{Name: op.Delete}),
	"reserve":   func(n int64) Call { return Call{Op: op.Op{Name: op.Reserve, Permits: n}, Reservation: 1} },
	"set":       sets(0, false),
	"keep":      sets(0, true),
	"override1": sets(1, true),
	"override2": sets(2, true),
	"end":       func(n int64) Call { return Call{Op: op.Op{Name: End}, Override: int(n)} },
	"look7": func(int64) Call { // by a handle with a default of 7
		return Call{Op: op.Op{Name: op.Available, Config: each5ms(7)}, ByDefault: true}
	},
}

func permits(o op.Op) func(n int64) Call {
	return func(n int64) Call {
		o.Permits = n
		return Call{Op: o}
	}
}

func sets(override int, keep bool) func(n int64) Call {
	return func(n int64) Call {
		return Call{Op: op.Op{Name: op.Set, Config: each5ms(n), Keep: keep}, Override: override}
	}
}

func each5ms(rate int64) rratelimiter.Config {
	return rratelimiter.Config{Rate: rate, Interval: 5 * time.Millisecond}
}

// outcomes are the words of calls without an answer.
var outcomes = map[string]op.Outcome{"gone": op.Gone, "unknown": op.Unknown, "unsent": op.Unavailable, "norate": op.Missing}

// told returns the calls of a history, with semicolons between: of client 1 behind "b", else of 0; a verb and its number; "= yes"
// or "= no", with what is left or, of a refusal, the wait in ms; or what was found, or how else it ended. "doubted" is one
// of which a request was lost, "rests" one at the end. Each follows the one before, or lasts from the first moment behind @
// to the second.
func told(t *testing.T, text string) (records []Record) {
	t.Helper()
	for i, line := range strings.Split(text, "; ") {
		r := Record{Number: i + 1, Began: int64(2*i + 1), Ended: int64(2*i + 2)}
		call, answer, _ := strings.Cut(line, " = ")
		if after, ok := strings.CutPrefix(call, "b "); ok {
			r.Client, call = 1, after
		}
		verb, number, _ := strings.Cut(call, " ")
		numbers := strings.Split(cmp.Or(number, "0"), " of ")
		n := parsed(t, numbers[len(numbers)-1])
		if verb == "settle" { // so many of those reserved
			r.Call = Call{Op: op.Op{Name: op.Settle, Permits: n, Used: parsed(t, numbers[0])}, Reservation: 1}
		} else {
			require.Contains(t, verbs, verb)
			r.Call = verbs[verb](n)
		}
		r.Outcome = op.Done
		words := strings.Fields(answer)
		for i, word := range words {
			span, isSpan := strings.CutPrefix(word, "@")
			switch outcome, ends := outcomes[word]; {
			case ends:
				r.Outcome = outcome
			case isSpan:
				from, to, two := strings.Cut(span, "-")
				if !two {
					to = from
				}
				r.Began, r.Ended = parsed(t, from), parsed(t, to)
			case word == "doubted":
				r.Doubts = 1
			case word == "rests":
				r.Final = true
			case word == "yes" || word == "no":
				r.OK = word == "yes"
			case i > 0 && words[i-1] == "no": // ms until there is enough, and until there is all
				r.Limit, r.Wait = 10, time.Duration(parsed(t, word))*time.Millisecond
				r.Reset = r.Wait
			default:
				if r.Free = parsed(t, word); i > 0 {
					r.Limit, r.Reset = 10, 5*time.Millisecond
				}
				if r.Taken = r.Free; r.Name == op.UpTo {
					r.OK = r.Taken > 0
				}
			}
		}
		r.BeganAt, r.EndedAt = r.Began, r.Ended
		records = append(records, r)
	}
	return records
}

func parsed(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err)
	return n
}

// A judgedHistory is one of a limiter of 10 permits each 5 ms, and whether it is right.
type judgedHistory struct {
	right bool
	calls string
}

// The checks would be worth nothing if they let wrong answers pass. That they take right ones
// each history of a limiter shows that passes; here are those that few have.
func TestModelTellsRightFromWrong(t *testing.T) {
	t.Parallel()
	for virtual, all := range map[bool]map[string]judgedHistory{false: histories, true: timedHistories} {
		for name, tt := range all {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				h := &History{Start: Full(10, 5), Records: told(t, tt.calls), Virtual: virtual, Strict: true, Phantom: true}
				for i := range h.Records {
					if r := &h.Records[i]; virtual { // two calls may begin at the same millisecond
						r.Began, r.Ended = 2*r.Began, 2*r.Ended+1
					}
				}
				h.Prepare(nil)
				result, _ := h.Check(CheckTime)
				assert.Equal(t, tt.right, result == porcupine.Ok, "%v: %v", result, h.List())
				assert.NotEqual(t, porcupine.Unknown, result)
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
		calls := "try 8 = yes; b wait 2 = no @3-6; try 2 = no @7-8; try 2 = yes @12-13"
		h := &History{Start: Full(10, 5), Phantom: true, Records: told(t, calls)}
		h.Prepare(tt.requests)
		result, _ := h.Check(CheckTime)
		assert.Equal(t, tt.want, result, "%v: %v", tt.requests, h.List())
	}
}

// A long history is decided by its beginning as far as the time goes.
func TestCheck_DecidesLongHistoryByItsBeginning(t *testing.T) {
	t.Parallel()
	var calls []string
	for n := range 500 {
		calls = append(calls, fmt.Sprintf("try 2 = yes @%d-%d", n, n+3))
	}
	h := &History{Start: Full(1000, time.Hour.Milliseconds()), Records: told(t, strings.Join(calls, "; "))}
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
		loose = append(loose, effect{kind: unseenEffect, call: i + 1, permits: 1 << i, outcome: op.Unknown})
		start.loose = start.loose.with(only(i))
	}
	within := newSearchTime(10 * time.Millisecond)
	assert.Empty(t, states{states: []State{start}}.follow(effect{kind: tickEffect}, loose, within).states)
	assert.True(t, within.cut.Load())
}

// histories are beyond time.
var histories = map[string]judgedHistory{
	// With answers to all calls, and nothing runs out.
	"grants beyond the rate":                   {false, "try 6 = yes @1-3; b try 5 = yes @2-4"},
	"refused though free":                      {false, "try 6 = yes; try 4 = no"},
	"refused after a release":                  {false, "try 10 = yes; give 4 = yes; try 4 = no"},
	"more than the rate refused, not an error": {false, "try 11 = no"},
	"figures of another grant":                 {false, "take 3 = yes 7; take 3 = yes 3"},
	"SetRate that kept what was in use":        {false, "try 8 = yes; set 9 = yes; look = 1"},
	"fewer than are free":                      {false, "upTo 9 = 8"},
	"more than were asked":                     {false, "upTo 3 = 4; look = 6"},
	"a look that took":                         {false, "peek 4 = yes 6; look = 6"},
	"a look that tells too much":               {false, "try 7 = yes; peek 4 = yes 0"},
	"an override that ended": {true, "try 8 = yes; override1 20 = yes; try 9 = yes; override2 3 = yes; end 1 = yes; " +
		"look = 0; end 2 = yes; give 8 = yes; look = 1"},
	"an override that ended for good":         {true, "override1 20 = yes; keep 7 = yes; end 1 = yes; look = 7"},
	"an override that did not end":            {false, "override1 20 = yes; end 1 = yes; try 11 = yes"},
	"an override that forgot what is in use":  {false, "try 8 = yes; override1 20 = yes; end 1 = yes; try 3 = yes"},
	"a look at a default":                     {true, "remove = yes; look7 = 7; look = norate"},
	"a look at another rate than the default": {false, "remove = yes; look7 = 10"},
	"Reset of a limiter that has no rate":     {false, "remove = yes; reset = yes"},
	"Reset that left some":                    {false, "try 10 = yes; b reset = yes; look = 9"},
	// With a reservation.
	"one that cost less, which stays":                    {false, "reserve 6 = yes; settle 1 of 6 = yes; look = 4"},
	"one that cost more, charged twice":                  {false, "reserve 2 = yes; settle 5 of 2 = yes doubted; look = 2"},
	"Release of the reservation, which comes back again": {false, "reserve 4 = yes; give 4 = yes; try 4 = yes; settle 0 of 4 = yes; look = 10"},
	// With calls of which not all is known.
	"a call that Redis did not decide": {true, "look = unsent; give 1 = unsent; try 10 = yes; " +
		"keep 3 = unsent; look = 0"},
	"a cancelled call that took and gave back":         {true, "try 3 = gone; b look = 7; b look = 10"},
	"a cancelled call that took after its end":         {true, "try 3 = gone; b look = 10; b look = 7"},
	"a cancelled call that took twice":                 {false, "try 3 = gone; b look = 7; b look = 10; b look = 7"},
	"a cancelled call that gave back a part":           {false, "try 3 = gone; b look = 7; b look = 9"},
	"a cancelled call that kept its permits":           {false, "try 3 = gone; b look = 7 rests"},
	"a cancelled release had not begun":                {false, "try 3 = yes; give 3 = gone; b look = 10"},
	"a release that comes late":                        {true, "try 3 = yes; give 2 = unknown; b look = 7; b look = 9"},
	"a release that comes twice":                       {false, "try 4 = yes; give 2 = unknown; b look = 10"},
	"a call without an answer that took and gave back": {true, "try 3 = unknown; b look = 7; b look = 10"},
	"a repeat that takes again what was released": {true, "try 7 = yes doubted @1-8; b look = 3 @2-3; b give 7 = yes @4-5; " +
		"b look = 10 @6-7; b look = 3"},
	"a repeat that takes twice": {false, "try 4 = yes doubted @1-6; b try 1 = yes @2-3; b give 1 = yes @4-5; " +
		"b look = 2"},
	"a repeat that finds a part, as much as another of its call wanted": {
		true, "try 6 = no doubted @1-9; try 5 = yes doubted @1-9; b look = 4 @2-3; b give 1 = yes @4-5; " +
			"b look = 5 @6-7; b look = 5 @10-11",
	},
	"a repeat that finds a part and grants it to no one": {
		false, "try 6 = no doubted @1-9; try 5 = no doubted @1-9; b look = 4 @2-3; b give 1 = yes @4-5; " +
			"b look = 5 @6-7; b look = 10 @10-11",
	},
	"a repeat that finds a part, after the other of its call was answered": {
		false, "try 6 = no doubted @1-9; try 2 = yes doubted @1-2; b look = 2 @3-4; b give 4 = yes @5-6; " +
			"b look = 6 @7-8; b look = 8 @10-11",
	},
	"a repeat that loses a part": {false, "try 6 = no doubted @1-9; try 4 = yes doubted @1-9; b look = 4 @2-3; b give 1 = yes @4-5; " +
		"b look = 5 @6-7; b look = 6 @10-11"},
	"Reset that comes late":      {true, "try 10 = yes; b reset = unknown; look = 0; look = 10"},
	"as many as are free, twice": {false, "upTo 4 = 4 doubted; look = 2"},
	"a repeat that finds what others have left of as many as were free": {
		true, "upTo 9 = 6 doubted @1-6; b look = 1 @2-3; b give 3 = yes @4-5; " +
			"b look = 4",
	},
	"a cancelled call that took what was free": {true, "try 6 = yes; upTo 9 = gone; b look = 0; b look = 4"},
}

// timedHistories are in virtual time.
var timedHistories = map[string]judgedHistory{
	"a millisecond early":                      {false, "try 10 = yes @1; b try 1 = yes @5"},
	"a millisecond late":                       {false, "try 10 = yes @1; b try 1 = no @6"},
	"a wait that ended too soon":               {false, "try 10 = yes @1; wait 4 = yes @3-5"},
	"a wait without success for what was free": {false, "wait 4 = no @3-6"},
	"others' are released last":                {false, "try 4 = yes @1; b try 4 = yes @3; give 4 = yes @4; look = 10 @6"},
	"a look that promises too much":            {false, "try 10 = yes @1; peek 2 = no 2 @3"},
}
