package look

import (
	"github.com/rratelimiter/rratelimiter/internal/merge"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

// grants counts what was granted from one reading of a set to the next: permits of members that have come, less those of
// members that have gone and may have been merged. Merging never dates a member into another slice, so only those of a
// slice that goes on are remembered.
type grants struct {
	at   int64             // of the last reading, in ms by the server's clock; 0 for none
	from int64             // members dated since then were looked at
	seen map[string]member // those of them, by id
}

// count returns the permits granted since the last reading, 0 if this is the first. members are the newest of the set,
// oldest first; if it has others that are not among them, partial is true. missed reports that there were more grants.
func (g *grants) count(members []member, partial bool, intervalMS, nowMS int64) (granted int64, missed bool) {
	last, next := *g, grants{at: nowMS, from: merge.SliceStart(nowMS, max(intervalMS, 1)), seen: map[string]member{}}
	if partial && len(members) > 0 {
		oldest := members[0].granted
		last.from, next.from = max(last.from, oldest+1), max(next.from, oldest+1)
		missed = oldest >= last.at
	}
	here := make(map[string]bool, len(members))
	for _, m := range members {
		id := string(m.ID)
		here[id] = true
		if _, seen := last.seen[id]; !seen && m.granted >= last.from {
			granted += int64(m.Permits)
		}
		if m.granted >= next.from {
			next.seen[id] = m
		}
	}
	for id, m := range last.seen {
		if !here[id] && m.granted >= last.from && m.granted+intervalMS > nowMS {
			granted -= int64(m.Permits)
		}
	}
	*g = next
	if last.at == 0 {
		return 0, false
	}
	return max(granted, 0), missed
}

// pace says how many permits of a pair were granted a second.
type pace struct {
	grants  grants
	granted int64 // since the reading before
	missed  bool  // there were more
	sums    []sum // by reading: the last that is a second old, and those since
}

// sum is how many permits were granted until a time, in ms.
type sum struct {
	at      int64
	permits float64
}

// perSecond returns what was granted a second, given the newest members: since a reading about a second ago. The first
// follows one that it makes up by the members' dates.
func (p *pace) perSecond(members []member, partial bool, intervalMS, nowMS int64) float64 {
	p.granted, p.missed = p.grants.count(members, partial, intervalMS, nowMS)
	if n := len(p.sums); n > 0 && !p.missed && nowMS-p.sums[n-1].at < min(intervalMS, stale.Milliseconds()) {
		p.sums = append(p.sums, sum{nowMS, p.sums[n-1].permits + float64(p.granted)})
	} else {
		p.sums = []sum{{at: nowMS - 1000}, {nowMS, perSecond(members, partial, intervalMS, nowMS)}}
	}
	for len(p.sums) > 2 && nowMS-p.sums[1].at >= 1000 {
		p.sums = p.sums[1:]
	}
	first, last := p.sums[0], p.sums[len(p.sums)-1]
	return (last.permits - first.permits) * 1000 / float64(last.at-first.at)
}

// perSecond returns how many permits a second were granted: in the last second, or the part of it that the members
// cover. What a merged member stands for was granted evenly in its slice, as far as is known.
func perSecond(members []member, partial bool, intervalMS, nowMS int64) float64 {
	span := min(1000, intervalMS)
	if len(members) == 0 || span <= 0 {
		return 0
	}
	if oldest := nowMS - members[0].granted; partial && oldest < span {
		span = max(oldest, 1)
	}
	var sum float64
	for _, m := range members {
		lately := m.granted - (nowMS - span)
		if lately <= 0 {
			continue
		}
		part := 1.0
		if redisson.IsMerged(m.Member) {
			part = min(1, float64(lately)/float64(m.granted-merge.SliceStart(m.granted, intervalMS)+1))
		}
		sum += float64(m.Permits) * part
	}
	return sum * 1000 / float64(span)
}

// PerSecond returns how many permits a second were granted lately, as far as the members tell.
func (f *Inspection) PerSecond() (all float64) {
	for s := range f.States {
		var members []member
		for i := range f.States[s].Permits {
			if p := &f.States[s].Permits[i]; p.Known() {
				members = append(members, member{p.member, p.GrantedMS})
			}
		}
		all += perSecond(members, false, *f.IntervalMS, f.NowMS)
	}
	return all
}
