package chaos_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestARoundIsRecordedByItsServers(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("RRL_RESULTS", dir)
	r := &round{plan: *newPlan(7, 3, []string{cluster}), t: t, tb: fragile{t}}
	r.calls = []call{{Op: opTake, Limiters: []string{r.limiters[0].name}, Answer: granted}}
	r.events = []event{{kind: "slot moved"}, {kind: "slot moved"}}
	r.orders = []order{{kind: overall, result: porcupine.Ok, calls: 9, ordered: 9}}
	r.record()
	for table, want := range map[string]string{
		"chaos-rounds": "7\t3\tcluster\t" + string(r.mood) + "\t1\t2\t0\n",
		"chaos-faults": "7\t3\tcluster\tslot moved\t2\n",
		"chaos-orders": "7\t3\tcluster\t" + string(r.mood) + "\toverall\t9\t9\twhole\n",
		"chaos-calls":  "7\t3\tcluster\t" + string(r.limiters[0].kind) + "\tTake\tgranted\t1\n",
	} {
		text, err := os.ReadFile(filepath.Join(dir, table+".tsv"))
		require.NoError(t, err)
		assert.Equal(t, want, string(text))
	}
}
