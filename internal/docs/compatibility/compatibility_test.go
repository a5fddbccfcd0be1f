package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// recorded writes tables as tests do and reads them again.
func recorded(t *testing.T, tables map[string]string) (*results, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range tables {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".tsv"), []byte(text), 0o600))
	}
	return readResults(dir)
}

func TestPage(t *testing.T) {
	t.Parallel()
	r, err := recorded(t, map[string]string{
		"TestTurns": "4.7.0\tGo tryAcquire\t10\t0\tcluster\n4.7.0\tGo take\t5\t0\tsingle\n4.7.0\tJava tryAcquire\t7\t0\tsingle\n" +
			"4.7.0\tGo release\t3\t1\tsingle\n4.7.0\tJava release\t2\t0\tsingle\n3.12.3\tGo tryAcquire\t4\t0\tsingle\n",
		"TestHammer": "4.7.0\t100\t80\t0\t0\t100.0\t\n3.13.6\t90\t70\t2\t0\t99.0\tbad argument\n",
		"servers": "redis-7.0\tsingle\tpassed\t500\t0\t2\t40\nredis-7.0\ttls\tpassed\t400\t0\t9\t41\n" +
			"valkey-9.1\ttls\tn/a: built without TLS\t0\t0\t0\t1\n",
		"TestRowsTakenForPermits": "4.7.0\tlost\t9\tJava\t1\t1\n4.7.0\tlost\t9\tGo\t2\t1\n",
		"TestUnknown":             "what is this\n",
	})
	require.NoError(t, err)
	page := r.page()
	assert.Contains(t, r.files()["operations.csv"], "\n3.12.3,4/-,-/-,")
	assert.Contains(t, r.files()["operations.csv"], "\n4.7.0,15/7,**1 of 3 wrong**/2,")
	assert.Contains(t, r.files()["versions.csv"], "\n3.12.3,4,0,-,-,-,-,-\n")
	assert.Equal(t, "Redisson,cluster,single\n3.12.3,0,4\n4.7.0,10,17\n", r.files()["topologies.csv"])
	assert.Contains(t, page, "31 operations, with those of two versions, 1 came out wrong")
	assert.Contains(t, r.files()["versions.csv"], "\n3.13.6,-,-,90,70,99.0 %,0,2: bad argument\n4.7.0,27,1,100,")
	assert.Contains(t, r.files()["rows.csv"], "\n4.7.0,lost,9,1,2\n")
	assert.Contains(t, page, " 0 permits over the limit were in use")
	assert.Contains(t, page, "| tls | 400 | n/a |\n")
	assert.Contains(t, page, "| single | 500 | not run |\n")
	assert.Contains(t, page, "- valkey-9.1, tls: built without TLS\n")
	assert.NotContains(t, r.files(), "failovers.csv", "nothing was recorded of it")
	assert.NotContains(t, page, "## Failover", "nothing was recorded of it")
}
