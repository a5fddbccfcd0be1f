package chaos_test

import (
	"math/rand/v2"
	"slices"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// topologyFaults have servers change places.
var topologyFaults = []*fault{
	slotMoved,
	{name: "failover asked for", mood: lossy, server: true, arenas: []string{cluster}, do: func(r *round, draw *rand.Rand) {
		r.promote(draw, "failover asked for", false)
	}},
	forcedFailover,
	{name: "master replaced", mood: losing, server: true, arenas: []string{sentinel}, do: func(r *round, _ *rand.Rand) {
		r.inOrder()
		a, start := r.arena.(*sentinelArena), r.now()
		a.known = a.Failover(r.tb)
		r.happened(event{start: start, kind: "master replaced", text: a.known.Addr(), forgot: 1})
	}},
	masterLost,
	{name: masterHung, mood: losing, server: true, arenas: []string{sentinel}, do: func(r *round, _ *rand.Rand) {
		r.outlast(masterHung, func(s *redistest.Server) { s.Freeze(r.tb) }, func(s *redistest.Server) { s.Thaw(r.tb) })
	}},
}

var masterLost = &fault{name: "master lost", mood: losing, server: true, arenas: []string{sentinel}, do: func(r *round, _ *rand.Rand) {
	r.outlast("master lost", (*redistest.Server).Crash, func(s *redistest.Server) { s.Restart(r.tb) })
}}

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
func (r *round) outlast(kind string, leave, comeBack func(*redistest.Server)) {
	r.inOrder()
	a, start := r.arena.(*sentinelArena), r.now()
	old := a.known
	leave(old)
	a.known = a.AwaitMaster(r.tb, old)
	comeBack(old)
	old.Follow(r.tb, a.known)
	r.happened(event{start: start, kind: kind, text: old.Addr(), forgot: 1})
}

var slotMoved = &fault{name: "slot moved", mood: lossy, server: true, arenas: []string{cluster}, do: func(r *round, draw *rand.Rand) {
	a, start := r.arena.(*clusterArena), r.now()
	slot := a.Slot(r.tb, r.limiters[draw.IntN(len(r.limiters))].name)
	from, _ := a.Owner(r.tb, slot)
	others := slices.DeleteFunc(a.masters(r.tb), func(s *redistest.Server) bool { return s == from })
	move := a.StartMove(r.tb, slot, others[draw.IntN(len(others))])
	if draw.IntN(2) == 0 {
		r.sleep(r.spell(draw))
	}
	move.MoveKeys(r.tb)
	move.Finish(r.tb)
	r.happened(event{start: start, kind: "slot moved", text: from.Addr()})
}}

var forcedFailover = &fault{name: "failover forced", mood: losing, server: true, arenas: []string{cluster}, do: func(r *round, draw *rand.Rand) {
	r.promote(draw, "failover forced", true)
}}

// promote makes a replica of a cluster a master: in agreement with its master, so that
// nothing is lost, or after that has been killed, by the votes of the others or its own
// decision.
func (r *round) promote(draw *rand.Rand, kind string, forced bool) {
	a, start := r.arena.(*clusterArena), r.now()
	slot := a.Slot(r.tb, r.limiters[draw.IntN(len(r.limiters))].name)
	master, replicas := a.Owner(r.tb, slot)
	if len(replicas) == 0 {
		return // the first node has not heard yet of the one that came back
	}
	replica := replicas[draw.IntN(len(replicas))]
	if !a.Electable(r.tb, replica) {
		return
	}
	e := event{start: start, kind: kind, text: master.Addr()}
	switch {
	case !forced:
		a.Failover(r.tb, replica, false)
	case draw.IntN(2) == 0:
		e.forgot = 1
		master.Crash()
		a.Failover(r.tb, replica, true)
		master.Restart(r.tb)
	default:
		e.forgot = 1
		master.Crash()
		a.ForceFailover(r.tb, replica)
		master.Restart(r.tb)
	}
	a.known = a.masterAddrs(r.tb)
	r.happened(e)
}
