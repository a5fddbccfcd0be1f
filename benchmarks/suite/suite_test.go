package suite_test

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/benchmarks/peer"
	"github.com/rratelimiter/rratelimiter/benchmarks/report"
	"github.com/rratelimiter/rratelimiter/benchmarks/server"
	"github.com/rratelimiter/rratelimiter/benchmarks/suite"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestMain(m *testing.M) {
	server.Serve()
	peer.Serve()
	os.Exit(m.Run())
}

// TestRun runs all sections of the short form for ours and one peer.
func TestRun(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "a real redis-server")
	const many = 1000
	r, err := suite.Run(t.Context(), suite.Options{
		Rounds:  1,
		Short:   true,
		Many:    many,
		Piled:   20_000,
		Stalled: 200,
		Only:    regexp.MustCompile("^(rratelimiter|redis_rate|EVALSHA)$"),
		Log:     t.Output(),
	})
	if errors.Is(err, server.ErrNoServer) {
		redistest.SkipOrFail(t, err.Error())
	}
	require.NoError(t, err)
	key := func(metric, name, network, mode string, callers, limiters int) report.Key {
		return report.Key{Metric: metric, Peer: name, Network: network, Mode: mode, Callers: callers, Limiters: limiters}
	}
	for _, name := range []string{peer.Ours, peer.RedisRate} {
		for _, mode := range []string{report.Granting, report.Refusing} {
			for _, metric := range []string{report.Rate, report.P99, report.ServerTime} {
				assert.Equal(t, 1, r.Of(key(metric, name, report.Direct, mode, 256, 1)).Rounds, metric)
				assert.Equal(t, 1, r.Of(key(metric, name, report.Direct, mode+report.Skewed, 256, many)).Rounds, metric)
			}
		}
		assert.Equal(t, 1, r.Of(key(report.Rate, name, report.Delayed, report.Granting, 256, 1)).Rounds)
		assert.Equal(t, 1, r.Of(key(report.BytesLimiter, name, report.Direct, report.Refusing, 256, many)).Rounds)
		assert.Equal(t, 1, r.Of(key(report.Allocations, name, report.Direct, "refusing, cancellable", 1, 1)).Rounds)
		assert.Equal(t, 1, r.Of(key(report.AfterIdle, name, report.Direct, suite.Crowds, 256, 1)).Rounds)
	}
	assert.Equal(t, 1, r.Of(key(report.Solo, peer.Ours, report.Direct, "refusing, plain", 1, 1)).Rounds)
	assert.Equal(t, 1, r.Of(key(report.Beside, peer.Ours, report.Delayed, "one limiter", 32, 1)).Rounds)
	assert.Equal(t, 1, r.Of(key(report.HungSlowest, peer.Ours, report.Direct, suite.Hung, 200, 200)).Rounds)
	assert.Equal(t, 1, r.Of(key(report.Longest, peer.Ours, report.Direct, suite.OneIsLeft, 1, 1)).Rounds)
	for k, values := range r.Values {
		if k.Metric == report.Wrong || k.Metric == report.Unaccounted {
			assert.Zero(t, slices.Max(values), k)
		}
	}
}
