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
		"10/s":                {10, time.Second},
		"10/m":                {10, time.Minute},
		"10/h":                {10, time.Hour},
		"10/d":                {10, 24 * time.Hour},
		"10/ms":               {10, time.Millisecond},
		"10/1d":               {10, 24 * time.Hour},
		"5/90s":               {5, 90 * time.Second},
		"5/1d12h":             {5, 36 * time.Hour},
		"5/0.5d":              {5, 12 * time.Hour},
		"1/106751d":           {1, 106_751 * 24 * time.Hour},
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
		"":                    "want permits/interval, such as 100/s, 5/500ms or 1000/1d",
		"100":                 "want permits/interval, such as 100/s, 5/500ms or 1000/1d",
		"100/min":             `"min" is not an interval from 1ms to 106751d, such as s, 500ms, 1m30s or 1d`,
		"100/1":               `"1" is not an interval from 1ms to 106751d`,
		"100/":                `"" is not an interval from 1ms to 106751d`,
		"100/1s/1s":           `"1s/1s" is not an interval from 1ms to 106751d`,
		"/1s":                 `"" is not a number of permits, 1 to 9007199254740991`,
		"0/s":                 `"0" is not a number of permits, 1 to 9007199254740991`,
		"many/1s":             `"many" is not a number of permits, 1 to 9007199254740991`,
		"1.5/1s":              `"1.5" is not a number of permits, 1 to 9007199254740991`,
		"0/1s":                `"0" is not a number of permits, 1 to 9007199254740991`,
		"-1/1s":               `"-1" is not a number of permits, 1 to 9007199254740991`,
		"9007199254740992/1s": `"9007199254740992" is not a number of permits, 1 to 9007199254740991`,
		"1/0s":                `"0s" is not an interval from 1ms to 106751d`,
		"10/0d":               `"0d" is not an interval from 1ms to 106751d`,
		"1/-1s":               `"-1s" is not an interval from 1ms to 106751d`,
		"1/1us":               `"1us" is not an interval from 1ms to 106751d`,
		"1/1.5ms":             `"1.5ms" is not a whole number of milliseconds`,
		"1/106752d":           `"106752d" is not an interval from 1ms to 106751d`,
		"1/99999999999d":      `"99999999999d" is not an interval from 1ms to 106751d`,
		"1/1d-1s":             `"1d-1s" is not an interval from 1ms to 106751d`,
		"1/2h1d":              `"2h1d" is not an interval from 1ms to 106751d`,
		"1/1dd":               `"1dd" is not an interval from 1ms to 106751d`,
	} {
		_, _, err := parseRate(text)
		require.Error(t, err, text)
		assert.Contains(t, err.Error(), want, text)
	}
}
