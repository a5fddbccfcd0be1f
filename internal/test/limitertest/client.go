// Package limitertest holds what several folders of tests share: limiters of new names, what Redis holds of them, callers whose
// outcomes a test names by their moment (Scene, HeldScene), a limiter behind a proxy that meets faults (Wire), several limiters
// at once (Family), and what a Redisson would do (Java).
package limitertest

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// NewClient returns a Client that is closed when t ends. It waits for its calls with redistest.Patience, unless an option says how long.
func NewClient(t testing.TB, rdb rratelimiter.Redis, opts ...rratelimiter.Option) *rratelimiter.Client {
	t.Helper()
	client := OpenClient(rdb, opts...)
	t.Cleanup(func() { assert.NoError(t, client.Close(context.Background())) })
	return client
}

// OpenClient is NewClient for a Client that no test closes.
func OpenClient(rdb rratelimiter.Redis, opts ...rratelimiter.Option) *rratelimiter.Client {
	return rratelimiter.New(rdb, append([]rratelimiter.Option{Patient()}, opts...)...)
}

// NewHandle returns a limiter of a new name and a Client of its own. Nothing is set up in Redis.
func NewHandle(t testing.TB, rdb rratelimiter.Redis, opts ...rratelimiter.LimiterOption) *rratelimiter.RateLimiter {
	t.Helper()
	return NewClient(t, rdb).RateLimiter(redistest.Name(t), opts...)
}

// CheckIdle closes a Client, and checks that it had nothing to wait for: no call, caller, lease or background work is left.
func CheckIdle(t testing.TB, client *rratelimiter.Client) {
	t.Helper()
	assert.NoError(t, client.Close(EndedContext(t)), "something is under way")
}

// NewLimiter is NewHandle with a rate set.
func NewLimiter(t testing.TB, rdb rratelimiter.Redis, cfg rratelimiter.Config) *rratelimiter.RateLimiter {
	t.Helper()
	return NewLimiterOf(t, NewClient(t, rdb), redistest.Name(t), cfg)
}

// NewLimiterOf returns a Client's limiter of that name, with a rate set.
func NewLimiterOf(t testing.TB, c *rratelimiter.Client, name string, cfg rratelimiter.Config) *rratelimiter.RateLimiter {
	t.Helper()
	l := c.RateLimiter(name)
	MustTrySetRate(t, l, cfg)
	return l
}

// Every returns the Config of rate permits an interval, shared by all clients.
func Every(rate int64, interval time.Duration) rratelimiter.Config {
	return rratelimiter.Config{Rate: rate, Interval: interval}
}

// PerClient returns the Config of rate permits an interval for each client.
func PerClient(rate int64, interval time.Duration) rratelimiter.Config {
	return rratelimiter.Config{Type: rratelimiter.PerClient, Rate: rate, Interval: interval}
}

// Ahead is the option of leases that live that long, of the zero Lease for 0.
func Ahead(life time.Duration) rratelimiter.LimiterOption {
	return rratelimiter.WithLease(rratelimiter.Lease{Life: life})
}

// BothTypes runs test as a subtest for each type of limiter.
func BothTypes(t *testing.T, test func(t *testing.T, kind rratelimiter.RateType)) {
	t.Helper()
	Each(t, Rows(rratelimiter.Overall, rratelimiter.PerClient), test)
}

// MustTrySetRate gives a limiter its first rate.
func MustTrySetRate(t testing.TB, l *rratelimiter.RateLimiter, cfg rratelimiter.Config) {
	t.Helper()
	require.True(t, Must(l.TrySetRate(t.Context(), cfg))(t), "the limiter had a rate already")
}

// Try asks once and reports whether the permits were granted.
func Try(t testing.TB, l *rratelimiter.RateLimiter, permits int64) bool {
	t.Helper()
	return Must(l.TryAcquire(t.Context(), permits, 0))(t)
}

// MustAcquire takes permits that must be free.
func MustAcquire(t testing.TB, l *rratelimiter.RateLimiter, permits int64) {
	t.Helper()
	require.True(t, Try(t, l, permits), "%d permits were refused", permits)
}

// MustRefuse asks for permits that must not be free.
func MustRefuse(t testing.TB, l *rratelimiter.RateLimiter, permits int64) {
	t.Helper()
	require.False(t, Try(t, l, permits), "%d permits were granted", permits)
}

// TryAll asks once for permits of all limiters.
func TryAll(t testing.TB, client *rratelimiter.Client, permits int64, limiters ...*rratelimiter.RateLimiter) bool {
	t.Helper()
	return Must(client.TryAcquireAll(t.Context(), 0, Claims(permits, limiters...)...))(t)
}

// Take is Take of a call that does not fail.
func Take(t testing.TB, l *rratelimiter.RateLimiter, permits int64) limit.Decision {
	t.Helper()
	return Must(l.Take(t.Context(), permits))(t)
}

// Reserve reserves permits that are free.
func Reserve(t testing.TB, l *rratelimiter.RateLimiter, permits int64, opts ...rratelimiter.ReserveOption) *rratelimiter.Reservation {
	t.Helper()
	r := Must(l.Reserve(t.Context(), permits, 0, opts...))(t)
	require.True(t, r.Granted, "%d permits are free", permits)
	return r
}

// ConfigOf returns the rate of a limiter that has one.
func ConfigOf(t testing.TB, l *rratelimiter.RateLimiter) rratelimiter.Config {
	t.Helper()
	return Must(l.Config(t.Context()))(t)
}

// Grants asks for one permit, tries times, and returns how often it was granted.
func Grants(t testing.TB, l *rratelimiter.RateLimiter, tries int) int {
	t.Helper()
	granted := 0
	for range tries {
		if Try(t, l, 1) {
			granted++
		}
	}
	return granted
}

// Available returns the free permits.
func Available(t testing.TB, l *rratelimiter.RateLimiter) int64 {
	t.Helper()
	return Must(l.AvailablePermits(t.Context()))(t)
}

// TakeOnce gives a limiter a rate, unless it has one, and takes permits by a Client of its own whose id is "id" and the suffix.
func TakeOnce(t testing.TB, rdb redistest.Client, name string, cfg rratelimiter.Config, id string, permits int64) {
	t.Helper()
	client := rratelimiter.New(rdb, Patient(), rratelimiter.WithClientID("id"+id))
	defer func() { require.NoError(t, client.Close(t.Context())) }()
	require.True(t, Must(client.RateLimiter(name, rratelimiter.WithDefault(cfg)).TryAcquire(t.Context(), permits, 0))(t))
}

// Must takes what a call returns that must not fail, as Must(l.Config(ctx))(t).
func Must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

// Second returns the error of a call of which nothing else matters.
func Second[T any](_ T, err error) error { return err }

// BeforeScript returns a hook that calls f before each call of a script.
func BeforeScript(script *lua.Script, f func()) redistest.Hook {
	return redistest.BeforeCommands(func(cmds ...redis.Cmder) {
		for _, cmd := range cmds {
			if redistest.Calls(cmd, script.SHA) {
				f()
			}
		}
	})
}

// Slow returns a hook that makes each command that is sent by itself take a while.
func Slow(by time.Duration) redistest.Hook {
	return func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		if len(cmds) == 1 {
			time.Sleep(by)
		}
		return next()
	}
}

// Counter counts the commands that a go-redis client sends.
type Counter struct{ names redistest.List[string] }

// CountCommands counts what rdb sends from now on, those of pipelines one by one. Calls that merge
// members do not count: they are no caller's, and go beside others when there is enough to merge.
func CountCommands(rdb redistest.Client) *Counter {
	c := &Counter{}
	rdb.AddHook(redistest.BeforeCommands(func(cmds ...redis.Cmder) {
		for _, cmd := range cmds {
			if !isMerging(cmd) {
				c.names.Add(cmd.Name())
			}
		}
	}))
	return c
}

// isMerging reports whether a command is a call that merges members.
func isMerging(cmd redis.Cmder) bool {
	text := ""
	if args := cmd.Args(); len(args) > 1 {
		text, _ = args[1].(string)
	}
	return ScriptOf(text) == lua.Merge
}

// Total returns the number of commands sent.
func (c *Counter) Total() int { return len(c.names.All()) }

// Scripts returns the number of script calls sent.
func (c *Counter) Scripts() int {
	return len(slices.DeleteFunc(c.names.All(), func(name string) bool { return !strings.HasPrefix(name, "eval") }))
}

// A Mutant is a fault put into scripts, for tests of tests: in Script, or in all that have it if that is nil, the text Old becomes New.
type Mutant struct {
	Script   *lua.Script
	Old, New string
}

// Faults that histories of callers must tell, and rounds of chaos some of them.
var (
	CostsLess     = Mutant{Old: `call('DECRBY', value_key, sum_text)`, New: `call('DECRBY', value_key, sum_text - 1)`}
	GivesNoneBack = Mutant{
		Script: lua.GiveBack, Old: `local permits = math.min(tonumber(ARGV[2]), permits_of(member))`, New: `local permits = 0`,
	}
	ResetsNone  = Mutant{Script: lua.Reset, Old: `return redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])`, New: `return 2`}
	SettlesNone = Mutant{
		Script: lua.SettleReservation, Old: "return_permits(config, row, back, not state.unset and state.free, state.window)", New: "back = 0",
	}
	MergesToOld = Mutant{
		Script: lua.Merge, Old: "call('ZADD', permits_key, scores[2], merged)", New: "call('ZADD', permits_key, scores[2] - interval, merged)",
	}
)

// A Mutation is a hook that sends other scripts than it is given: those in For, by source and by SHA.
type Mutation struct {
	redistest.Hook

	For map[string]string
}

// Mutation returns a hook by which a client runs the mutant in place of the script.
func (m Mutant) Mutation(t testing.TB) Mutation {
	t.Helper()
	changed := map[string]string{}
	for _, s := range lua.All() {
		if m.Script != nil && m.Script != s || m.Script == nil && !strings.Contains(s.Source, m.Old) {
			continue
		}
		require.Equal(t, 1, strings.Count(s.Source, m.Old), "how often script %s has the text: %s", s.Name, m.Old)
		source := strings.Replace(s.Source, m.Old, m.New, 1)
		sum := sha1.Sum([]byte(source))
		changed[s.Source], changed[s.SHA] = source, hex.EncodeToString(sum[:])
	}
	require.NotEmpty(t, changed, "no script has the text: %s", m.Old)
	return Mutation{For: changed, Hook: redistest.BeforeCommands(func(cmds ...redis.Cmder) {
		for _, cmd := range cmds {
			if args := cmd.Args(); len(args) > 1 && (cmd.Name() == "evalsha" || cmd.Name() == "eval") {
				if other, ok := changed[args[1].(string)]; ok {
					args[1] = other
				}
			}
		}
	})}
}
