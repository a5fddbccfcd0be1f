package fixedwindow

import (
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Calendar makes windows end at a date, in a time zone: see [Daily], [Weekly] and [Monthly]; or by the clock: see [Aligned].
// The zero Calendar is none.
type Calendar struct {
	every  period
	loc    *time.Location
	first  time.Weekday  // of a week
	length time.Duration // of aligned windows
}

type period int

const (
	never period = iota
	day
	week
	month
	aligned
)

// Daily makes windows end at midnight in a time zone. With a change to or from summer time a day has 23 or
// 25 hours, and if clocks skip midnight the day begins when they have skipped it.
func Daily(loc *time.Location) Calendar { return Calendar{every: day, loc: loc} }

// Weekly makes windows end at midnight before a day of the week, such as time.Monday, in a time zone.
func Weekly(loc *time.Location, first time.Weekday) Calendar {
	return Calendar{every: week, loc: loc, first: first}
}

// Monthly makes windows end at midnight before the first of the month, in a time zone.
func Monthly(loc *time.Location) Calendar { return Calendar{every: month, loc: loc} }

// Aligned makes windows of that length begin at its multiples since the beginning of 1970 in UTC, as many services count
// them: those of an hour at full hours, those of a day at midnight, those of seven days on Thursdays. The length is a whole
// number of milliseconds, at least a second.
func Aligned(length time.Duration) Calendar {
	return Calendar{every: aligned, loc: time.UTC, length: length}
}

// around returns the moments at which the window before that of t begins, that of t, the next, and the one after.
func (c Calendar) around(t time.Time) []time.Time {
	t = t.In(c.loc)
	y, m, d := t.Date()
	var starts []time.Time
	for i := -2; i <= 3; i++ {
		switch c.every {
		case month:
			starts = append(starts, startOf(y, m+time.Month(i), 1, c.loc))
		case week:
			since := (7 + int(t.Weekday()-c.first)) % 7
			starts = append(starts, startOf(y, m, d-since+7*i, c.loc))
		case aligned:
			ms := max(1, c.length.Milliseconds())
			starts = append(starts, time.UnixMilli((t.UnixMilli()/ms+int64(i))*ms))
		default:
			starts = append(starts, startOf(y, m, d+i, c.loc))
		}
	}
	starts = slices.CompactFunc(starts, time.Time.Equal) // a zone may leave out a day
	next := slices.IndexFunc(starts, t.Before)
	return starts[next-2 : next+2]
}

// startOf returns the first moment of a date in a time zone, that at which clocks first show its midnight or a
// later time: time.Date may return another if clocks are changed around midnight.
func startOf(y int, m time.Month, d int, loc *time.Location) time.Time {
	midnight := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	for from := midnight.Add(-48 * time.Hour).In(loc); ; { // no zone is two days off
		_, offset := from.Zone()
		_, until := from.ZoneBounds()
		if !until.IsZero() && !until.After(from) {
			until = from.Add(24 * time.Hour) // Go ends zones a day early in leap years
		}
		at := midnight.Add(time.Duration(-offset) * time.Second)
		if until.IsZero() || at.Before(until) {
			if at.Before(from) {
				return from
			}
			return at.In(loc)
		}
		from = until
	}
}

// clock knows the windows of a calendar by the server's clock, as far as that has told that it differs much from
// this program's.
type clock struct {
	calendar Calendar
	ahead    atomic.Int64 // how much the server's clock is, in ns
	known    atomic.Pointer[windows]
}

// windows are windows one after another, of which the second is the current one.
type windows struct {
	moments []time.Time
	text    any // the moments as scripts read them
}

// now returns the server's time.
func (c *clock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// hear learns the server's time from an answer, in epoch ms.
func (c *clock) hear(text string) {
	if ms, err := strconv.ParseInt(text, 10, 64); err == nil {
		c.ahead.Store(int64(time.Until(time.UnixMilli(ms))))
	}
}

// windows returns the current window with its neighbours.
func (c *clock) windows() *windows {
	now := c.now()
	if w := c.known.Load(); w != nil && !now.Before(w.moments[1]) && now.Before(w.moments[2]) {
		return w
	}
	w := &windows{moments: c.calendar.around(now)}
	var text []string
	for _, moment := range w.moments {
		text = append(text, strconv.FormatInt(moment.UnixMilli(), 10))
	}
	w.text = strings.Join(text, " ")
	c.known.Store(w)
	return w
}

// window returns when the current window begins and ends.
func (c *clock) window() (begin, end time.Time) {
	w := c.windows()
	return w.moments[1], w.moments[2]
}
