package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/fuzztest"
	"github.com/rratelimiter/rratelimiter/internal/words"
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
	const (
		form     = "want permits/interval, such as 100/s, 5/500ms or 1000/1d"
		permits  = " is not a number of permits, 1 to 9007199254740991"
		interval = " is not an interval from 1ms to 106751d, such as s, 500ms, 1m30s or 1d"
	)
	for text, want := range map[string]string{
		"":                    form,
		"100":                 form,
		"/1s":                 `""` + permits,
		"0/s":                 `"0"` + permits,
		"0/1s":                `"0"` + permits,
		"many/1s":             `"many"` + permits,
		"1.5/1s":              `"1.5"` + permits,
		"-1/1s":               `"-1"` + permits,
		"9007199254740992/1s": `"9007199254740992"` + permits,
		"1/1.5ms":             `"1.5ms" is not a whole number of milliseconds`,
		"1/":                  `""` + interval,
		"1/1":                 `"1"` + interval,
		"1/min":               `"min"` + interval,
		"1/1s/1s":             `"1s/1s"` + interval,
		"1/0s":                `"0s"` + interval,
		"1/0d":                `"0d"` + interval,
		"1/-1s":               `"-1s"` + interval,
		"1/1us":               `"1us"` + interval,
		"1/106752d":           `"106752d"` + interval,
		"1/99999999999d":      `"99999999999d"` + interval,
		"1/1d-1s":             `"1d-1s"` + interval,
		"1/2h1d":              `"2h1d"` + interval,
		"1/1dd":               `"1dd"` + interval,
	} {
		_, _, err := parseRate(text)
		assert.ErrorContains(t, err, want, text)
	}
}

func FuzzParseRate(f *testing.F) {
	for _, text := range []string{
		"100/1s", "5/500ms", "1000/1h", "1/1h0m1s", "1/", "/", "-1/1s", "1/9223372036854ms", "9007199254740991/.5s", "10/d", "1/106751d1h", "1/0.1d2h",
	} {
		f.Add(text)
	}
	fuzztest.Run(f, func(t testing.TB, text string) {
		permits, interval, err := parseRate(text)
		if err != nil {
			if permits != 0 || interval != 0 {
				t.Errorf("%q: %d, %v beside %v", text, permits, interval, err)
			}
			return
		}
		if permits < 1 || permits > rratelimiter.MaxRate || interval < time.Millisecond || interval%time.Millisecond != 0 {
			t.Errorf("%q: %d, %v", text, permits, interval)
		}
		written := words.ShortRate(permits, interval.Milliseconds())
		if again, same, err := parseRate(written); err != nil || again != permits || same != interval {
			t.Errorf("%q is written as %q, which is %d, %v, %v", text, written, again, same, err)
		}
	})
}
