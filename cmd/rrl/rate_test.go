package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
)

func TestParseRate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		permits  int64
		interval time.Duration
	}{
		"100/1s":              {100, time.Second},
		"5/500ms":             {5, 500 * time.Millisecond},
		"1000/1h":             {1000, time.Hour},
		"1/1ms":               {1, time.Millisecond},
		"7/1m30s":             {7, 90 * time.Second},
		"3/1.5s":              {3, 1500 * time.Millisecond},
		"9007199254740991/1s": {rratelimiter.MaxRate, time.Second},
	} {
		permits, interval, err := parseRate(text)
		require.NoError(t, err, text)
		assert.Equal(t, want.permits, permits, text)
		assert.Equal(t, want.interval, interval, text)
	}
}

func TestParseRateRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                    "want permits/interval, such as 100/1s or 5/500ms",
		"100":                 "want permits/interval, such as 100/1s or 5/500ms",
		"100/s":               `"s" is not an interval, such as 1s, 500ms or 1h`,
		"100/min":             `"min" is not an interval, such as 1s, 500ms or 1h`,
		"100/1":               `"1" is not an interval, such as 1s, 500ms or 1h`,
		"100/":                `"" is not an interval, such as 1s, 500ms or 1h`,
		"100/1s/1s":           `"1s/1s" is not an interval, such as 1s, 500ms or 1h`,
		"/1s":                 `"" is not a number of permits, 1 to 9007199254740991`,
		"many/1s":             `"many" is not a number of permits, 1 to 9007199254740991`,
		"1.5/1s":              `"1.5" is not a number of permits, 1 to 9007199254740991`,
		"0/1s":                `"0" is not a number of permits, 1 to 9007199254740991`,
		"-1/1s":               `"-1" is not a number of permits, 1 to 9007199254740991`,
		"9007199254740992/1s": `"9007199254740992" is not a number of permits, 1 to 9007199254740991`,
		"1/0s":                "interval 0s is not a whole number of milliseconds, at least 1",
		"1/-1s":               "interval -1s is not a whole number of milliseconds, at least 1",
		"1/1us":               "interval 1µs is not a whole number of milliseconds, at least 1",
		"1/1.5ms":             "interval 1.5ms is not a whole number of milliseconds, at least 1",
	} {
		_, _, err := parseRate(text)
		require.Error(t, err, text)
		assert.Contains(t, err.Error(), want, text)
	}
}
