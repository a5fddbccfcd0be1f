package engine

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/merge"
)

// A gateway of 100,000 users has three limits of each whose members are merged. Used in turn, none is forgotten.
func TestMergeLogs_AreEnoughForAGateway(t *testing.T) {
	t.Parallel()
	logs := newMergeLogs()
	for round := range 2 {
		forgotten := 0
		for i := range 300_000 {
			name := "gateway:requests-day:{" + strconv.Itoa(i) + "}"
			if _, ok := logs.Get(name); !ok {
				forgotten++
				logs.Add(name, nil, merge.Bytes, func(*merge.Log) bool { return true })
			}
		}
		assert.Equal(t, 300_000*(1-round), forgotten)
	}
}
