package report_test

import (
	"bytes"
	"image/png"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/benchmarks/peer"
	"github.com/rratelimiter/rratelimiter/benchmarks/report"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

func rateOf(name string, callers, limiters int) report.Key {
	return report.Key{Metric: report.Rate, Peer: name, Network: report.Direct, Mode: report.Granting, Callers: callers, Limiters: limiters}
}

// example has all that a run measures of ours and Redisson.
func example() *report.Results {
	r := report.New()
	r.Note("redis", "7.0.15")
	r.Note("peer "+peer.Ours, "as it is")
	draw := rand.New(rand.NewPCG(1, 2))
	for _, name := range []string{peer.Ours, peer.Redisson, peer.RedisRate, peer.EVALSHA} {
		for _, network := range []string{report.Direct, report.Delayed} {
			for _, mode := range []string{report.Granting, report.Refusing} {
				for _, callers := range []int{1, 8, 64, 256, 1024} {
					for _, metric := range []string{report.Rate, report.P50, report.P99, report.ServerTime, report.ServerCPU} {
						for range 3 {
							k := rateOf(name, callers, 1)
							k.Network, k.Mode, k.Metric = network, mode, metric
							r.Add(k, 100*draw.Float64())
						}
					}
				}
			}
		}
		k := rateOf(name, 256, 1)
		k.Metric = report.BytesPermit
		r.Add(k, 100)
	}
	return r
}

func TestWriteAndRead(t *testing.T) {
	t.Parallel()
	r := report.New()
	r.Note("machine", "of: two cores")
	r.Add(rateOf("a, b", 8, 1), 1)
	r.Add(rateOf("a, b", 8, 1), 2.5)
	r.Add(rateOf("c", 1, 10_000), 1e6)
	var text bytes.Buffer
	require.NoError(t, r.Write(&text))
	got := limitertest.Must(report.Read(&text))(t)
	assert.Equal(t, r, got)
	assert.Equal(t, "of: two cores", got.Fact("machine"))
	for _, line := range []string{"too\tfew", "m\tp\tdirect\tgranting\tx\t1\t1", "m\tp\tdirect\tgranting\t1\tx\t1", "m\tp\tdirect\tgranting\t1\t1\tx"} {
		assert.Error(t, limitertest.Second(report.Read(strings.NewReader(line))), line)
	}
}

func TestRender(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "performance.md")
	page := "# Title\n\n<!-- begin figures -->\nold\n<!-- end -->\n\nbetween\n\n<!-- begin throughput -->\n<!-- end -->\nrest\n"
	require.NoError(t, os.WriteFile(path, []byte(page), 0o600))
	r := example()
	require.NoError(t, report.Render(r, dir))
	got := string(limitertest.Must(os.ReadFile(path))(t))
	assert.NotContains(t, got, "old")
	assert.True(t, strings.HasPrefix(got, "# Title\n\n<!-- begin figures -->\n| what |"), got)
	assert.Contains(t, got, "<!-- end -->\n\nbetween\n")
	assert.True(t, strings.HasSuffix(got, "<!-- end -->\nrest\n"), got)
	assert.Contains(t, got, "|  | 1 caller | 8 callers | 64 callers | 256 callers | 1024 callers |")
	assert.Contains(t, got, "| **rratelimiter** |")
	assert.Contains(t, got, "not measured")
	loads := limitertest.Must(os.ReadFile(filepath.Join(dir, "performance", "loads.csv")))(t)
	assert.Equal(t, 1+4*2*2*5, bytes.Count(loads, []byte("\n")), "a head, and a line for each load")
	plots := limitertest.Must(filepath.Glob(filepath.Join(dir, "performance", "*.png")))(t)
	assert.Len(t, plots, 5)
	for _, path := range plots {
		f := limitertest.Must(os.Open(path))(t)
		img, err := png.Decode(f)
		require.NoError(t, err, path)
		require.NoError(t, f.Close())
		assert.Equal(t, 1296, img.Bounds().Dx(), path)
	}
}

// TestRender_FillsInPages fills in what the repository shows, on a copy.
func TestRender_FillsInPages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	page := limitertest.Must(os.ReadFile("../../docs/performance.md"))(t)
	assert.Contains(t, string(page), "<!-- begin ")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "performance.md"), page, 0o600))
	require.NoError(t, report.Render(report.New(), dir))
}
