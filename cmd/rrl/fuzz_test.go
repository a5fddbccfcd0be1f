package main

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/fuzztest"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

func FuzzParseRate(f *testing.F) {
	for _, text := range []string{"100/1s", "5/500ms", "1000/1h", "1/1h0m1s", "1/", "/", "-1/1s", "1/9223372036854ms", "9007199254740991/.5s", "10/d", "1/106751d1h", "1/0.1d2h"} {
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
