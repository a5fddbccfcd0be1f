package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTables(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "| fault | cluster | single | all |\n| --- | ---: | ---: | ---: |\n"+
		"| answer late | 1,200 | 5 | 1,205 |\n| slot moved | 3 | 0 | 3 |\n| all | 1,203 | 5 | 1,208 |\n",
		faults([][]string{
			{"7", "1", "single", "answer late", "5"},
			{"7", "2", "cluster", "answer late", "1000"},
			{"7", "3", "cluster", "answer late", "200"},
			{"7", "3", "cluster", "slot moved", "3"},
		}))
	assert.Equal(t, "| servers | rounds | calls | faults | violations |\n| --- | ---: | ---: | ---: | ---: |\n"+
		"| single | 2 | 110 | 20 | 1 |\n| all | 2 | 110 | 20 | 1 |\n",
		rounds([][]string{{"7", "1", "single", "gentle", "10", "9", "0"}, {"7", "2", "single", "lossy", "100", "11", "1"}}))
}

func TestReplace(t *testing.T) {
	t.Parallel()
	text, err := replace("a\n<!-- table x -->\nold\n<!-- end -->\nb\n<!-- table y -->\nold\n<!-- end -->\n", "x", "new\n")
	require.NoError(t, err)
	assert.Equal(t, "a\n<!-- table x -->\nnew\n<!-- end -->\nb\n<!-- table y -->\nold\n<!-- end -->\n", text)
	_, err = replace("a\n", "x", "new\n")
	require.Error(t, err)
}
