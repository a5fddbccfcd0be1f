package look

import (
	"cmp"
	"encoding/hex"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

// Callers without a name in members.
const (
	fromRedisson = "Redisson"
	unmarked     = "unmarked"

	// ClientWord stands before the mark that distinguishes clients.
	ClientWord = "client "
)

// member is one member of a set of permits in use.
type member struct {
	codec.Member

	granted int64 // in milliseconds
}

// parse reads members as ZRANGE answers them; those of no known layout are left
// out.
func parse(zs []redis.Z) []member {
	members := make([]member, 0, len(zs))
	for _, z := range zs {
		packed, _ := z.Member.(string)
		m, err := codec.Parse(packed)
		if err == nil {
			members = append(members, member{m, int64(z.Score)})
		}
	}
	return members
}

// origin returns what the ids of one Client's members have in common, "" if the layout has no
// room for it. sure reports that no Redisson has written it.
func (m member) origin() (origin string, sure bool) {
	mark, ours := redisson.MarkOf(m.Member)
	if mark == nil && m.Layout == codec.LayoutD2 {
		mark = m.ID[:8]
	}
	return string(mark), ours
}

// callersOf sums the members up by who wrote them.
func callersOf(members []member, names *names) []Caller {
	seen := map[string]int{}
	for _, m := range members {
		if origin, _ := m.origin(); origin != "" {
			seen[origin]++
		}
	}
	permits := map[string]int64{}
	for _, m := range members {
		origin, sure := m.origin()
		who, name := unmarked, names.ofMark(origin)
		switch {
		case name != "":
			who = name
		case sure, origin != "" && seen[origin] > 1:
			who = ClientWord + hex.EncodeToString([]byte(origin[:4]))
		case m.Layout == codec.LayoutD2:
			who = fromRedisson
		}
		permits[who] += int64(m.Permits)
	}
	return shares(permits)
}

// shares returns callers by their permits, the largest first.
func shares(permits map[string]int64) []Caller {
	var sum int64
	callers := make([]Caller, 0, len(permits))
	for who, n := range permits {
		sum += n
		callers = append(callers, Caller{Who: who, Permits: n})
	}
	for i := range callers {
		callers[i].Share = float64(callers[i].Permits) / float64(max(sum, 1))
	}
	slices.SortFunc(callers, func(a, b Caller) int {
		return cmp.Or(cmp.Compare(b.Permits, a.Permits), cmp.Compare(a.Who, b.Who))
	})
	return callers
}
