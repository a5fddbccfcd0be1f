package middlewaretest

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

func (k Kind[O, K]) testBadOptions(t *testing.T) {
	var noOption O
	var noKey K
	all := map[string][]O{
		"no limiter":   nil,
		"nil option":   {noOption},
		"no prefix":    {k.WithPrefix("")},
		"no key":       {k.WithKey()},
		"nil key":      {k.WithKey(k.User, noKey)},
		"two tags":     {k.WithHashTag(), k.WithPrefix("{a}:")},
		"a brace":      {k.WithHashTag(), k.WithPrefix("a{:")},
		"another":      {k.WithHashTag(), k.WithPrefix("a}:")},
		"timeout":      {k.WithTimeout(-1)},
		"share":        {k.WithFailure(limit.FailLocal(0))},
		"no window":    {k.WithFailure(limit.FailLocal(1))},
		"nil fallback": {k.WithFallback(nil)},
		"nil observer": {k.WithObserver(nil)},
	}
	maps.Copy(all, k.Bad)
	for name, opts := range all {
		for _, shadow := range [][]O{nil, {k.WithShadow()}} {
			asked := Grants()
			var limiter limit.Limiter = asked
			if name == "no limiter" {
				limiter = nil
			}
			given := append(append([]O{k.WithFailure(limit.FailOpen())}, opts...), shadow...)
			bad := k.Check(limiter, given...)
			require.ErrorIs(t, bad, limit.ErrInvalidConfig, name)
			r := k.rig(t, limiter, given...)
			for range 2 {
				assert.Equal(t, Misconfigured, r.handle(t.Context(), "").Verdict, name)
				heard := r.errs.Take()
				require.Len(t, heard, 1)
				require.EqualError(t, heard[0], bad.Error(), name)
			}
			assert.Empty(t, asked.Asked(), name)
		}
	}
	require.NoError(t, k.Check(Grants()))
	require.NoError(t, k.Check(Grants(), k.WithKey(k.User), k.WithFallback(Grants())))
	wrong := misconfigured{Grants()}
	require.ErrorIs(t, k.Check(wrong), limit.ErrInvalidConfig, "of the limiter itself")
	require.ErrorIs(t, k.Check(Grants(), k.WithFallback(wrong)), limit.ErrInvalidConfig)
	for _, policy := range []limit.Limiter{k.settled(nil), k.Policy(Policy{Limiter: k.settled(Grants())})} {
		require.ErrorIs(t, k.Check(policy), limit.ErrInvalidConfig)
	}
	require.ErrorIs(t, k.Check(Grants(), k.WithFallback(k.settled(Grants()))), limit.ErrInvalidConfig, "a policy is no limiter")
	chosen := k.rig(t, k.planned(Grants(), func(string) limit.Limiter { return k.settled(Grants()) }))
	chosen.ask(Misconfigured, limit.ErrInvalidConfig)
}

// misconfigured is a limiter that says so.
type misconfigured struct{ limit.Limiter }

func (misconfigured) Err() error { return fmt.Errorf("%w: no", limit.ErrInvalidConfig) }

// keyOf returns the key of a request of which the parts are these.
func (k Kind[O, K]) keyOf(t testing.TB, opts []O, parts ...string) string {
	t.Helper()
	var keys []K
	for _, part := range parts {
		keys = append(keys, k.Text(part, nil))
	}
	limiter := Grants()
	k.rig(t, limiter, append(opts, k.WithKey(keys...))...).ask(Passed)
	return limiter.Key()
}

func (k Kind[O, K]) testKeys(t *testing.T) {
	long := strings.Repeat("x", 128)
	hashed := func(head, part string) string { return fmt.Sprintf("%s%%sha256-%x", head, sha256.Sum256([]byte(part))) }
	for part, want := range map[string]string{
		"":                                 "",
		"ann@example.org":                  "ann@example.org",
		"a:b":                              "a%3Ab",
		"{slot}":                           "%7Bslot%7D",
		"100%":                             "100%25",
		"%3A":                              "%253A",
		"a b\t\r\n\x00\x7f":                "a%20b%09%0D%0A%00%7F",
		"\xff\xc3":                         "%FF%C3",
		"Zoë 世界":                           "Zoë%20世界",
		"\u00a0\u202e\u2028":               "%C2%A0%E2%80%AE%E2%80%A8",
		"\ufffd":                           "\ufffd",
		"/local_time":                      "/local_time",
		"x%sha256-":                        "x%25sha256-",
		long:                               long,
		long + "x":                         hashed(long[:32], long+"x"),
		strings.Repeat(":", 43):            hashed(strings.Repeat("%3A", 10), strings.Repeat(":", 43)),
		"user-" + strings.Repeat("ü", 100): hashed("user-"+strings.Repeat("ü", 13), "user-"+strings.Repeat("ü", 100)),
	} {
		assert.Equal(t, k.Prefix+want, k.keyOf(t, nil, part))
	}
	prefix, tag := []O{k.WithPrefix("limit:")}, []O{k.WithHashTag()}
	assert.Equal(t, "limit:ann:/hello/world", k.keyOf(t, prefix, "ann", "/hello/world"), "as Java services write it")
	assert.Equal(t, "limit:a:", k.keyOf(t, prefix, "a", ""), "an empty part stays")
	assert.Equal(t, "{orders}:ann", k.keyOf(t, []O{k.WithPrefix("{orders}:")}, "ann"), "the application may choose the slot")
	for part, want := range map[string]string{"ann": "{ann}", "": "{%}", "%": "{%25}", "}{": "{%7D%7B}"} {
		assert.Equal(t, k.Prefix+want, k.keyOf(t, tag, part))
	}
	assert.Equal(t, k.Prefix+"{/items/1:ann}", k.keyOf(t, tag, "/items/1", "ann"))
}

// A Client warns of limiters whose keys meet, so it must know how they begin.
func (k Kind[O, K]) testPrefixIsNoted(t *testing.T) {
	for want, opts := range map[string][]O{
		k.Prefix: nil, "api:": {k.WithPrefix("api:")}, "api:{": {k.WithPrefix("api:"), k.WithHashTag()},
	} {
		rdb, _ := redistest.Mini(t)
		told := &limitertest.Recorder{}
		client := rratelimiter.New(rdb, limitertest.Patient(), rratelimiter.WithObserver(told))
		k.rig(t, client.Keyed("rate:", rratelimiter.PerHour(1)), opts...)
		require.NoError(t, client.Keyed("rate:"+want, rratelimiter.PerHour(2)).Limiter("key").Err())
		require.Eventually(t, func() bool { return len(told.Events()) > 0 }, time.Minute, time.Millisecond)
		assert.Equal(t, limit.RateDiffers, told.Events()[0].Kind, "the prefix is %q", want)
		require.NoError(t, client.Close(t.Context()))
	}
}

// An observer receives by what a request was counted, and the figures of the answer.
func (k Kind[O, K]) testDecided(t *testing.T) {
	t.Helper()
	r := k.rig(t, Budget(2, time.Minute), k.WithKey(k.User))
	for _, user := range []string{"ann", "a:b", "ann"} {
		r.handle(t.Context(), user)
	}
	r.errs.Check(t)
	var all []limit.Decided
	for _, d := range r.told.Decisions() {
		all = append(all, limit.Decided{Key: d.Key, Outcome: d.Outcome, Limit: d.Limit, Remaining: d.Remaining})
	}
	assert.Equal(t, []limit.Decided{
		{Key: k.Prefix + "ann", Outcome: limit.Granted, Limit: 2, Remaining: 1},
		{Key: k.Prefix + "a%3Ab", Outcome: limit.Granted, Limit: 2},
		{Key: k.Prefix + "ann", Outcome: limit.Refused, Limit: 2},
	}, all)

	costly := k.rig(t, Says(limit.Decision{Limit: 1}, limit.ErrPermitsExceedRate), k.WithKey(k.User))
	costly.handle(t.Context(), "ann")
	down := k.rig(t, Says(limit.Decision{}, errDown), k.WithKey(k.User), k.WithFailure(limit.FailOpen()))
	down.handle(t.Context(), "ann")
	d := append(costly.told.Decisions(), down.told.Decisions()...)
	assert.Equal(t, []any{k.Prefix + "ann", int64(1), limit.TooCostly}, []any{d[0].Key, d[0].Limit, d[0].Outcome})
	assert.Equal(t, []any{k.Prefix + "ann", int64(0), limit.Granted}, []any{d[1].Key, d[1].Limit, d[1].Outcome}, "no figures")
}

// Without an error handler, slog's default logger gets the errors.
func (k Kind[O, K]) testLog(t *testing.T) {
	var out strings.Builder
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	defer slog.SetDefault(before)
	k.Wrap(t, Says(limit.Decision{}, errDown))(t.Context(), "")
	assert.Contains(t, out.String(), errDown.Error())
	assert.Contains(t, out.String(), "level=ERROR")
}

// Limiters returns each limiter of this module, of 5 in 10 seconds.
func Limiters(t *testing.T, rdb redistest.Client, opts ...rratelimiter.Option) map[string]limit.Limiter {
	t.Helper()
	client := limitertest.NewClient(t, rdb, opts...)
	return map[string]limit.Limiter{
		"keyed":       client.Keyed("rate:", rratelimiter.Config{Rate: 5, Interval: 10 * time.Second}),
		"fixedwindow": fixedwindow.New(client, fixedwindow.Config{Limit: 5, Window: 10 * time.Second}),
		"slidinglog":  slidinglog.New(client, slidinglog.Config{Limit: 5, Window: 10 * time.Second}),
		"tokenbucket": tokenbucket.New(client, tokenbucket.Config{Capacity: 5, Refill: 5, Interval: 10 * time.Second}),
	}
}

// What a limiter says of a failure, to the error handler, names no call that only middleware makes.
func (k Kind[O, K]) testErrorsNameTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb, m := redistest.Mini(t)
		m.SetError("MISCONF no disk")
		for name, limiter := range Limiters(t, rdb) {
			all := []limit.Limiter{limiter}
			if k.Settle != nil {
				all = append(all, k.settled(limiter))
			}
			for _, limiter := range all {
				r := k.rig(t, limiter, k.WithPrefix(name+":"))
				assert.Equal(t, Unavailable, r.handle(t.Context(), "").Verdict, name)
				heard := r.errs.Take()
				require.Len(t, heard, 1)
				assert.ErrorContains(t, heard[0], `: Take "`, name)
			}
		}
	})
}
