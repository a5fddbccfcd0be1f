package chaos_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// serverFaults are those of a single process, whoever it serves with.
var serverFaults = []*fault{
	{name: "server killed", mood: lossy, server: true, arenas: []string{single, sentinel}, do: func(r *round, draw *rand.Rand) {
		s, start := r.drawMaster(draw), r.now()
		s.Crash()
		r.sleep(r.spell(draw))
		s.Restart(r.tb)
		r.happened(event{start: start, kind: "server killed", text: s.Addr()})
	}},
	{name: "server stopped", mood: gentle, server: true, do: func(r *round, draw *rand.Rand) {
		s, start := r.drawMaster(draw), r.now()
		s.Freeze(r.tb)
		r.sleep(r.spell(draw))
		s.Thaw(r.tb)
		r.happened(event{start: start, kind: "server stopped", text: s.Addr()})
	}},
	{name: "scripts flushed", mood: gentle, server: true, do: func(r *round, draw *rand.Rand) {
		r.order(draw, "scripts flushed", "SCRIPT", "FLUSH")
	}},
	{name: "connections killed", mood: dropping, server: true, do: func(r *round, draw *rand.Rand) {
		r.order(draw, "connections killed", "CLIENT", "KILL", "TYPE", "normal")
	}},
	{name: "clients paused", mood: gentle, server: true, do: func(r *round, draw *rand.Rand) {
		what := []string{"ALL", "WRITE"}[draw.IntN(2)]
		spell := r.spell(draw)
		r.order(draw, "clients paused", "CLIENT", "PAUSE", spell.Milliseconds(), what)
		r.sleep(spell)
	}},
	{name: "memory full", mood: lossy, server: true, do: func(r *round, draw *rand.Rand) {
		s, start := r.drawMaster(draw), r.now()
		rdb := s.Client(r.tb, nil)
		require.NoError(r.tb, rdb.ConfigSet(r.t.Context(), "maxmemory", "1").Err())
		r.sleep(r.spell(draw))
		require.NoError(r.tb, rdb.ConfigSet(r.t.Context(), "maxmemory", "0").Err())
		r.happened(event{start: start, kind: "memory full", text: s.Addr()})
	}},
	{name: "clock set", mood: stepping, server: true, arenas: []string{single}, do: func(r *round, draw *rand.Rand) {
		a, start := r.arena.(*singleArena), r.now()
		by := time.Duration(draw.IntN(1500)-600) * time.Millisecond
		a.set(r.tb, a.ahead+by)
		r.happened(event{start: start, kind: "clock set", text: by.String(), forward: max(0, by)})
	}},
	{name: "all keys lost", mood: losing, server: true, do: func(r *round, draw *rand.Rand) {
		s, start := r.drawMaster(draw), r.now()
		err := s.Client(r.tb, nil).FlushAll(r.t.Context()).Err()
		require.NoError(r.tb, err)
		r.happened(event{start: start, kind: "all keys lost", text: s.Addr(), forgot: 1})
	}},
	{name: "keys lost", mood: losing, server: true, do: (*round).loseKeys},
}

func (r *round) drawMaster(draw *rand.Rand) *redistest.Server {
	all := r.arena.masters(r.tb)
	return all[draw.IntN(len(all))]
}

// order has a master do something.
func (r *round) order(draw *rand.Rand, kind string, args ...any) {
	s, start := r.drawMaster(draw), r.now()
	require.NoError(r.tb, s.Client(r.tb, &redis.Options{MaxRetries: -1}).Do(r.t.Context(), args...).Err())
	r.happened(event{start: start, kind: kind, text: fmt.Sprint(args...) + " " + s.Addr()})
}

// loseKeys removes some of a limiter's keys, at one moment, and notes what was in use.
func (r *round) loseKeys(draw *rand.Rand) {
	l := r.limiters[draw.IntN(len(r.limiters))]
	id := ""
	if l.kind == perClient {
		id = r.drawWorker(draw).crew.current()
	}
	config, value, permits := l.keys(id)
	var remove []any
	for _, key := range []string{config, value, permits} {
		if key != "" && draw.IntN(2) == 0 {
			remove = append(remove, key)
		}
	}
	start := r.now()
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Second)
	defer cancel()
	s, err := l.read(ctx, r.admin, id, remove...)
	e := event{start: start, kind: "keys lost", text: fmt.Sprint(remove...), lost: map[string]int64{l.name: 0}}
	if err != nil {
		e.forgot = 1
	} else {
		e.lost[l.name] = s.inUse
	}
	r.happened(e)
}
