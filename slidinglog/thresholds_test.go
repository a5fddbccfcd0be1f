package slidinglog_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest/limittest"
	"github.com/rratelimiter/rratelimiter/limit"
	"github.com/rratelimiter/rratelimiter/slidinglog"
)

// thresholds runs test with a limiter of 3 a minute and the name of the hash of its thresholds, on all servers; "apart" with the
// hash in another slot of a cluster than the keys of keyIn.
func thresholds(t *testing.T, test func(t *testing.T, rdb redistest.Client, l *slidinglog.Limiter, hash string)) {
	t.Helper()
	redistest.Everywhere(t, func(t *testing.T, rdb redistest.Client) {
		for _, kind := range []string{"together", "apart"} {
			t.Run(kind, func(t *testing.T) {
				hash := redistest.Name(t)
				if kind == "together" {
					hash = limittest.Key(t)
				}
				test(t, rdb, slidinglog.New(limitertest.OpenClient(rdb), slidinglog.Config{Limit: 3, Window: time.Minute, Thresholds: hash}), hash)
			})
		}
	})
}

// keyIn returns a new key in the hash's slot if that has a hash tag.
func keyIn(t *testing.T, hash string) string {
	t.Helper()
	if strings.HasPrefix(hash, "{") {
		return hash + redistest.Name(t)
	}
	return redistest.Name(t)
}

var ofThresholds = map[string]func(t *testing.T, rdb redistest.Client, l *slidinglog.Limiter, hash string){
	"CountAtOnce": func(t *testing.T, rdb redistest.Client, l *slidinglog.Limiter, hash string) {
		countsAtOnce(t, rdb, l, l, hash, keyIn(t, hash))
		assert.Equal(t, 3, limittest.Grants(t, l, keyIn(t, hash), 5), "another key has the usual limit")
	},

	// One permit and several are decided by the same threshold, the one that is shown: also by 0, and by one with zeros in front.
	"AreWholeNumbers": func(t *testing.T, rdb redistest.Client, l *slidinglog.Limiter, hash string) {
		for text, want := range map[string]int64{
			"0": 0, "00": 0, "010": 10, "08": 8, "000000000000000000000007": 7, "9007199254740991": slidinglog.MaxLimit,
		} {
			key := keyIn(t, hash)
			require.NoError(t, rdb.HSet(t.Context(), hash, key, text).Err())
			assert.Equal(t, want, limitertest.Must(l.Threshold(t.Context(), key))(t), text)
			for _, n := range []int64{1, 2} {
				assert.Equal(t, want, limittest.Take(t, l, key, n).Limit, text)
			}
			assert.Equal(t, want > 0, rdb.Exists(t.Context(), key).Val() == 1, text)
		}
	},

	// A log that has rows already keeps them if the threshold is corrupt.
	"NotANumber": func(t *testing.T, rdb redistest.Client, l *slidinglog.Limiter, hash string) {
		ctx := t.Context()
		for _, text := range []string{
			"", "-1", "-0", "abc", "1.5", "1e3", " 5", "5 ", "+5", "0x10", "1_000", "9007199254740992", "99999999999999999999",
			strings.Repeat("0", 32) + "5", "5\x00", "NaN", "inf", "٣",
		} {
			key := keyIn(t, hash)
			assert.Equal(t, int64(2), limittest.Take(t, l, key, 1).Remaining)
			require.NoError(t, rdb.HSet(ctx, hash, key, text).Err())
			limittest.RequireCorrupt(t, rdb, []string{key, hash}, l, key,
				strconv.Quote(hash), strconv.Quote(key), "no whole number of 0 or more", strings.TrimRight(text, "\x00٣"))
			assert.True(t, limittest.Take(t, l, keyIn(t, hash), 1).Granted, "others are not concerned")

			_, err := l.Threshold(ctx, key)
			require.ErrorIs(t, err, limit.ErrCorrupt)
			assert.ErrorContains(t, err, strconv.Quote(hash))
			assert.ErrorContains(t, err, strconv.Quote(key))
			require.NoError(t, l.SetThreshold(ctx, key, 2))
			assert.Equal(t, 1, limittest.Grants(t, l, key, 4))
		}
	},

	"OfAnotherType": func(t *testing.T, rdb redistest.Client, l *slidinglog.Limiter, hash string) {
		ctx, key := t.Context(), keyIn(t, hash)
		require.NoError(t, rdb.Set(ctx, hash, "5", time.Hour).Err())
		limittest.RequireCorrupt(t, rdb, []string{key, hash}, l, key, strconv.Quote(hash))
		for _, err := range callAll(ctx, l, key) {
			require.ErrorIs(t, err, limit.ErrCorrupt)
			assert.ErrorContains(t, err, strconv.Quote(hash))
		}
	},

	"AreListed": func(t *testing.T, rdb redistest.Client, l *slidinglog.Limiter, hash string) {
		ctx := t.Context()
		assert.Empty(t, limitertest.Must(l.Thresholds(ctx))(t))
		want := map[string]int64{}
		for i := range int64(700) {
			key := fmt.Sprintf("user%d", i)
			want[key] = i
			require.NoError(t, l.SetThreshold(ctx, key, i))
		}
		want["largest"] = slidinglog.MaxLimit
		require.NoError(t, l.SetThreshold(ctx, "largest", slidinglog.MaxLimit))
		assert.Equal(t, want, limitertest.Must(l.Thresholds(ctx))(t))

		require.NoError(t, rdb.HSet(ctx, hash, "broken", "-1").Err())
		all, err := l.Thresholds(ctx)
		require.ErrorIs(t, err, limit.ErrCorrupt)
		assert.ErrorContains(t, err, `"broken"`)
		assert.Equal(t, want, all)
	},
}

func TestThresholds(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, ofThresholds, func(t *testing.T, test func(t *testing.T, rdb redistest.Client, l *slidinglog.Limiter, hash string)) {
		thresholds(t, test)
	})
}

// countsAtOnce checks that a change of a key's threshold, which another program makes, counts for the next decision.
func countsAtOnce(t *testing.T, rdb redistest.Client, l, other *slidinglog.Limiter, hash, key string) {
	t.Helper()
	ctx := t.Context()
	expect := func(threshold int64, granted int) {
		t.Helper()
		known, err := l.Threshold(ctx, key)
		require.NoError(t, err, key)
		assert.Equal(t, threshold, known, key)
		before := rdb.ZCard(ctx, key).Val()
		assert.Equal(t, granted, limittest.Grants(t, l, key, granted+1), key)
		assert.Equal(t, before+int64(granted), rdb.ZCard(ctx, key).Val(), "refusals leave nothing")
		d := limittest.Take(t, l, key, 1)
		assert.False(t, d.Granted, key)
		assert.Equal(t, threshold, d.Limit)
		assert.Zero(t, d.Remaining)
		assert.InDelta(t, time.Minute, d.RetryAfter, float64(30*time.Second))
	}
	expect(3, 3)
	require.NoError(t, other.SetThreshold(ctx, key, 5))
	expect(5, 2)
	require.NoError(t, rdb.HSet(ctx, hash, key, "6").Err())
	expect(6, 1)
	require.NoError(t, rdb.HSet(ctx, hash, key, "2").Err())
	expect(2, 0)
	require.NoError(t, other.ResetThreshold(ctx, key))
	expect(3, 0)
	require.NoError(t, other.SetThreshold(ctx, key, 0))
	expect(0, 0)
	require.NoError(t, rdb.HSet(ctx, hash, key, "8").Err())
	d := limittest.Take(t, l, key, 2)
	assert.True(t, d.Granted)
	assert.Zero(t, d.Remaining)
	require.NoError(t, rdb.HDel(ctx, hash, key).Err())
	expect(3, 0)
}

// A threshold may fall between a grant whose answer was lost and its repeat.
func TestThreshold_FallsToZeroBeforeRepeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		direct, m := redistest.Mini(t)
		proxy := redistest.MiniProxy(t, m)
		l := slidinglog.New(limitertest.OpenClient(proxy.Client(t, nil)), slidinglog.Config{Limit: 3, Window: time.Minute, Thresholds: "hash"})
		limittest.Take(t, l, "another", 1)
		calls := 0
		proxy.OnCommand(func(c redistest.Command) redistest.Action {
			if c.Name() != "evalsha" {
				return redistest.Pass
			}
			if calls++; calls == 1 {
				return redistest.DropAnswer
			}
			assert.NoError(t, direct.HSet(t.Context(), "hash", "ann", 0).Err())
			return redistest.Pass
		})
		d := limittest.Take(t, l, "ann", 2)
		d.ResetAfter = d.ResetAfter.Round(time.Second) // without what the repeat takes
		assert.Equal(t, limit.Decision{Granted: true, ResetAfter: time.Minute}, d)
	})
}

// Who chooses the thresholds' key gets none, and leaves them to the others.
func TestTake_RefusesKeyOfThresholds(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		l := slidinglog.New(limitertest.OpenClient(rdb), slidinglog.Config{Limit: 2, Window: time.Minute, Thresholds: "rate:limit:config"})
		limittest.RequireRefused(t, l, "rate:limit:config", 1, limit.ErrInvalidConfig, `"rate:limit:config"`, "Config.Thresholds")
		assert.Equal(t, 2, limittest.Grants(t, l, "rate:limit:ann", 3))
		require.NoError(t, l.SetThreshold(t.Context(), "rate:limit:ann", 3))
		assert.Equal(t, 1, limittest.Grants(t, l, "rate:limit:ann", 2))
		plain := slidinglog.New(limitertest.OpenClient(rdb), slidinglog.Config{Limit: 2, Window: time.Minute})
		assert.Equal(t, 2, limittest.Grants(t, plain, "rate:limit:other", 3))
	})
}

// callAll makes each call about thresholds, and returns their errors.
func callAll(ctx context.Context, l *slidinglog.Limiter, key string) []error {
	reads := []error{limitertest.Second(l.Threshold(ctx, key)), limitertest.Second(l.Thresholds(ctx))}
	return append(reads, l.SetThreshold(ctx, key, 1), l.ResetThreshold(ctx, key))
}

func TestThresholdInput(t *testing.T) {
	t.Parallel()
	rdb := limittest.Unreachable(t)
	l := slidinglog.New(limitertest.OpenClient(rdb), slidinglog.Config{Limit: 3, Window: time.Minute, Thresholds: "thresholds"})
	ctx, cancel := context.WithCancel(t.Context())
	for _, threshold := range []int64{-1, slidinglog.MaxLimit + 1} {
		err := l.SetThreshold(ctx, "orders", threshold)
		require.ErrorIs(t, err, limit.ErrInvalidConfig)
		assert.ErrorContains(t, err, `"orders"`)
		assert.ErrorContains(t, err, strconv.FormatInt(threshold, 10))
	}
	for _, err := range []error{l.SetThreshold(ctx, "", 1), l.ResetThreshold(ctx, ""), limitertest.Second(l.Threshold(ctx, ""))} {
		assert.ErrorIs(t, err, limit.ErrInvalidConfig)
	}
	none := slidinglog.New(limitertest.OpenClient(rdb), slidinglog.Config{Limit: 3, Window: time.Minute})
	broken := slidinglog.New(limitertest.OpenClient(rdb), slidinglog.Config{Limit: -3, Window: time.Minute, Thresholds: "thresholds"})
	for _, l := range []*slidinglog.Limiter{none, broken} {
		for _, err := range callAll(ctx, l, "orders") {
			assert.ErrorIs(t, err, limit.ErrInvalidConfig)
		}
	}
	cancel()
	for _, err := range callAll(ctx, l, "orders") {
		assert.ErrorIs(t, err, context.Canceled)
		assert.NotErrorIs(t, err, limit.ErrUnknownOutcome)
	}
}

// Writes whose answer is lost are not repeated: another program may have set another threshold since. Reads are.
func TestThresholdAnswerLost(t *testing.T) {
	t.Parallel()
	direct, hash := redistest.Redis(t), redistest.Name(t)
	proxy := redistest.StartProxy(t, redistest.Shared(t).Addr())
	ctx := t.Context()
	l := threeAMinuteOr(proxy.Client(t, nil), hash)
	require.NoError(t, direct.ScriptLoad(ctx, lua.Command.Source).Err())
	lose := func() { proxy.OnCommand(redistest.Nth(1, lua.Command.SHA, redistest.DropAnswer)) }
	lose()
	require.ErrorIs(t, l.SetThreshold(ctx, "orders", 7), limit.ErrUnknownOutcome)
	lose()
	assert.Equal(t, int64(7), limitertest.Must(l.Threshold(ctx, "orders"))(t))
	lose()
	assert.Equal(t, map[string]int64{"orders": 7}, limitertest.Must(l.Thresholds(ctx))(t))
	lose()
	require.ErrorIs(t, l.ResetThreshold(ctx, "orders"), limit.ErrUnknownOutcome)
	proxy.Settle(t)
	assert.Zero(t, direct.Exists(ctx, hash).Val())
}

func threeAMinuteOr(rdb redistest.Client, hash string) *slidinglog.Limiter {
	cfg := slidinglog.Config{Limit: 3, Window: time.Minute, Thresholds: hash}
	return slidinglog.New(rratelimiter.New(rdb, rratelimiter.WithCallTimeout(time.Minute)), cfg)
}

// Whatever servers have the log and its threshold, a change of the one counts for the other's next decision.
func TestThresholdsOnSeveralServers(t *testing.T) {
	t.Parallel()
	limitertest.Each(t, map[string]func(t *testing.T) redistest.Client{
		"cluster": func(t *testing.T) redistest.Client { return redistest.StartCluster(t, 3, 0).Client(t, nil) },
		"ring": func(t *testing.T) redistest.Client {
			// The shards are one server: it is the client that parts the keys.
			addr := redistest.Shared(t).Addr()
			ring := redistest.NewRing(map[string]string{"one": addr, "two": addr}, nil)
			t.Cleanup(func() { assert.NoError(t, ring.Close()) })
			return ring
		},
	}, func(t *testing.T, start func(t *testing.T) redistest.Client) {
		rdb, hash := start(t), redistest.Name(t)
		l, other := threeAMinuteOr(rdb, hash), threeAMinuteOr(rdb, hash)
		for _, suffix := range []string{"ann:/orders", "bob:/orders", "cid:/users", "dan:/", "{" + hash + "}:near"} {
			countsAtOnce(t, rdb, l, other, hash, redistest.Name(t)+suffix)
		}
	})
}

// A cluster client may send what only reads to any node. Replicas lag behind, and the pages of a scan must be of one server.
func TestThresholdsAreReadFromTheirMaster(t *testing.T) {
	t.Parallel()
	rdb, ctx := redistest.StartCluster(t, 3, 1).Client(t, &redistest.Options{RouteRandomly: true}), t.Context()
	hash := redistest.Name(t)
	l := threeAMinuteOr(rdb, hash)
	const count = 2000
	pipe := rdb.Pipeline()
	for i := range count {
		pipe.HSet(ctx, hash, strconv.Itoa(i), i)
	}
	require.NoError(t, limitertest.Second(pipe.Exec(ctx)))
	assert.Len(t, limitertest.Must(l.Thresholds(ctx))(t), count)
	for i := range int64(200) {
		require.NoError(t, l.SetThreshold(ctx, "ann", i))
		assert.Equal(t, i, limitertest.Must(l.Threshold(ctx, "ann"))(t))
		assert.Equal(t, i, limittest.Take(t, l, "ann", 1).Limit)
	}
}

// If an answer of the log's node or the threshold's is lost, the decision is right and its permits are taken once.
func TestAnswersLostOfALogAndItsThreshold(t *testing.T) {
	t.Parallel()
	addr, direct, ctx := redistest.Shared(t).Addr(), redistest.Redis(t), t.Context()
	key, hash := "{ann}"+redistest.Name(t), "{dan}"+redistest.Name(t) // of the slots 2326 and 13016
	logs, hashes := redistest.StartProxy(t, addr), redistest.StartProxy(t, addr)
	rdb := redistest.NewCluster([]redis.ClusterSlot{
		{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: logs.Addr()}}},
		{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: hashes.Addr()}}},
	}, &redistest.Options{ReadTimeout: 3 * time.Second, DialTimeout: time.Minute})
	t.Cleanup(func() { assert.NoError(t, rdb.Close()) })
	l := threeAMinuteOr(rdb, hash)
	require.NoError(t, direct.HSet(ctx, hash, key, 100).Err())
	taken := int64(0)
	take := func(n int64) {
		t.Helper()
		d := limittest.Take(t, l, key, n)
		assert.True(t, d.Granted)
		taken += n
		logs.Settle(t)
		hashes.Settle(t)
		assert.Equal(t, 100-taken, d.Remaining)
		assert.Equal(t, taken, direct.ZCard(ctx, key).Val())
	}
	take(1)
	before := logs.Requests() + hashes.Requests()
	take(1)
	assert.LessOrEqual(t, logs.Requests()+hashes.Requests()-before, 2, "a call of each")
	for _, fault := range []redistest.Action{redistest.DropAnswer, redistest.Cut, redistest.Swallow} {
		logs.OnCommand(redistest.Nth(1, "evalsha", fault))
		take(2)
		hashes.OnCommand(redistest.Nth(1, "evalsha", fault))
		take(3)
	}
}
