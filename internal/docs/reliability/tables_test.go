package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTables(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "fault,cluster,single,all\nanswer late,1200,5,1205\nslot moved,3,0,3\nall,1203,5,1208\n",
		faults([][]string{
			{"7", "1", "single", "answer late", "5"},
			{"7", "2", "cluster", "answer late", "1000"},
			{"7", "3", "cluster", "answer late", "200"},
			{"7", "3", "cluster", "slot moved", "3"},
		}))
	assert.Equal(t, "call,done,gone,granted,unknown,all\nTake,1,4,2,1,8\nall,1,4,2,1,8\n",
		calls([][]string{
			{"7", "1", "single", "a", "Take", "granted", "2"}, {"7", "1", "single", "a", "Take", "done", "1"},
			{"7", "1", "single", "a", "Take", "unknown", "1"}, {"7", "1", "single", "a", "Take", "gone", "4"},
		}))
	assert.Equal(t, "| servers | rounds | calls | faults | violations |\n|---|---:|---:|---:|---:|\n"+
		"| single | 2 | 110 | 20 | 1 |\n| all | 2 | 110 | 20 | 1 |\n",
		rounds([][]string{{"7", "1", "single", "gentle", "10", "9", "0"}, {"7", "2", "single", "lossy", "100", "11", "1"}}))
	assert.Equal(t, "| package | changes | noticed | survive | no test comes by | not tried on all tests |\n"+
		"|---|---:|---:|---:|---:|---:|\n| b | 1,100 | 1,000 | 70 | 20 | 10 |\n| a | 20 | 20 | 0 | 0 | 0 |\n"+
		"| all | 1,120 | 1,020 | 70 | 20 | 10 |\n",
		statements([][]string{{"a", "20", "20", "0", "0", "0"}, {"b", "1100", "1000", "70", "20", "10"}}))
}

func TestPage_HasAllTables(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", path))
	require.NoError(t, err)
	got, err := fill(string(text), t.TempDir())
	require.NoError(t, err)
	assert.NotEmpty(t, got)
	_, err = fill("a\n", t.TempDir())
	require.ErrorContains(t, err, "missing: [rounds statements]")
	_, err = fill("<!-- begin x -->\n<!-- end -->\n", t.TempDir())
	require.ErrorContains(t, err, `no table is called "x"`)
}
