package compat_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// TestGoldenMigrate migrates all that older releases have written in their
// traces.
func TestGoldenMigrate(t *testing.T) {
	t.Parallel()
	redistest.SkipShort(t, "long")
	for _, version := range goldenReleases(t) {
		if layout := redissonOf(version).layout; layout == 0 || layout == codec.LayoutD2 {
			continue
		}
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			steps := readTrace(t, version)
			redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) { migrateTrace(t, version, steps, rdb) })
		})
	}
}

func migrateTrace(t *testing.T, version string, steps []step, rdb *redis.Client) {
	t.Helper()
	st := newStage(t, version, rdb)
	who := st.named("java1")
	goes := newGo(t, rdb, rratelimiter.WithClientID(who.id))
	l := st.limiters[limiterNames[0]]
	for i, s := range steps {
		now := time.Now().UnixMilli()
		before, err := beat{base: now}.state(s.State, st.cast)
		require.NoError(t, err)
		c := &call{state: before, who: who, now: span{now, now}}
		p := c.pair()
		if before.config == nil || len(p.rows) == 0 {
			continue
		}
		line := fmt.Sprintf("%s:%d", traceFile(version), i+1)
		require.NoError(t, st.put(t.Context(), l, before))
		n, err := goes.Migrate(t.Context(), l.name)
		require.NoError(t, err, line)
		moduleFor(newestRedisson).settle(c, p)
		migrated := (&call{state: st.read(t, l), who: who}).pair()
		require.EqualValues(t, len(p.rows), n, line)
		require.Equal(t, permitsAt(p.rows), permitsAt(migrated.rows), line)
		for _, r := range migrated.rows {
			require.Equal(t, codec.LayoutD2, r.layout, line)
		}
		p.rows, migrated.rows = nil, nil
		require.Equal(t, p, migrated, line)
	}
}

// permitsAt returns the permits of rows and their times.
func permitsAt(rows []row) [][2]int64 {
	all := make([][2]int64, len(rows))
	for i, r := range rows {
		all[i] = [2]int64{r.at.from, r.permits}
	}
	slices.SortFunc(all, func(a, b [2]int64) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	return all
}
