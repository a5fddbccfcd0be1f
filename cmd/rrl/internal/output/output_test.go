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

func TestTimesAsPeopleSayThem(t *testing.T) {
	t.Parallel()
	for ms, want := range map[int64][2]string{
		0:             {"0s", "0s"},
		7:             {"7ms", "7ms"},
		999:           {"999ms", "999ms"},
		1_234:         {"1.3s", "1.2s"},
		599_123:       {"10m", "9m59s"},
		598_001:       {"9m59s", "9m58s"},
		3_600_000:     {"1h", "1h"},
		-1_234:        {"-1.2s", "-1.3s"},
		math.MaxInt64: {"9223372036854775807ms", "9223372036854775807ms"},
	} {
		assert.Equal(t, want, [2]string{output.Soon(ms), output.Ago(ms)}, "%dms", ms)
	}
}

func TestWrap(t *testing.T) {
	t.Parallel()
	p := &output.Printer{Width: 12, Color: true}
	for text, want := range map[string]string{
		"":                                       "",
		"short\n":                                "short\n",
		"twelve chars\n":                         "twelve chars\n",
		"some words more\n\nand one\n":           "some words\n  more\n\nand one\n",
		"  some words more":                      "  some words\n    more",
		"averylongwordindeed":                    "averylongwordindeed",
		p.Paint(output.Red, "some") + " words m": p.Paint(output.Red, "some") + " words m",
	} {
		assert.Equal(t, want, p.Wrap(text), "%q", text)
	}
	assert.Equal(t, "a long line without end", (&output.Printer{}).Wrap("a long line without end"))
	assert.Equal(t, "a lo…", output.Clip("a long name", 5))
	assert.Equal(t, "äöü", output.Clip("äöü", 3))
	assert.Empty(t, output.Clip("äöü", 0))
}
