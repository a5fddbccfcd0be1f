package linear

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/lua"
)

// recorded returns a call between two moments, in virtual time at the
// milliseconds of the same numbers.
func recorded(began, ended int64, client int, c Call, a Answer) Record {
	return Record{
		Call: c, Answer: a, Client: client, Began: began, Ended: ended, BeganAt: began, EndedAt: ended,
	}
}

// The checks would be worth nothing if they let wrong answers pass, and would be
// in the way if they refused right ones.
func TestModelTellsRightFromWrong(t *testing.T) {
	t.Parallel()
	for _, some := range []struct {
		virtual bool
		all     map[string]told
	}{{false, plainHistories}, {false, doubtfulHistories}, {true, timedHistories}} {
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
func TestWhatComesLateIsInUseUntilItIsGivenBack(t *testing.T) {
	t.Parallel()
	late := Request{Began: 5, Ended: 9, Client: 1, Script: lua.Acquire}
	for want, requests := range map[porcupine.CheckResult][]Request{porcupine.Illegal: nil, porcupine.Ok: {late}} {
		h := &History{Start: Full(10, 5), Records: []Record{
			recorded(1, 2, 0, try(8), granted), recorded(3, 6, 1, wait(2), refused),
			recorded(7, 8, 0, try(2), refused), recorded(12, 13, 0, try(2), granted),
		}}
		for i := range h.Records {
			h.Records[i].Number = i + 1
		}
		h.Prepare(requests)
		result, _ := h.Check(CheckTime)
		assert.Equal(t, want, result, "%v", h.List())
	}
}

// A long history is decided by its beginning as far as the time goes.
func TestALongHistoryIsDecidedByItsBeginning(t *testing.T) {
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

// What is told of a history that does not fit is no more than it takes.
func TestAFailedHistoryIsShrunk(t *testing.T) {
	t.Parallel()
	h := &History{About: "a limiter"}
	h.Start = Full(10, 5)
	call := func(c Call, a Answer) {
		moment := 2 * int64(len(h.Records))
		r := recorded(moment, moment+1, 0, c, a)
		r.Number = len(h.Records) + 1
		h.Records = append(h.Records, r)
	}
	for n := range int64(4) {
		call(Call{Name: Try, Permits: 2}, granted)
		call(Call{Name: Available}, Answer{Outcome: Done, Free: 8 - 2*n})
	}
	call(Call{Name: Set, Config: rratelimiter.PerHour(5)}, granted)
	call(Call{Name: Try, Permits: 6}, Answer{Outcome: Exceeds})
	call(Call{Name: Try, Permits: 4}, granted)
	call(Call{Name: Available}, Answer{Outcome: Done, Free: 2}) // it is 1
	call(Call{Name: Try, Permits: 1}, granted)
	h.Prepare(nil)
	result, _ := h.Check(CheckTime)
	assert.Equal(t, porcupine.Illegal, result)
	assert.Equal(t, `no order of these calls gives these answers:
a limiter, at first no rate
  #9     1 - 2    client 0 caller 0 SetRate(5/1h0m0s) = done
  #11    3 - 4    client 0 caller 0 TryAcquire(4, 0s) = true
  #12    5 - 6    client 0 caller 0 AvailablePermits() = 2
  as far as they fit: #9 #11; then 1 of 5 free`, h.Shrunk().String())
}

// Each of many calls whose outcome nobody knows may have come or not: more states than any
// step can list.
func TestASearchEndsInTheMiddleOfAStep(t *testing.T) {
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
