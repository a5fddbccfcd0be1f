package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/fuzztest"
)

func FuzzParseRate(f *testing.F) {
	for _, text := range []string{"100/1s", "5/500ms", "1000/1h", "1/1h0m1s", "1/", "/", "-1/1s", "1/9223372036854ms", "9007199254740991/.5s"} {
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
		written := formatRate(permits, interval.Milliseconds())
		if again, same, err := parseRate(written); err != nil || again != permits || same != interval {
			t.Errorf("%q is written as %q, which is %d, %v, %v", text, written, again, same, err)
		}
	})
}

// FuzzParseURL is somebody who mistypes: no error shows the password.
func FuzzParseURL(f *testing.F) {
	f.Add("redis", "ann", "@127.0.0.1:6379/0")
	f.Add("rediss", "", "@[::1]:6379/1?db=2&read_timeout=-1&skip_verify=true")
	f.Add("unix", "ann:x", "@/run/redis.sock?db=x")
	f.Add("redis", "", "@host:port/%zz")
	f.Add("http", "%", "")
	f.Add("red\x7fis", "[", "@:0/0/0?max_retries=1e3")
	f.Add("", "", "@a@b:c?pool_size=99999999999999999999&dial_timeout=1&x=y")
	fuzztest.Run(f, func(t testing.TB, scheme, user, rest string) {
		const password = "oPeNsEsAmE"
		if strings.ContainsAny(scheme+user, ":/?#") {
			return // it is another part of the URL then
		}
		opts, err := parseURL(scheme + "://" + user + ":" + password + rest)
		switch {
		case err == nil && (opts == nil || opts.Addr == ""):
			t.Errorf("%q %q %q: no address", scheme, user, rest)
		case err != nil && (opts != nil || strings.Contains(err.Error(), password)):
			t.Errorf("%q %q %q: %v", scheme, user, rest, err)
		}
	})
}

func TestNoErrorShowsAPassword(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"redis://ann:sec/ret@host:6379", "redis://ann:sec?ret@host", "redis://ann:sec%ret@host", "redis://ann:secret",
		"redis://:12/sec@host:6379", "redis://ann@x:12/sec@host", "redis://:secret@local host:1",
	} {
		_, err := parseURL(address)
		if assert.ErrorContains(t, err, "the server's URL", address) {
			assert.NotContains(t, err.Error(), "sec", address)
		}
	}
	_, err := parseURL("redis://ann:secret@host/x")
	assert.ErrorContains(t, err, `invalid database number: "x"`)
}
