package connect_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/internal/test/fuzztest"
)

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
		opts, err := connect.ParseURL(scheme + "://" + user + ":" + password + rest)
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
		_, err := connect.ParseURL(address)
		if assert.ErrorContains(t, err, "the server's URL", address) {
			assert.NotContains(t, err.Error(), "sec", address)
		}
	}
	_, err := connect.ParseURL("redis://ann:secret@host/x")
	assert.ErrorContains(t, err, `invalid database number: "x"`)
}
