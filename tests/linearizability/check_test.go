package linearizability_test

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
func recorded(began, ended int64, client int, c linearCall, a linearAnswer) record {
	return record{
		linearCall: c, linearAnswer: a, client: client, began: began, ended: ended, beganAt: began, endedAt: ended,
	}
}

// The checks would be worth nothing if they let wrong answers pass, and would be
// in the way if they refused right ones.
func TestModelTellsRightFromWrong(t *testing.T) {
	t.Parallel()
	granted, refused := linearAnswer{outcome: done, ok: true}, linearAnswer{outcome: done}
	free := func(n int64) linearAnswer { return linearAnswer{outcome: done, free: n} }
	try := func(n int64) linearCall { return linearCall{name: tryCall, permits: n} }
	wait := func(n int64) linearCall { return linearCall{name: tryCall, permits: n, timeout: 3 * time.Millisecond} }
	give := func(n int64) linearCall { return linearCall{name: releaseCall, permits: n} }
	set := func(rate int64, keep bool) linearCall {
		return linearCall{name: setCall, cfg: limitertest.Every(rate, 5*time.Millisecond), keep: keep}
	}
	look := linearCall{name: availableCall}
	take := linearCall{name: takeCall, permits: 3}
	figures := func(ok bool, free int64) linearAnswer {
		return linearAnswer{outcome: done, ok: ok, free: free, limit: 10}
	}
	nobodyKnows, gone := linearAnswer{outcome: unknown}, linearAnswer{outcome: cancelled}
	doubtful := func(r record) record { r.doubts = 1; return r }
	atRest := func(r record) record { r.final = true; return r }

	for name, tt := range map[string]struct {
		right   bool
		virtual bool
		records []record // on a limiter of 10 permits each 5 ms
	}{
		"grants up to the rate": {true, false, []record{
			recorded(1, 3, 0, try(6), granted), recorded(2, 4, 1, try(4), granted), recorded(5, 6, 0, try(1), refused),
		}},
		"grants beyond the rate": {false, false, []record{recorded(1, 3, 0, try(6), granted), recorded(2, 4, 1, try(5), granted)}},
		"refused though free":    {false, false, []record{recorded(1, 2, 0, try(6), granted), recorded(3, 4, 0, try(4), refused)}},
		"refused before a release that overlaps": {true, false, []record{
			recorded(1, 2, 0, try(10), granted), recorded(3, 5, 0, give(4), granted), recorded(4, 6, 0, try(4), refused),
		}},
		"refused after a release": {false, false, []record{
			recorded(1, 2, 0, try(10), granted), recorded(3, 4, 0, give(4), granted), recorded(5, 6, 0, try(4), refused),
		}},
		"more than the rate refused, not an error": {false, false, []record{recorded(1, 2, 0, try(11), refused)}},
		"a call that Redis did not decide": {true, false, []record{
			recorded(1, 2, 0, look, linearAnswer{outcome: unsent}), recorded(3, 4, 0, give(1), linearAnswer{outcome: unsent}),
			recorded(5, 6, 0, try(10), granted), recorded(7, 8, 0, set(3, true), linearAnswer{outcome: unsent}), recorded(9, 10, 0, look, free(0)),
		}},
		"more is released than was in use": {true, false, []record{
			recorded(1, 2, 0, try(3), granted), recorded(3, 4, 0, give(5), granted), recorded(5, 6, 0, look, free(10)),
		}},
		"the figures of a grant": {true, false, []record{recorded(1, 2, 0, take, figures(true, 7))}},
		"figures of another grant": {false, false, []record{
			recorded(1, 2, 0, take, figures(true, 7)), recorded(3, 4, 0, take, figures(true, 3)),
		}},
		"KeepState leaves a debt": {true, false, []record{
			recorded(1, 2, 0, try(8), granted), recorded(3, 4, 0, set(5, true), granted), recorded(5, 6, 0, give(2), granted),
			recorded(7, 8, 0, look, free(0)), recorded(9, 10, 0, set(12, true), granted), recorded(11, 12, 0, look, free(6)),
		}},
		"SetRate that kept what was in use": {false, false, []record{
			recorded(1, 2, 0, try(8), granted), recorded(3, 4, 0, set(9, false), granted), recorded(5, 6, 0, look, free(1)),
		}},
		"a cancelled call that took and gave back": {true, false, []record{
			recorded(1, 2, 0, try(3), gone), recorded(3, 4, 1, look, free(7)), recorded(5, 6, 1, look, free(10)),
		}},
		"a cancelled call that took after its end": {true, false, []record{
			recorded(1, 2, 0, try(3), gone), recorded(3, 4, 1, look, free(10)), recorded(5, 6, 1, look, free(7)),
		}},
		"a cancelled call that took twice": {false, false, []record{
			recorded(1, 2, 0, try(3), gone), recorded(3, 4, 1, look, free(7)), recorded(5, 6, 1, look, free(10)),
			recorded(7, 8, 1, look, free(7)),
		}},
		"a cancelled call that gave back a part": {false, false, []record{
			recorded(1, 2, 0, try(3), gone), recorded(3, 4, 1, look, free(7)), recorded(5, 6, 1, look, free(9)),
		}},
		"a cancelled call that kept its permits": {false, false, []record{
			recorded(1, 2, 0, try(3), gone), atRest(recorded(3, 4, 1, look, free(7))),
		}},
		"a cancelled release had not begun": {false, false, []record{
			recorded(1, 2, 0, try(3), granted), recorded(3, 4, 0, give(3), gone), recorded(5, 6, 1, look, free(10)),
		}},
		"a release that comes late": {true, false, []record{
			recorded(1, 2, 0, try(3), granted), recorded(3, 4, 0, give(2), nobodyKnows), recorded(5, 6, 1, look, free(7)),
			recorded(7, 8, 1, look, free(9)),
		}},
		"a release that comes twice": {false, false, []record{
			recorded(1, 2, 0, try(4), granted), recorded(3, 4, 0, give(2), nobodyKnows), recorded(5, 6, 1, look, free(10)),
		}},
		"a repeat that takes anew what was released": {true, false, []record{
			doubtful(recorded(1, 8, 0, try(7), granted)), recorded(2, 3, 1, look, free(3)), recorded(4, 5, 1, give(7), granted),
			recorded(6, 7, 1, look, free(10)), recorded(9, 10, 1, look, free(3)),
		}},
		"a repeat that takes twice": {false, false, []record{
			doubtful(recorded(1, 6, 0, try(4), granted)), recorded(2, 3, 1, try(1), granted), recorded(4, 5, 1, give(1), granted),
			recorded(7, 8, 1, look, free(2)),
		}},
		"what has run out": {true, true, []record{
			recorded(1, 1, 0, try(10), granted), recorded(5, 5, 1, try(1), refused), recorded(6, 6, 1, try(10), granted),
		}},
		"a millisecond early": {false, true, []record{recorded(1, 1, 0, try(10), granted), recorded(5, 5, 1, try(1), granted)}},
		"a millisecond late":  {false, true, []record{recorded(1, 1, 0, try(10), granted), recorded(6, 6, 1, try(1), refused)}},
		"a wait": {true, true, []record{
			recorded(1, 1, 0, try(10), granted), recorded(3, 6, 0, wait(4), granted), recorded(7, 7, 1, look, free(6)),
		}},
		"a wait that ended too soon":       {false, true, []record{recorded(1, 1, 0, try(10), granted), recorded(3, 5, 0, wait(4), granted)}},
		"a wait in vain for what was free": {false, true, []record{recorded(3, 6, 0, wait(4), refused)}},
		"a wait in vain behind another": {true, true, []record{
			recorded(1, 1, 0, try(5), granted), recorded(2, 5, 0, wait(6), refused), recorded(3, 5, 0, wait(4), refused),
		}},
		"the newest are released first": {true, true, []record{
			recorded(1, 1, 0, try(4), granted), recorded(3, 3, 0, try(4), granted), recorded(4, 4, 0, give(4), granted),
			recorded(6, 6, 0, look, free(10)),
		}},
		"others' are released last": {false, true, []record{
			recorded(1, 1, 0, try(4), granted), recorded(3, 3, 1, try(4), granted), recorded(4, 4, 0, give(4), granted),
			recorded(6, 6, 0, look, free(10)),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &linearHistory{records: tt.records, virtual: tt.virtual, strict: true, phantom: true}
			h.start.rate, h.start.interval = 10, 5
			for i := range h.records {
				h.records[i].number = i + 1
				if tt.virtual { // two calls may begin at the same millisecond
					h.records[i].began, h.records[i].ended = 2*h.records[i].began, 2*h.records[i].ended+1
				}
			}
			h.prepare(nil)
			want := porcupine.Illegal
			if tt.right {
				want = porcupine.Ok
			}
			assert.Equal(t, want, h.check(checkTime), "%v", h.list())
		})
	}
}

// What is told of a history that does not fit is no more than it takes.
func TestAFailedHistoryIsShrunk(t *testing.T) {
	t.Parallel()
	granted := linearAnswer{outcome: done, ok: true}
	h := &linearHistory{about: "a limiter"}
	h.start.rate, h.start.interval = 10, 5
	call := func(c linearCall, a linearAnswer) {
		moment := 2 * int64(len(h.records))
		r := recorded(moment, moment+1, 0, c, a)
		r.number = len(h.records) + 1
		h.records = append(h.records, r)
	}
	for n := range int64(4) {
		call(linearCall{name: tryCall, permits: 2}, granted)
		call(linearCall{name: availableCall}, linearAnswer{outcome: done, free: 8 - 2*n})
	}
	call(linearCall{name: setCall, cfg: rratelimiter.PerHour(5)}, granted)
	call(linearCall{name: tryCall, permits: 6}, linearAnswer{outcome: exceeds})
	call(linearCall{name: tryCall, permits: 4}, granted)
	call(linearCall{name: availableCall}, linearAnswer{outcome: done, free: 2}) // it is 1
	call(linearCall{name: tryCall, permits: 1}, granted)
	h.prepare(nil)
	assert.Equal(t, porcupine.Illegal, h.check(checkTime))
	assert.Equal(t, `no order of these calls gives these answers:
a limiter, at first no rate
  #9     1 - 2    client 0 caller 0 SetRate(5/1h0m0s) = done
  #11    3 - 4    client 0 caller 0 TryAcquire(4, 0s) = true
  #12    5 - 6    client 0 caller 0 AvailablePermits() = 2
  as far as they fit: #9 #11; then 1 of 5 free`, h.shrunk().String())
}
