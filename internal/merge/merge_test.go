package merge_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/merge"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

// A program grants members of a limiter, at times that the test names, and its server merges or does not.
type program struct {
	*merge.Log

	ids      *redisson.Identities
	start    time.Time
	interval time.Duration
	due      int // how often it was time to merge
}

// newProgram returns a program that knows the rate and has granted members at 0.
func newProgram(rate int64, interval time.Duration, grants int) *program {
	p := &program{Log: &merge.Log{}, ids: redisson.NewIdentities(codec.LayoutD2), interval: interval}
	p.start = time.Now().Truncate(interval).Add(interval / 128) // half a slice: what is a moment early is in the same
	p.Learn(rate, interval)
	p.grant(grants, 0, nil)
	return p
}

func (p *program) draw() []byte { return p.ids.Next(nil, 1) }

// grant grants n members of two permits each, at that time of the interval.
func (p *program) grant(n int, at time.Duration, m *merge.Member) {
	for range n {
		if due, _ := p.Add(p.draw(), 2, p.start.Add(at), m); due {
			p.due++
		}
	}
}

// groups returns the groups that a call names: the permits of each one's members.
func groups(t *testing.T, c *merge.Call) (all [][]int) {
	t.Helper()
	if c == nil {
		return nil
	}
	for _, arg := range c.Append(nil)[1:] {
		var sums []int
		for one := range slices.Chunk(arg.([]byte), 21) {
			m, err := codec.Parse(string(one))
			require.NoError(t, err)
			sums = append(sums, int(m.Permits))
		}
		for _, permits := range sums[1:] {
			sums[0] -= permits
		}
		assert.Zero(t, sums[0], "what stands for them has their permits")
		all = append(all, sums[1:])
	}
	return all
}

// names checks which groups the next call names, none if it is not time for one.
func (p *program) names(t *testing.T, want [][]int, why ...any) *merge.Call {
	t.Helper()
	c, _ := p.Name(p.draw)
	require.Equal(t, want == nil, c == nil, why...)
	require.Equal(t, want, groups(t, c), why...)
	return c
}

// mustName returns the next call, which names one group, and the permits of that.
func (p *program) mustName(t *testing.T) (*merge.Call, []int) {
	t.Helper()
	c, _ := p.Name(p.draw)
	all := groups(t, c)
	require.Len(t, all, 1)
	return c, all[0]
}

func (p *program) answered(c *merge.Call, numbers ...int64) []*merge.Member {
	now := time.Now()
	return c.Answered(append([]int64{1000, p.interval.Milliseconds(), now.UnixMilli()}, numbers...), now, false)
}

// sliceAt is the number of the slice at a time of the interval.
func (p *program) sliceAt(at time.Duration) int64 {
	return p.start.Add(at).UnixMilli() * 64 / p.interval.Milliseconds()
}

func TestLog_NamesMembersOfEachSlice(t *testing.T) {
	t.Parallel()
	p := newProgram(1000, 64*time.Minute, 32)
	p.names(t, nil, "few of an interval are left alone")
	p.grant(3, time.Minute, nil)
	p.grant(1, 2*time.Minute, nil)
	p.grant(15, 3*time.Minute, nil)
	assert.Zero(t, p.due)
	p.grant(1, 3*time.Minute, nil)
	assert.Equal(t, 1, p.due)
	c := p.names(t, [][]int{slices.Repeat([]int{2}, 16), {2, 2, 2}}, "the newest first; one is not merged with itself")
	p.names(t, nil, "one call at a time")
	p.answered(c, p.sliceAt(3*time.Minute), p.sliceAt(time.Minute))
	p.grant(1, 3*time.Minute, nil)
	p.names(t, [][]int{{32, 2}}, "what is merged is merged with later ones of its slice")
}

func TestLog_LearnsFromTheServer(t *testing.T) {
	t.Parallel()
	p := newProgram(1000, 64*time.Minute, 32)
	p.grant(4, time.Minute, nil)
	c, _ := p.mustName(t)
	at := p.sliceAt(time.Minute)
	p.answered(c, 0, at, 0, at+1, at+1)
	p.grant(1, 2*time.Minute, nil)
	c = p.names(t, [][]int{{2, 2}}, "in the slice that the server says, without the one that has gone")
	p.answered(c, 0, at+1, -1)
	p.grant(1, 10*time.Minute, nil)
	c = p.names(t, [][]int{{2, 1}}, "with the permits that others have left of one, however old they are by now")
	p.answered(c, 0, 0, 0)
	for range 4 {
		p.grant(1, 11*time.Minute, merge.NewMember(p.draw(), 2))
	}
	c = p.names(t, [][]int{{2, 2, 2, 2}})
	at = p.sliceAt(11 * time.Minute)
	p.answered(c, 0, at, -1, at, at)
	p.grant(1, 13*time.Minute, nil)
	p.names(t, [][]int{{2, 2, 2}}, "without one whose grant would give back more than is left of it")
	for what, answer := range map[string][]int64{"a low rate": {128, 1000}, "no limiter": {0}} {
		p := newProgram(1000, time.Minute, 40)
		c, _ := p.Name(p.draw)
		require.NotNil(t, c)
		assert.Empty(t, c.Answered(answer, time.Now(), false), what)
		p.names(t, nil, what)
	}
}

func TestLog_LeavesLowRatesAloneAndAsksForUnknownOnes(t *testing.T) {
	t.Parallel()
	p := newProgram(128, time.Minute, 128)
	assert.Zero(t, p.due)
	p.Log = &merge.Log{}
	asked := 0
	for range 9 {
		if _, asks := p.Add(p.draw(), 1, p.start, nil); asks {
			asked++
		}
	}
	assert.Equal(t, 2, asked, "after a few grants the interval is worth asking for")
	p.Learn(129, time.Minute)
	p.grant(24, 0, nil)
	p.grant(20, 0, nil)
	assert.Equal(t, 1, p.due, "these few count")
	p = newProgram(100, time.Minute, 0)
	for range 129 {
		_, asks := p.Add(p.draw(), 1, p.start, nil)
		assert.False(t, asks)
	}
	_, asks := p.Add(p.draw(), 1, p.start, nil)
	assert.True(t, asks, "it can't be as low any more")
}

func TestLog_CountsGrantsOfTheLastInterval(t *testing.T) {
	t.Parallel()
	p := newProgram(1000, time.Minute, 0)
	for i := range 300 { // 30 in an interval
		p.grant(1, time.Duration(i)*2*time.Second, nil)
	}
	p.names(t, nil)
	p.grant(100, 11*time.Minute, nil)
	assert.Positive(t, p.due)
}

func TestMember_GoesBackByWhatItHasBecome(t *testing.T) {
	t.Parallel()
	p := newProgram(1000, time.Minute, 32)
	first, second, third := merge.NewMember(p.draw(), 2), merge.NewMember(p.draw(), 2), merge.NewMember(p.draw(), 2)
	p.grant(1, 0, nil)
	for _, m := range []*merge.Member{first, second, third} {
		p.grant(1, 0, m)
	}
	back := &merge.Return{Permits: 1}
	require.NotNil(t, first.Add(back))
	c, start := p.Name(p.draw)
	assert.Empty(t, start)
	require.Equal(t, [][]int{{2, 2, 2}}, groups(t, c), "permits of the first go back")
	_, permits, all := first.Next()
	assert.EqualValues(t, 2, permits)
	assert.Equal(t, []*merge.Return{back}, all)
	late := &merge.Return{Permits: 2}
	assert.Nil(t, third.Add(late), "a call that may merge it is under way")
	start = p.answered(c, p.sliceAt(0))
	require.Len(t, start, 1)
	assert.Same(t, second, start[0], "it stands for the others")
	assert.Nil(t, second.Add(&merge.Return{Permits: 1}), "its permits go back already")
	bytes, permits, all := start[0].Next()
	assert.EqualValues(t, 6, permits)
	assert.Len(t, all, 2)
	assert.NotEmpty(t, bytes)
	assert.False(t, second.WentBack(3, nil))
	_, _, all = second.Next()
	assert.Empty(t, all)
	p.grant(1, 0, nil)
	p.names(t, [][]int{{3, 2}}, "what has gone back is not merged again")
}

// A call that gave permits back got no answer. A group with the member would mostly not be as it is named.
func TestMember_WithUnknownPermitsIsNotNamed(t *testing.T) {
	t.Parallel()
	p := newProgram(1000, time.Minute, 32)
	m := merge.NewMember(p.draw(), 2)
	p.grant(1, 0, m)
	p.grant(3, 0, nil)
	require.NotNil(t, m.Add(&merge.Return{Permits: 1}))
	m.Next()
	m.WentBack(0, errors.New("no answer"))
	m.Next()
	p.names(t, [][]int{{2, 2, 2}})
}

func TestCall_ThatFailedLeavesItsMembersAlone(t *testing.T) {
	t.Parallel()
	p := newProgram(1000, time.Minute, 32)
	m := merge.NewMember(p.draw(), 2)
	p.grant(1, 0, m)
	p.grant(3, 0, nil)
	c, _ := p.mustName(t)
	require.Nil(t, m.Add(&merge.Return{Permits: 2}))
	assert.Equal(t, []*merge.Member{m}, c.Failed(false))
	assert.True(t, m.WentBack(0, nil), "it may have been merged")
	p.grant(1, 0, m)
	p.names(t, nil)
	p.grant(2, 0, nil)
	c = p.names(t, [][]int{{2, 2}}, "others are merged")
	assert.Empty(t, c.Failed(true))
	p.grant(20, 0, nil)
	p.names(t, nil, "the server refuses the script")
	p.Learn(1000, time.Minute)
	p.grant(20, time.Minute, nil)
	p.names(t, nil, "for an interval")
	p.grant(32+20, 2*time.Minute, nil)
	c, _ = p.Name(p.draw)
	assert.NotNil(t, c)
}

// While a call is under way that takes long, more is granted than is remembered. Once it has ended, others merge.
func TestLog_GoesOnAfterACallThatTookLong(t *testing.T) {
	t.Parallel()
	p := newProgram(1000, time.Minute, 32+20)
	c, _ := p.mustName(t)
	p.grant(1100, 0, nil)
	p.grant(1, 0, merge.NewMember(p.draw(), 2))
	assert.Equal(t, 1, p.due)
	p.answered(c, p.sliceAt(0))
	p.grant(1, 0, merge.NewMember(p.draw(), 2))
	assert.Equal(t, 2, p.due)
	_, named := p.mustName(t)
	assert.Len(t, named, 1025, "those that it remembers, and what stands for the first")
}

// What another attempt of a call may still merge, though this one's answer says no, is not merged otherwise.
func TestCall_DoubtfulAnswerLeavesMembersAlone(t *testing.T) {
	t.Parallel()
	for what, numbers := range map[string][]int64{"too low a rate": {100, 60_000}, "not there": {1000, 60_000, 0, 0, 0, 7, 7}} {
		p := newProgram(1000, time.Minute, 32)
		m := merge.NewMember(p.draw(), 2)
		p.grant(1, 0, nil)
		p.grant(1, 0, m)
		c, _ := p.mustName(t)
		require.Empty(t, c.Answered(numbers, time.Now(), true))
		require.NotNil(t, m.Add(&merge.Return{Permits: 2}))
		assert.True(t, m.WentBack(0, nil), what)
	}
}

// What merge.lua never answers, a server may.
func TestCall_SurvivesAnyAnswer(t *testing.T) {
	t.Parallel()
	for _, numbers := range [][]int64{{1000, 60_000, 0}, {1000, 0, 0, 0}, {1000, 60_000, 0, -1}, {-1, -1, -1, -1, -1}, {1000, 60_000, 0, 256, 7}} {
		p := newProgram(1000, time.Minute, 32+4)
		c, _ := p.mustName(t)
		assert.NotPanics(t, func() { c.Answered(slices.Clip(numbers), time.Now(), false) }, numbers)
		assert.NotPanics(t, func() { p.grant(40, 0, nil) }, numbers)
	}
}

// Grants that have gone back are forgotten, however many: otherwise nothing else would be merged.
func TestLog_ForgetsWhatHasGoneBack(t *testing.T) {
	t.Parallel()
	p := newProgram(1000, 64*time.Minute, 32)
	for range 200 {
		m := merge.NewMember(p.draw(), 2)
		before := p.due
		p.grant(1, time.Second, m)
		require.NotNil(t, m.Add(&merge.Return{Permits: 2}))
		m.Next()
		m.WentBack(2, nil)
		m.Next()
		if p.due > before {
			p.names(t, nil)
		}
	}
	p.grant(20, time.Second, nil)
	c, _ := p.Name(p.draw)
	assert.NotEmpty(t, groups(t, c))
}
