package engine

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// since returns when the requests came that stand in line, in that order.
func (l *line) since() (all []time.Time) {
	for r := range l.all() {
		all = append(all, r.since)
	}
	return all
}

// Requests stand in line in the order in which they came, whenever they were refused
// and whoever has left meanwhile.
func TestTheLineIsInTheOrderOfComing(t *testing.T) {
	t.Parallel()
	start := time.Now()
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		var l line
		var in []*request
		for range 400 {
			if len(in) > 0 && random.IntN(3) == 0 {
				i := random.IntN(len(in))
				l.drop(in[i])
				in = slices.Delete(in, i, i+1)
				continue
			}
			r := &request{since: start.Add(time.Duration(random.IntN(100)))}
			l.insert(r)
			in = append(in, r)
		}
		slices.SortStableFunc(in, func(a, b *request) int { return a.since.Compare(b.since) })
		var want []time.Time
		for _, r := range in {
			want = append(want, r.since)
		}
		require.Equal(t, want, l.since(), "seed %d", seed)
		require.Equal(t, len(in), l.count)
	}
}

// A batch that is refused late is put before all who came since without going
// past these for each of its requests.
func TestALateBatchIsPutInLineAtOnce(t *testing.T) {
	t.Parallel()
	const crowd, late = 40_000, 4000
	start := time.Now()
	var l line
	for i := range crowd {
		l.insert(&request{since: start.Add(time.Hour + time.Duration(i))})
	}
	walk := time.Hour
	for range 5 {
		begun := time.Now()
		for r := range l.all() {
			r.round++
		}
		walk = min(walk, time.Since(begun))
	}
	begun := time.Now()
	for i := range late {
		l.insert(&request{since: start.Add(time.Duration(i))})
	}
	took := time.Since(begun)
	assert.Less(t, took, late/20*walk, "a walk takes %v", walk)
	assert.True(t, slices.IsSortedFunc(l.since(), time.Time.Compare))
}
