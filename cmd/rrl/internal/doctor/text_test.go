package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestTheProbeTriesWhatLimitersNeed(t *testing.T) {
	t.Parallel()
	tried := []string{"eval", "evalsha"}
	for _, c := range needed {
		tried = append(tried, c[0])
	}
	assert.ElementsMatch(t, strings.Fields(strings.ReplaceAll(redistest.LeastCommands, "+", "")), tried)
}

func TestOlderVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"5.0.14": true, "6.0.20": true, "6.2.0": false, "6.10": false, "7.0.15": false, "10": false, "5": true,
	} {
		assert.Equal(t, want, older(version, oldestRedis), version)
	}
}

func TestReportForPeople(t *testing.T) {
	t.Parallel()
	r := &Report{Name: "the cluster of a:1 and 2 more", TookMS: 1234, Worst: Error, Findings: []Finding{
		{
			Check: "rights", Level: Error, Text: "user least may not run get, zadd",
			Reason: "calls of limiters fail with NOPERM", Advice: "ACL SETUSER with +get +zadd",
		},
		{
			Check: "eviction", Level: Warning, Server: "a:1", Text: "maxmemory-policy is volatile-lru",
			Reason: "a limiter whose keys are evicted starts anew", Advice: "set maxmemory-policy to noeviction",
		},
		{Check: "version", Level: Fine, Server: "a:1", Text: "Redis 7.0.15 \x1b[2J \"x\""},
	}}
	for _, columns := range []int{40, 80, 200} {
		text := Text(r, columns, func(_, text string) string { return text })
		for line := range strings.Lines(text) {
			assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), columns, line)
		}
		if columns == 80 {
			want, err := os.ReadFile(filepath.Join("testdata", "report-80.txt"))
			require.NoError(t, err)
			assert.Equal(t, string(want), text)
		}
	}
}
