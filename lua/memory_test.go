package lua

import (
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// If memory is full, a script that needs some is refused before it changes anything,
// whatever is there. One that only frees does what it always does. Redis looks at memory
// before a script's first write alone, so that is what must need memory, or free some.
func TestFullMemory(t *testing.T) {
	t.Parallel()
	for _, version := range redistest.Versions() {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()
			s := newMemoryScene(t, version)
			kinds := []memoryKind{
				{layout: codec.LayoutD2, keep: true}, {layout: codec.LayoutD2}, {layout: codec.LayoutD2, perClient: true},
				{layout: codec.LayoutD2, perClient: true, keep: true}, {layout: codec.LayoutB}, {layout: codec.LayoutC},
				{layout: codec.LayoutD1, keep: true},
			}
			if version != redistest.Redis82 {
				kinds = kinds[:1] // what the scripts call is the same
			}
			for _, kind := range kinds {
				s.check(s.limiterRuns(kind))
			}
			s.check(s.otherRuns())
		})
	}
}

// check makes the calls, first those of the twins, with memory, then the others, without.
func (s *memoryScene) check(runs []*memoryRun) {
	for _, r := range runs {
		r.commands = s.trace(r)
		r.want = s.figures(r.twin)
		r.before = s.dump(r.keys)
	}
	s.full(true)
	for _, r := range runs {
		err := s.rdb.Eval(s.Context(), r.script.Source, r.keys, r.args...).Err()
		if r.frees {
			s.checkFreed(r, err)
		} else if after := s.dump(r.keys); !assert.ObjectsAreEqual(r.before, after) {
			assert.Fail(s, "was not refused", "%s: %v: %v", r.name, r.commands, err)
		}
		s.checkFirstWrite(r)
	}
	s.full(false)
	require.NoError(s, s.rdb.FlushAll(s.Context()).Err())
}

// checkFreed holds a call against that of its twin. To make a value that was lost needs
// memory: that may be refused.
func (s *memoryScene) checkFreed(r *memoryRun, err error) {
	if r.unset && err != nil && strings.Contains(err.Error(), "OOM ") || redis.HasErrorPrefix(err, "NOTINIT") {
		assert.Equal(s, r.before, s.dump(r.keys), r.name)
	} else if assert.NoError(s, err, "%s: %v", r.name, r.commands) {
		assert.Equal(s, r.want, s.figures(r.keys), "%s: %v", r.name, r.commands)
	}
}

func (s *memoryScene) checkFirstWrite(r *memoryRun) {
	needs, frees := 0, 0
	for i, command := range r.commands {
		flags := s.flags[strings.ToLower(command)]
		require.NotEmpty(s, flags, command)
		switch {
		case flags["denyoom"]:
			needs = max(needs, len(r.commands)-i)
		case flags["write"]:
			frees = max(frees, len(r.commands)-i)
		}
	}
	if !r.frees {
		assert.True(s, needs == 0 || needs > frees, "%s is let through: %v", r.name, r.commands)
	}
}

// A repeated give-back tells where it can't know whether it has run.
func TestGiveBackInDoubt(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for left, want := range map[byte]int64{5: 2, 4: 2, 3: 2, 1: -1} {
			name := redistest.Name(t) + strconv.Itoa(int(left))
			keys := []string{name, name + ":v", name + ":cv", name + ":p", name + ":cp"}
			now, err := rdb.Time(t.Context()).Result()
			require.NoError(t, err)
			rdb.HSet(t.Context(), name, "rate", 10, "interval", 3600000, "type", 0)
			rdb.Set(t.Context(), name+":v", 10-int(left), 0)
			rdb.ZAdd(t.Context(), name+":p", redis.Z{Score: float64(now.UnixMilli()), Member: member(left)})
			got, err := rdb.Eval(t.Context(), GiveBack.Source, keys, member(5), 2, "1", 1000, "", "own").Int64()
			require.NoError(t, err)
			assert.Equal(t, want, got, "%d left", left)
		}
	})
}
