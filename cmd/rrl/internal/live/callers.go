package live

import (
	"cmp"
	"encoding/hex"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/codec"
)

// Callers that members don't name.
const (
	fromRedisson = "Redisson"
	unmarked     = "unmarked"

	// clientWord stands before what tells clients apart.
	clientWord = "client "
)

// member is one member of a set of permits in use.
type member struct {
	granted int64 // in milliseconds
	permits int64
	layout  codec.Layout
	id      string
}

// parse reads members as ZRANGE answers them; those of no known layout are left
// out.
func parse(zs []redis.Z) []member {
	members := make([]member, 0, len(zs))
	for _, z := range zs {
		packed, _ := z.Member.(string)
		m, err := codec.Parse(packed)
		if err == nil {
			members = append(members, member{int64(z.Score), int64(m.Permits), m.Layout, string(m.ID)})
		}
	}
	return members
}

// origin returns what the ids of one Client's members have in common, "" where
// the layout has no room for it. Sure says that no Redisson has written it.
func (m member) origin() (origin string, sure bool) {
	switch m.layout {
	case codec.LayoutD2:
		// Behind a Client's origin stands a counter, whose first bytes are 0 for
		// its first 2^40 members; all of Redisson's are random.
		return m.id[:8], m.id[8:11] == "\x00\x00\x00"
	case codec.LayoutD1:
		return m.id[:4], false
	}
	return "", false
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
		who := unmarked
		switch {
		case names.ofMark(origin) != "":
			who = names.ofMark(origin)
		case sure, origin != "" && seen[origin] > 1:
			who = clientWord + hex.EncodeToString([]byte(origin[:4]))
		case m.layout == codec.LayoutD2:
			who = fromRedisson
		}
		permits[who] += m.permits
	}
	return shares(permits)
}

// shares returns callers by their permits, most first.
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
