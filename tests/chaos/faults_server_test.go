package chaos_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// serverFaults are those of a single process, whatever others it serves with.
var serverFaults = []*fault{
	{name: "server killed", mood: lossy, server: true, arenas: []string{single, sentinel}, do: func(r *round, draw *rand.Rand) *event {
		return r.during(draw, (*redistest.Server).Crash, func(s *redistest.Server) { s.Restart(r.tb) })
	}},
	{name: "server stopped", mood: gentle, server: true, do: func(r *round, draw *rand.Rand) *event {
		return r.during(draw, func(s *redistest.Server) { s.Freeze(r.tb) }, func(s *redistest.Server) { s.Thaw(r.tb) })
	}},
	{name: "scripts flushed", mood: gentle, server: true, do: func(r *round, draw *rand.Rand) *event {
		return r.order(draw, "SCRIPT", "FLUSH")
	}},
	{name: "connections killed", mood: dropping, server: true, do: func(r *round, draw *rand.Rand) *event {
		return r.order(draw, "CLIENT", "KILL", "TYPE", "normal")
	}},
	{name: "clients paused", mood: gentle, server: true, do: func(r *round, draw *rand.Rand) *event {
		what := []string{"ALL", "WRITE"}[draw.IntN(2)]
		spell := r.spell(draw)
		e := r.order(draw, "CLIENT", "PAUSE", spell.Milliseconds(), what)
		r.sleep(spell)
		return e
	}},
	{name: "memory full", mood: lossy, server: true, do: func(r *round, draw *rand.Rand) *event {
		limit := func(most string) func(s *redistest.Server) {
			return func(s *redistest.Server) {
				require.NoError(r.tb, s.Client(r.tb, nil).ConfigSet(r.t.Context(), "maxmemory", most).Err())
			}
		}
		return r.during(draw, limit("1"), limit("0"))
	}},
	{name: "clock set", mood: stepping, server: true, arenas: []string{single}, do: func(r *round, draw *rand.Rand) *event {
		a, by := r.arena.(*singleArena), time.Duration(draw.IntN(1500)-600)*time.Millisecond
		a.set(r.tb, a.ahead+by)
		return &event{text: by.String(), forward: max(0, by)}
	}},
	{name: "all keys lost", mood: losing, server: true, do: func(r *round, draw *rand.Rand) *event {
		e := r.order(draw, "FLUSHALL")
		e.forgot = 1
		return e
	}},
	{name: "keys lost", mood: losing, server: true, do: (*round).loseKeys},
}

func (r *round) drawMaster(draw *rand.Rand) *redistest.Server {
	all := r.arena.masters(r.tb)
	return all[draw.IntN(len(all))]
}

// during keeps a master in a bad state for a while.
func (r *round) during(draw *rand.Rand, begin, end func(*redistest.Server)) *event {
	s := r.drawMaster(draw)
	begin(s)
	r.sleep(r.spell(draw))
	end(s)
	return &event{text: s.Addr()}
}

// order has a master do something.
func (r *round) order(draw *rand.Rand, args ...any) *event {
	s := r.drawMaster(draw)
	require.NoError(r.tb, s.Client(r.tb, &redis.Options{MaxRetries: -1}).Do(r.t.Context(), args...).Err())
	return &event{text: fmt.Sprint(args...) + " " + s.Addr()}
}

// loseKeys removes some of a limiter's keys, at one moment, and notes what was in use.
func (r *round) loseKeys(draw *rand.Rand) *event {
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
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Second)
	defer cancel()
	s, err := l.read(ctx, r.admin, id, remove...)
	e := &event{text: fmt.Sprint(remove...), lost: map[string]int64{l.name: 0}}
	if err != nil {
		e.forgot = 1
	} else {
		e.lost[l.name] = s.inUse
	}
	return e
}

// topologyFaults have servers change places.
var topologyFaults = []*fault{
	{name: "slot moved", mood: lossy, server: true, arenas: []string{cluster}, do: (*round).moveSlot},
	{name: "failover asked for", mood: lossy, server: true, arenas: []string{cluster}, do: func(r *round, draw *rand.Rand) *event {
		return r.promote(draw, false)
	}},
	{name: "failover forced", mood: losing, server: true, arenas: []string{cluster}, do: func(r *round, draw *rand.Rand) *event {
		return r.promote(draw, true)
	}},
	{name: "master replaced", mood: losing, server: true, arenas: []string{sentinel}, do: func(r *round, _ *rand.Rand) *event {
		r.inOrder()
		a, start := r.arena.(*sentinelArena), r.now()
		a.known = a.Failover(r.tb)
		return &event{start: start, text: a.known.Addr(), forgot: 1}
	}},
	{name: "master lost", mood: losing, server: true, arenas: []string{sentinel}, do: func(r *round, _ *rand.Rand) *event {
		return r.outlast((*redistest.Server).Crash, func(s *redistest.Server) { s.Restart(r.tb) })
	}},
	{name: masterHung, mood: losing, server: true, arenas: []string{sentinel}, do: func(r *round, _ *rand.Rand) *event {
		return r.outlast(func(s *redistest.Server) { s.Freeze(r.tb) }, func(s *redistest.Server) { s.Thaw(r.tb) })
	}},
}

// A master that does not answer for too long is replaced. A busy machine may have one hang
// so long too.
const masterHung = "hung master replaced"

// inOrder waits until all servers are in order, and notes what nobody asked them for.
func (r *round) inOrder() {
	if surprises := r.arena.calm(r.tb); surprises > 0 {
		r.happened(event{start: 0, kind: masterHung, text: "unasked", forgot: surprises})
	}
}

// outlast keeps the master away until Sentinels have another one, which it then follows.
func (r *round) outlast(leave, comeBack func(*redistest.Server)) *event {
	r.inOrder()
	a, start := r.arena.(*sentinelArena), r.now()
	old := a.known
	leave(old)
	a.known = a.AwaitMaster(r.tb, old)
	comeBack(old)
	old.Follow(r.tb, a.known)
	return &event{start: start, text: old.Addr(), forgot: 1}
}

func (r *round) moveSlot(draw *rand.Rand) *event {
	a := r.arena.(*clusterArena)
	slot := a.Slot(r.tb, r.limiters[draw.IntN(len(r.limiters))].name)
	from, _ := a.Owner(r.tb, slot)
	others := slices.DeleteFunc(a.masters(r.tb), func(s *redistest.Server) bool { return s == from })
	move := a.StartMove(r.tb, slot, others[draw.IntN(len(others))])
	if draw.IntN(2) == 0 {
		r.sleep(r.spell(draw))
	}
	move.MoveKeys(r.tb)
	move.Finish(r.tb)
	return &event{text: from.Addr()}
}

// promote makes a replica of a cluster a master: in agreement with its master, so that
// nothing is lost, or after that has been killed, by the votes of the others or its own
// decision.
func (r *round) promote(draw *rand.Rand, forced bool) *event {
	a := r.arena.(*clusterArena)
	slot := a.Slot(r.tb, r.limiters[draw.IntN(len(r.limiters))].name)
	master, replicas := a.Owner(r.tb, slot)
	if len(replicas) == 0 {
		return nil // the first node has not heard yet of the one that came back
	}
	replica := replicas[draw.IntN(len(replicas))]
	if !a.Electable(r.tb, replica) {
		return nil
	}
	e := &event{text: master.Addr()}
	if !forced {
		a.Failover(r.tb, replica, false)
	} else {
		e.forgot = 1
		master.Crash()
		if draw.IntN(2) == 0 {
			a.Failover(r.tb, replica, true)
		} else {
			a.ForceFailover(r.tb, replica)
		}
		master.Restart(r.tb)
	}
	a.known = a.masterAddrs(r.tb)
	return e
}
