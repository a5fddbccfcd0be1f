package lease_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

const ms = time.Millisecond

// A trial asks for permits of a limiter of a million a second, by a Planner, in a time of its own. Answers take a millisecond.
type trial struct {
	lease.Planner

	now  time.Time
	free int64 // before each answer
}

const trialRate = 1_000_000

func newTrial() *trial {
	return &trial{Planner: lease.Planner{Most: 1 << 30, Random: func() float64 { return 0.5 }}, now: time.Unix(1e9, 0), free: trialRate}
}

// ask asks for a permit, and returns how many should be taken ahead and how many were.
func (t *trial) ask() (asked, ahead int64) {
	sent := t.now
	asked, _ = t.Ask(1, sent)
	t.now = t.now.Add(ms)
	callers := min(1, t.free)
	ahead = min(asked, t.free-callers)
	t.Answered(lease.Answer{
		Sent: sent, Come: t.now, Interval: time.Second, Rate: trialRate, Free: t.free - callers - ahead,
		Callers: callers, Asked: asked, Ahead: ahead, Refused: callers == 0, Wait: 2 * ms, Reset: time.Second,
	})
	return asked, ahead
}

// use asks as often as a program must that uses that many permits a second, for a while, and returns how often that was.
func (t *trial) use(permits float64, d time.Duration) (calls int) {
	for end := t.now.Add(d); t.now.Before(end); calls++ {
		_, ahead := t.ask()
		t.now = t.now.Add(time.Duration(float64(ahead+1) / permits * float64(time.Second)))
	}
	return calls
}

func TestPlanner_FollowsDemand(t *testing.T) {
	t.Parallel()
	p := newTrial()
	_, figures := p.Ask(1, p.now)
	assert.True(t, figures, "the interval is not known")
	assert.Zero(t, p.Life())
	p.ask()
	assert.Equal(t, 50*ms, p.Life())
	asked, _ := p.ask()
	assert.Positive(t, asked, "a newcomer's first lease comes at once")
	assert.LessOrEqual(t, asked, int64(8), "and is small")
	p.use(10_000, 200*ms)
	for _, demand := range []float64{10_000, 50_000, 1000} {
		p.use(demand, 500*ms)
		assert.InDelta(t, 30, p.use(demand, time.Second), 5, "a call for each two thirds of a life")
		asked, _ = p.ask()
		assert.InEpsilon(t, demand/30, float64(asked), 0.15)
	}
	p.use(20, 3*time.Second)
	assert.InDelta(t, 20, p.use(20, time.Second), 1, "none for less than two permits a life")
	p.now = p.now.Add(time.Hour)
	asked, _ = p.ask()
	assert.Zero(t, asked, "it is new again")
}

func TestPlanner_BoundsLeases(t *testing.T) {
	t.Parallel()
	p := newTrial()
	p.Most = 50
	p.use(10_000, 500*ms)
	asked, _ := p.ask()
	assert.EqualValues(t, 50, asked, "a lease's most")
	p = newTrial()
	p.free = 161
	for range 3 {
		asked, _ = p.ask()
		assert.LessOrEqual(t, asked, int64(10), "a 16th of what is free")
	}
}

func TestUnusedPermitsMakeTheNextLeaseSmaller(t *testing.T) {
	t.Parallel()
	p := newTrial()
	p.use(10_000, 500*ms)
	_, before := p.ask()
	for range 5 {
		p.now = p.now.Add(50 * ms)
		p.Unused(before / 2)
		_, before = p.ask()
	}
	assert.InDelta(t, 80, before, 80)
}

// Permits that are short are shared by what calls find.
func TestPlanner_SharesScarcePermits(t *testing.T) {
	t.Parallel()
	p := newTrial()
	p.use(10_000, 500*ms)
	p.free = 0
	p.ask()
	back := p.Back()
	assert.True(t, back.After(p.now), "it found nothing free")
	asked, figures := p.Ask(1, p.now)
	assert.Zero(t, asked, "before then nothing is asked for but what callers want")
	assert.False(t, figures)
	p.free = 40
	for range 30 {
		p.now = p.now.Add(100 * ms)
		p.ask()
	}
	p.now = p.now.Add(100 * ms)
	asked, ahead := p.ask()
	assert.InDelta(t, 160, asked, 10, "four times what it found")
	assert.EqualValues(t, 39, ahead)
}

func TestPlanner_SpreadsReturns(t *testing.T) {
	t.Parallel()
	back := func(random float64, wait time.Duration) time.Duration {
		p := newTrial()
		p.use(1000, time.Second) // one of a thousand
		p.free = 0
		p.Random = func() float64 { return random }
		sent := p.now
		p.Ask(1, sent)
		p.Answered(lease.Answer{Sent: sent, Come: sent.Add(ms), Interval: time.Second, Rate: trialRate, Refused: true, Wait: wait, Reset: 900 * ms})
		return p.Back().Sub(sent)
	}
	assert.Equal(t, 50*ms, back(0, ms))
	assert.Equal(t, 150*ms, back(1, ms), "a turn is a tenth of the interval at most")
	assert.Equal(t, 500*ms, back(0, 500*ms))
	assert.Equal(t, 550*ms, back(1, 500*ms), "those who come for the same come within a twentieth")
	assert.Equal(t, 900*ms, back(1, 890*ms), "all permits are free then")
}

func TestPlanner_Life(t *testing.T) {
	t.Parallel()
	p := newTrial()
	p.use(1000, time.Second)
	assert.Equal(t, 50*ms, p.Life(), "alone")
	p.free = trialRate / 2
	p.ask()
	assert.Equal(t, 150*ms, p.Life(), "one of hundreds")
	p.Want = time.Second
	assert.Equal(t, 500*ms, p.Life(), "half of the interval at most")
	p.Want = 10 * ms
	assert.Equal(t, 10*ms, p.Life())
}

// takes checks what is left, -1 for whatever says that nothing is granted, and what the caller gives back, if permits are taken of a lease.
func takes(t *testing.T, l *lease.Lease, permits, left, unused int64) {
	t.Helper()
	gotLeft, gotUnused := l.Take(permits)
	assert.Equal(t, []int64{left, unused}, []int64{max(-1, gotLeft), gotUnused})
}

// A lease that has too little for a request ends, and what it has left is the caller's to give back, once.
func TestLease_EndsIfItHasTooLittle(t *testing.T) {
	t.Parallel()
	a := lease.New(5, time.Now(), time.Hour)
	a.Take(3)
	takes(t, a, 3, -1, 2)
	takes(t, a, 1, -1, 0)
	assert.False(t, a.Return(3))
	assert.Zero(t, a.Left())
	assert.Zero(t, a.End())
	a = lease.New(5, time.Now(), time.Hour)
	a.Take(5)
	assert.True(t, a.Return(2), "it is empty and has not ended")
	takes(t, a, 2, 0, 0)
}

// Whatever happens at once, each permit is used by one caller, or goes back once.
func TestLease_CountsEachPermitOnce(t *testing.T) {
	t.Parallel()
	for range 200 {
		const size = 1000
		a := lease.New(size, time.Now(), time.Hour)
		var used, back atomic.Int64
		limitertest.Together(4, func(g int) {
			for i := range 100 {
				permits := int64(g+i) % 7
				left, unused := a.Take(permits)
				back.Add(unused)
				switch {
				case left < 0:
				case i%5 == 0 && a.Return(permits):
				case i%5 == 0:
					back.Add(permits)
				default:
					used.Add(permits)
				}
				if g == 0 && i == 90 {
					back.Add(a.End())
				}
			}
		})
		back.Add(a.End())
		assert.EqualValues(t, size, used.Load()+back.Load())
	}
}

func TestLease_HoldsPermitsForItsLife(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := lease.New(5, time.Now(), time.Second)
		takes(t, a, 3, 2, 0)
		time.Sleep(time.Second - time.Nanosecond)
		takes(t, a, 1, 1, 0)
		time.Sleep(time.Nanosecond)
		takes(t, a, 1, -1, 0) // its life is over
		assert.True(t, a.Return(1))
		assert.EqualValues(t, 2, a.Left())
		assert.EqualValues(t, 2, a.End())
		assert.False(t, a.Return(1), "its rest has gone back")
		assert.Zero(t, a.End())
	})
}
