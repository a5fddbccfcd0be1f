package output_test

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
)

func TestColours(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "word", (&output.Printer{}).Paint(output.Red, "word"))
	assert.Equal(t, "\x1b[31mword\x1b[0m", (&output.Printer{Color: true}).Paint(output.Red, "word"))
	assert.False(t, output.WantsColor(&bytes.Buffer{}, func(string) string { return "" }))
}

func TestFormatDuration(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0:                             "0s",
		time.Second:                   "1s",
		10 * time.Second:              "10s",
		time.Minute:                   "1m",
		10 * time.Minute:              "10m",
		time.Hour:                     "1h",
		20*time.Hour + 30*time.Minute: "20h30m",
		time.Hour + 5*time.Second:     "1h0m5s",
		250 * time.Millisecond:        "250ms",
	} {
		assert.Equal(t, want, output.Duration(d))
	}
}

func TestFormatMillisOfLongTimes(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "1h", output.Millis(3_600_000))
	assert.Equal(t, "9223372036854775807ms", output.Millis(math.MaxInt64))
}
