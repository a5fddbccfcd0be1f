package words_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/words"
)

func TestFormatDuration(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", 250 * time.Millisecond: "250ms", 10 * time.Second: "10s", 10 * time.Minute: "10m", time.Hour: "1h",
		20*time.Hour + 30*time.Minute: "20h30m", time.Hour + 5*time.Second: "1h0m5s",
	} {
		assert.Equal(t, want, words.Duration(d))
	}
	assert.Equal(t, "9223372036854775807ms", words.Millis(math.MaxInt64))
	assert.Equal(t, "-9223372036854775808ms", words.Millis(math.MinInt64))
}

func TestSoonAndAgo_Rounding(t *testing.T) {
	t.Parallel()
	for ms, want := range map[int64][2]string{
		0: {"0s", "0s"}, 999: {"999ms", "999ms"}, 1_234: {"1.3s", "1.2s"}, 599_123: {"10m", "9m59s"}, 598_001: {"9m59s", "9m58s"},
		-1_234: {"-1.2s", "-1.3s"}, math.MaxInt64: {"9223372036854775807ms", "9223372036854775807ms"},
	} {
		assert.Equal(t, want, [2]string{words.Soon(ms), words.Ago(ms)}, "%dms", ms)
	}
}
