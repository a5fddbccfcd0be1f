package engine

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// newTestJointLine returns the line of a limiter with an interval of a second, in which requests for so many permits
// wait, the first of which has just been refused.
func newTestJointLine(t *testing.T, now time.Time, permits ...int64) (l *jointLine, all []*multiRequest) {
	t.Helper()
	rdb, _ := redistest.Mini(t)
	e := newTestEngine(rdb)
	e.joints.Lock()
	q := &queue{engine: e}
	l = newJointLine(q)
	q.joint.Store(l)
	t.Cleanup(func() {
		l.timer.Stop()
		e.joints.Unlock()
	})
	for i, n := range permits {
		m := &multiRequest{engine: e, queues: []*queue{q}, claims: []Claim{{Permits: n}}}
		m.waiter.since, m.waiter.turn = now.Add(time.Duration(i)), make(chan struct{}, 1)
		l.insert(m)
		all = append(all, m)
	}
	l.note(all[0], time.Hour, time.Second, now)
	l.run(now)
	return l, all
}

// asking returns which of the requests it is the turn of.
func asking(all []*multiRequest) (turns []int) {
	for i, m := range all {
		if m.waiter.asking {
			turns = append(turns, i)
		}
	}
	return turns
}

// One that becomes the first as the time of the one before is over has an interval of its own.
func TestJointLine_NextOfOneWhoseTimeIsOverYieldsAfterAnInterval(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l, all := newTestJointLine(t, now, 5, 5, 1)
	l.overdue, l.again = []*place{&all[0].waiter.place}, true
	l.run(now.Add(5 * time.Second))
	assert.Nil(t, all[0].waiter.line)
	l.goOn(1, now.Add(5*time.Second))
	assert.True(t, l.strict)
	assert.Equal(t, []int{1}, asking(all))
}

// Once the first has yielded, a pass asks for all for whom there is enough, in their order; otherwise for the one that wants
// the fewest.
func TestJointLine_PassForAllReturnsToThoseForWhomThereIsEnoughNow(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l, all := newTestJointLine(t, now, 9, 5, 6, 2)
	now = now.Add(time.Second)
	l.run(now)
	assert.False(t, l.strict)
	assert.Equal(t, []int{0}, asking(all))
	refused := func(i int, free int64) {
		l.asked(all[i])
		l.note(all[i], time.Hour, time.Second, now)
		l.goOn(free, now)
	}
	refused(0, 3)
	assert.Equal(t, []int{3}, asking(all))
	refused(3, 8)
	assert.Equal(t, []int{1}, asking(all), "both were passed over with 3")
	refused(1, 7)
	assert.Equal(t, []int{2}, asking(all))
	refused(2, math.MaxInt64)
	assert.Empty(t, asking(all), "each is asked for once")

	l.again = true
	l.run(now)
	refused(0, 1)
	assert.Equal(t, []int{3}, asking(all), "to learn when to go on")
	refused(3, 1)
	assert.Empty(t, asking(all), "all others want more than it")
}

// Requests that were not asked for, since the first was refused, are the next of the pass if the first has left.
func TestLine_PassGoesOnWithThoseThatWereNotAskedFor(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l, all := &line{}, make([]*request, 4)
	for i := range all {
		all[i] = cameAt(now.Add(time.Duration(i)))
		l.insert(all[i])
	}
	asked := 0
	l.fill(now, func(*request, bool) bool {
		asked++
		return asked < len(all)
	})
	l.remove(all[0])
	for _, r := range all[1:3] {
		l.refused(r, lane.Result{Unasked: true}, time.Second, time.Time{})
	}
	assert.Equal(t, &all[1].place, l.unasked())
}

// Once the one that wants the fewest permits has been asked for, another may be.
func TestJointLine_PassForAllLearnsFromAnotherOnceTheLeastIsGranted(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l, all := newTestJointLine(t, now, 9, 4, 5)
	now = now.Add(time.Second)
	l.run(now)
	l.asked(all[0])
	l.note(all[0], time.Hour, time.Second, now)
	l.goOn(3, now)
	assert.Equal(t, []int{1}, asking(all))
	l.asked(all[1])
	l.remove(all[1])
	l.goOn(2, now)
	assert.Equal(t, []int{2}, asking(all))
}

// Walks over more requests than are handled at once let go of the lock in between, and leave none out.

func TestLine_ManyAreRefusedWhenTheirTimeIsOver(t *testing.T) {
	t.Parallel()
	onFar(t, 2, 100*time.Millisecond, func(t *testing.T, e *far) {
		l := testLimiter("a", "1 3600000 0 0")
		e.take(t, l, 1)
		start := time.Now()
		for range 3*lane.MaxWalk + 1 {
			e.Go(func() {
				a, err := acquire(t.Context(), e.Engine, l, decide.Ask{Permits: 1, MayWait: true, Timeout: time.Second})
				assert.NoError(t, err)
				assert.False(t, a.Granted)
				assert.LessOrEqual(t, time.Since(start), time.Second+e.grace)
			})
		}
		e.Wait()
		synctest.Wait() // who answers the last of them counts them out after that
		assert.Zero(t, e.underWay())
	})
}

func TestClose_FailsManyWaiters(t *testing.T) {
	t.Parallel()
	onFar(t, 2, 100*time.Millisecond, func(t *testing.T, e *far) {
		l := testLimiter("a", "1 3600000 0 0")
		e.take(t, l, 1)
		for range 3*lane.MaxWalk + 1 {
			e.Go(func() {
				_, err := acquire(t.Context(), e.Engine, l, decide.Ask{Permits: 1, MayWait: true})
				assert.ErrorIs(t, err, limit.ErrClosed)
			})
		}
		time.Sleep(time.Minute)
		require.NoError(t, e.Close(t.Context()))
		e.Wait()
		synctest.Wait() // who answers the last of them counts them out after that
		assert.Zero(t, e.underWay())
	})
}
