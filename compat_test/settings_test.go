package compat_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// TestCodecsDoNotMatter: a Redisson's codec is for the values of applications, and
// useScriptCache decides how its scripts are sent. A limiter is the same with each.
func TestCodecsDoNotMatter(t *testing.T) {
	t.Parallel()
	driver, url := sharedDriver(t), redistest.Shared(t).URL()
	requireRelease(t, 3, 35)
	rdb := redistest.Redis(t)
	for _, codec := range []string{
		"org.redisson.codec.Kryo5Codec",
		"org.redisson.codec.JsonJacksonCodec",
		"org.redisson.codec.SerializationCodec",
		"org.redisson.client.codec.StringCodec",
	} {
		for _, cached := range []bool{false, true} {
			t.Run(codec+"/useScriptCache="+strconv.FormatBool(cached), func(t *testing.T) {
				t.Parallel()
				java := javaService{t, driver.openCodec(t, url, codec, cached)}
				goes := newGo(t, rdb)
				name := redistest.Name(t)
				share := func(first, second service) {
					t.Helper()
					require.True(t, first.TrySetRate(name, rratelimiter.PerMinute(10)))
					require.False(t, second.TrySetRate(name, rratelimiter.PerMinute(5)))
					rate, interval := second.Rate(name)
					require.EqualValues(t, 10, rate)
					require.Equal(t, time.Minute, interval)
					require.True(t, first.Try(name, 3))
					require.EqualValues(t, 7, second.Available(name))
					require.True(t, second.Try(name, 5))
					require.EqualValues(t, 2, first.Available(name))
					require.False(t, first.Try(name, 3))
					require.False(t, second.Try(name, 3))
					require.True(t, first.Try(name, 2))
					require.False(t, second.Try(name, 1))
					passTime(t, rdb, name, time.Minute)
					require.True(t, second.Try(name, 4))
					require.EqualValues(t, 6, first.Available(name))
					require.True(t, first.Delete(name))
					require.False(t, second.Exists(name))
				}
				share(java, goes)
				share(goes, java)
			})
		}
	}
}

// TestDatabasesMatter: a limiter is in one database, and of another one a Redisson
// knows nothing.
func TestDatabasesMatter(t *testing.T) {
	t.Parallel()
	url := redistest.Shared(t).URL()
	java := newJava(t, url+"/1")
	goes := newGo(t, redistest.Redis(t))
	name := redistest.Name(t)
	require.True(t, goes.TrySetRate(name, rratelimiter.PerMinute(1)))
	require.False(t, java.Exists(name))
	require.True(t, java.TrySetRate(name, rratelimiter.PerMinute(1)))
	require.True(t, goes.Try(name, 1))
	require.True(t, java.Try(name, 1))
	require.True(t, java.Delete(name))
	require.True(t, goes.Exists(name))
}
