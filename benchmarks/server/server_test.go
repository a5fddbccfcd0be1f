package server

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestCostCountsNothingTwice(t *testing.T) {
	t.Parallel()
	before := &Usage{cpu: time.Second, commands: map[string]command{"get": {10, 10}, "eval": {1, 100}}}
	after := &Usage{cpu: 3 * time.Second, commands: map[string]command{
		"get": {40, 70}, "eval": {11, 1100}, "set": {10, 500}, "info": {1, 10_000},
	}}
	// Of 30 GETs 10 were those of the 10 scripts; all SETs were.
	cost := after.Since(before, map[string]float64{"get": 1, "eval": 0, "set": 1})
	assert.Equal(t, Cost{CPU: 2 * time.Second, Scripts: 10, Took: 40 + 1000}, cost)
}
