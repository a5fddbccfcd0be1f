package fixedwindow

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	_ "time/tzdata" // whatever the machine has

	"github.com/stretchr/testify/require"
)

// Windows follow each other without a gap, and one begins at the first minute of a later date than any before.
func TestAround_WindowsBeginWithANewDate(t *testing.T) {
	t.Parallel()
	draw := rand.New(rand.NewPCG(2, 9))
	for _, name := range []string{
		"UTC", "Europe/Berlin", "America/Sao_Paulo", "America/St_Johns", "America/Havana", "Pacific/Apia", "Asia/Kathmandu",
		"Africa/Cairo", "Asia/Beirut", "Australia/Lord_Howe", "Antarctica/Troll", "Atlantic/Azores", "Pacific/Kwajalein",
	} {
		loc, err := time.LoadLocation(name)
		require.NoError(t, err)
		for range 40 {
			now := time.Unix(draw.Int64N(4_000_000_000), 0)
			if draw.IntN(4) == 0 {
				now = time.Date(2028+4*draw.IntN(10), 12, 30, draw.IntN(72), draw.IntN(60), 0, 0, time.UTC)
			}
			for _, calendar := range []Calendar{Daily(loc), Monthly(loc), Weekly(loc, time.Weekday(draw.IntN(7)))} {
				moments := calendar.around(now)
				require.Len(t, moments, 4)
				require.True(t, slices.IsSortedFunc(moments, time.Time.Compare), "%s %v", name, moments)
				require.False(t, now.Before(moments[1]))
				require.True(t, now.Before(moments[2]))
				require.Equal(t, moments[1], calendar.around(moments[1])[1])
				require.Equal(t, moments[2], calendar.around(moments[2].Add(-1))[2])
				last := 0
				for at := moments[0].Add(-48 * time.Hour); at.Before(moments[0]); at = at.Add(time.Minute) {
					last = max(last, calendar.date(at))
				}
				require.Greater(t, calendar.date(moments[0]), last, "%s %v", name, moments[0])
			}
		}
	}
}

// date returns a number for the date of a moment, greater for later ones.
func (c Calendar) date(t time.Time) int {
	y, m, d := t.In(c.loc).Date()
	switch c.every {
	case week:
		days := int(time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() / (24 * 60 * 60)) // the first was a Thursday
		return (days + int(time.Thursday-c.first) + 7) / 7
	case month:
		d = 0
	default:
	}
	return (y*12+int(m))*31 + d
}
