package linear

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/limitertest"
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
	granted, refused := Answer{Outcome: Done, OK: true}, Answer{Outcome: Done}
	free := func(n int64) Answer { return Answer{Outcome: Done, Free: n} }
	try := func(n int64) Call { return Call{Name: Try, Permits: n} }
	wait := func(n int64) Call { return Call{Name: Try, Permits: n, Timeout: 3 * time.Millisecond} }
	give := func(n int64) Call { return Call{Name: Release, Permits: n} }
	set := func(rate int64, keep bool) Call {
		return Call{Name: Set, Config: limitertest.Every(rate, 5*time.Millisecond), Keep: keep}
	}
	look := Call{Name: Available}
	take := Call{Name: Take, Permits: 3}
	figures := func(ok bool, free int64) Answer {
		return Answer{Outcome: Done, OK: ok, Free: free, Limit: 10}
	}
	nobodyKnows, gone := Answer{Outcome: Unknown}, Answer{Outcome: Cancelled}
	doubtful := func(r Record) Record { r.Doubts = 1; return r }
	atRest := func(r Record) Record { r.Final = true; return r }

	for name, tt := range map[string]struct {
		right   bool
		virtual bool
		records []Record // on a limiter of 10 permits each 5 ms
	}{
		"grants up to the rate": {true, false, []Record{
			recorded(1, 3, 0, try(6), granted), recorded(2, 4, 1, try(4), granted), recorded(5, 6, 0, try(1), refused),
		}},
		"grants beyond the rate": {false, false, []Record{recorded(1, 3, 0, try(6), granted), recorded(2, 4, 1, try(5), granted)}},
		"refused though free":    {false, false, []Record{recorded(1, 2, 0, try(6), granted), recorded(3, 4, 0, try(4), refused)}},
		"refused before a release that overlaps": {true, false, []Record{
			recorded(1, 2, 0, try(10), granted), recorded(3, 5, 0, give(4), granted), recorded(4, 6, 0, try(4), refused),
		}},
		"refused after a release": {false, false, []Record{
			recorded(1, 2, 0, try(10), granted), recorded(3, 4, 0, give(4), granted), recorded(5, 6, 0, try(4), refused),
		}},
		"more than the rate refused, not an error": {false, false, []Record{recorded(1, 2, 0, try(11), refused)}},
		"a call that Redis did not decide": {true, false, []Record{
			recorded(1, 2, 0, look, Answer{Outcome: Unsent}), recorded(3, 4, 0, give(1), Answer{Outcome: Unsent}),
			recorded(5, 6, 0, try(10), granted), recorded(7, 8, 0, set(3, true), Answer{Outcome: Unsent}), recorded(9, 10, 0, look, free(0)),
		}},
		"more is released than was in use": {true, false, []Record{
			recorded(1, 2, 0, try(3), granted), recorded(3, 4, 0, give(5), granted), recorded(5, 6, 0, look, free(10)),
		}},
		"the figures of a grant": {true, false, []Record{recorded(1, 2, 0, take, figures(true, 7))}},
		"figures of another grant": {false, false, []Record{
			recorded(1, 2, 0, take, figures(true, 7)), recorded(3, 4, 0, take, figures(true, 3)),
		}},
		"KeepState leaves a debt": {true, false, []Record{
			recorded(1, 2, 0, try(8), granted), recorded(3, 4, 0, set(5, true), granted), recorded(5, 6, 0, give(2), granted),
			recorded(7, 8, 0, look, free(0)), recorded(9, 10, 0, set(12, true), granted), recorded(11, 12, 0, look, free(6)),
		}},
		"SetRate that kept what was in use": {false, false, []Record{
			recorded(1, 2, 0, try(8), granted), recorded(3, 4, 0, set(9, false), granted), recorded(5, 6, 0, look, free(1)),
		}},
		"a cancelled call that took and gave back": {true, false, []Record{
			recorded(1, 2, 0, try(3), gone), recorded(3, 4, 1, look, free(7)), recorded(5, 6, 1, look, free(10)),
		}},
		"a cancelled call that took after its end": {true, false, []Record{
			recorded(1, 2, 0, try(3), gone), recorded(3, 4, 1, look, free(10)), recorded(5, 6, 1, look, free(7)),
		}},
		"a cancelled call that took twice": {false, false, []Record{
			recorded(1, 2, 0, try(3), gone), recorded(3, 4, 1, look, free(7)), recorded(5, 6, 1, look, free(10)),
			recorded(7, 8, 1, look, free(7)),
		}},
		"a cancelled call that gave back a part": {false, false, []Record{
			recorded(1, 2, 0, try(3), gone), recorded(3, 4, 1, look, free(7)), recorded(5, 6, 1, look, free(9)),
		}},
		"a cancelled call that kept its permits": {false, false, []Record{
			recorded(1, 2, 0, try(3), gone), atRest(recorded(3, 4, 1, look, free(7))),
		}},
		"a cancelled release had not begun": {false, false, []Record{
			recorded(1, 2, 0, try(3), granted), recorded(3, 4, 0, give(3), gone), recorded(5, 6, 1, look, free(10)),
		}},
		"a release that comes late": {true, false, []Record{
			recorded(1, 2, 0, try(3), granted), recorded(3, 4, 0, give(2), nobodyKnows), recorded(5, 6, 1, look, free(7)),
			recorded(7, 8, 1, look, free(9)),
		}},
		"a release that comes twice": {false, false, []Record{
			recorded(1, 2, 0, try(4), granted), recorded(3, 4, 0, give(2), nobodyKnows), recorded(5, 6, 1, look, free(10)),
		}},
		"a repeat that takes anew what was released": {true, false, []Record{
			doubtful(recorded(1, 8, 0, try(7), granted)), recorded(2, 3, 1, look, free(3)), recorded(4, 5, 1, give(7), granted),
			recorded(6, 7, 1, look, free(10)), recorded(9, 10, 1, look, free(3)),
		}},
		"a repeat that takes twice": {false, false, []Record{
			doubtful(recorded(1, 6, 0, try(4), granted)), recorded(2, 3, 1, try(1), granted), recorded(4, 5, 1, give(1), granted),
			recorded(7, 8, 1, look, free(2)),
		}},
		"what has run out": {true, true, []Record{
			recorded(1, 1, 0, try(10), granted), recorded(5, 5, 1, try(1), refused), recorded(6, 6, 1, try(10), granted),
		}},
		"a millisecond early": {false, true, []Record{recorded(1, 1, 0, try(10), granted), recorded(5, 5, 1, try(1), granted)}},
		"a millisecond late":  {false, true, []Record{recorded(1, 1, 0, try(10), granted), recorded(6, 6, 1, try(1), refused)}},
		"a wait": {true, true, []Record{
			recorded(1, 1, 0, try(10), granted), recorded(3, 6, 0, wait(4), granted), recorded(7, 7, 1, look, free(6)),
		}},
		"a wait that ended too soon":       {false, true, []Record{recorded(1, 1, 0, try(10), granted), recorded(3, 5, 0, wait(4), granted)}},
		"a wait in vain for what was free": {false, true, []Record{recorded(3, 6, 0, wait(4), refused)}},
		"a wait in vain behind another": {true, true, []Record{
			recorded(1, 1, 0, try(5), granted), recorded(2, 5, 0, wait(6), refused), recorded(3, 5, 0, wait(4), refused),
		}},
		"the newest are released first": {true, true, []Record{
			recorded(1, 1, 0, try(4), granted), recorded(3, 3, 0, try(4), granted), recorded(4, 4, 0, give(4), granted),
			recorded(6, 6, 0, look, free(10)),
		}},
		"others' are released last": {false, true, []Record{
			recorded(1, 1, 0, try(4), granted), recorded(3, 3, 1, try(4), granted), recorded(4, 4, 0, give(4), granted),
			recorded(6, 6, 0, look, free(10)),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &History{Records: tt.records, Virtual: tt.virtual, Strict: true, Phantom: true}
			h.Start = Full(10, 5)
			for i := range h.Records {
				h.Records[i].Number = i + 1
				if tt.virtual { // two calls may begin at the same millisecond
					h.Records[i].Began, h.Records[i].Ended = 2*h.Records[i].Began, 2*h.Records[i].Ended+1
				}
			}
			h.Prepare(nil)
			want := porcupine.Illegal
			if tt.right {
				want = porcupine.Ok
			}
			assert.Equal(t, want, h.Check(CheckTime), "%v", h.List())
		})
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
	result, ordered := h.Decide(time.Minute)
	assert.Equal(t, porcupine.Ok, result)
	assert.Equal(t, 500, ordered)
	_, ordered = h.Decide(0)
	assert.Less(t, ordered, 500)
	h.Records[150].Permits = 3
	result, ordered = h.Decide(time.Minute)
	assert.Equal(t, porcupine.Illegal, result, "one more than there are")
	assert.GreaterOrEqual(t, ordered, 200)
}

// What is told of a history that does not fit is no more than it takes.
func TestAFailedHistoryIsShrunk(t *testing.T) {
	t.Parallel()
	granted := Answer{Outcome: Done, OK: true}
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
	assert.Equal(t, porcupine.Illegal, h.Check(CheckTime))
	assert.Equal(t, `no order of these calls gives these answers:
a limiter, at first no rate
  #9     1 - 2    client 0 caller 0 SetRate(5/1h0m0s) = done
  #11    3 - 4    client 0 caller 0 TryAcquire(4, 0s) = true
  #12    5 - 6    client 0 caller 0 AvailablePermits() = 2
  as far as they fit: #9 #11; then 1 of 5 free`, h.Shrunk().String())
}
