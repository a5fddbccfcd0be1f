package look

import (
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/inspect/holders"
	"github.com/rratelimiter/rratelimiter/internal/merge"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// State is one pair of value and set. Nil fields are unknown.
type State struct {
	ClientID     *string  `json:"client_id"` // nil for the pair that all share
	Free         *int64   `json:"free"`
	Value        *int64   `json:"value"`
	InUse        int64    `json:"in_use"`
	RunOut       int64    `json:"run_out"`
	Members      int64    `json:"members"`
	Window       bool     `json:"window"` // the value counts a fixed window
	ValueTTLMS   *int64   `json:"value_ttl_ms"`
	PermitsTTLMS *int64   `json:"permits_ttl_ms"`
	Permits      []Permit `json:"permits"`

	// Merged is how many members in use stand for grants of one slice of the interval, and LateMS by how much their
	// permits come back late at most.
	Merged int64 `json:"merged,omitempty"`
	LateMS int64 `json:"late_ms,omitempty"`

	// Unreadable says that the value or the set is of the wrong type: nothing is known of the
	// permits.
	Unreadable bool `json:"-"`

	// If no permit is free: how many more are in use than the rate, as work was settled that cost
	// more, or the rate was lowered; when the next one is, as far as the members tell; for how long none was granted.
	Debt     int64  `json:"debt,omitempty"`
	NextMS   *int64 `json:"next_permit_ms,omitempty"`
	UsedUpMS *int64 `json:"used_up_ms,omitempty"`

	ClientName string  `json:"client_name,omitempty"`
	Shares     []Share `json:"shares"` // of the permits in use, by holder
}

// Share is one client's permits in use.
type Share struct {
	holders.Share

	BackInMS *int64 `json:"back_in_ms"` // when the first of them come back
}

// Permit is one member of a set. A hold's is dated before it was granted, as if it had lasted an interval.
type Permit struct {
	ID         string `json:"id"`
	Layout     string `json:"layout"`
	Permits    uint32 `json:"permits"`
	GrantedMS  int64  `json:"granted_at_ms"`
	AgeMS      int64  `json:"age_ms"`
	BackInMS   *int64 `json:"back_in_ms"`
	member     codec.Member
	parseError error
}

// newState works out a pair's state; cfg is nil if the configuration can't
// be read. All members read are in Permits.
func newState(s *snapshot, cfg *Fields, clientID *string) State {
	st := State{
		ClientID: clientID, Members: s.card, Permits: make([]Permit, 0, len(s.members)), Shares: []Share{},
		ValueTTLMS: millis(s.value.ttl), PermitsTTLMS: millis(s.permits.ttl),
	}
	st.Unreadable = s.value.wrong("string") || s.permits.wrong("zset")
	allRunOut := true
	for _, z := range s.members {
		p := newPermit(z, s.nowMS, cfg)
		if p.RanOut() {
			st.RunOut += int64(p.Permits)
		} else {
			st.InUse += int64(p.Permits)
			allRunOut = false
			if cfg != nil && !merge.LeftAlone(cfg.Rate) && p.Known() && redisson.IsMerged(p.member) {
				st.Merged++
			}
		}
		st.Permits = append(st.Permits, p)
	}
	if n, err := strconv.ParseInt(s.number, 10, 64); err == nil {
		switch {
		case cfg == nil:
		case cfg.forgets():
			n = cfg.Rate - st.InUse - st.RunOut
		default:
			n = cfg.value(n)
		}
		st.Value = &n
		st.Window = cfg != nil && n < cfg.Rate && !cfg.PerClient() && s.isWindow(script.Millis(cfg.IntervalMS))
	}
	st.Free = st.free(s, cfg, allRunOut)
	if cfg != nil {
		st.tellUsedUp(s, cfg.Rate)
	}
	if cfg != nil && st.Merged > 0 {
		st.LateMS = max(merge.Late(script.Millis(cfg.IntervalMS)).Milliseconds(), 1)
	}
	return st
}

func newPermit(z redis.Z, nowMS int64, cfg *Fields) Permit {
	packed, _ := z.Member.(string)
	p := Permit{GrantedMS: int64(z.Score), AgeMS: nowMS - int64(z.Score)}
	member, err := codec.Parse(packed)
	if err != nil {
		p.ID, p.Layout, p.parseError = fmt.Sprintf("%x", packed), "unknown", err
	} else {
		p.member = member
		p.ID, p.Layout, p.Permits = fmt.Sprintf("%x", member.ID), member.Layout.String(), member.Permits
	}
	if cfg != nil {
		// A member dated in the future counts from the next request on.
		back := cfg.IntervalMS - max(p.AgeMS, 0)
		p.BackInMS = &back
	}
	return p
}

// tell says whose the permits in use are. For a client's own pair that is already known.
func (st *State) tell(names holders.Names) {
	if st.ClientID != nil {
		st.ClientName = names.OfID(*st.ClientID)
		return
	}
	tally := holders.NewTally(names)
	first := map[holders.Share]*int64{} // in the order of the set
	for i := range st.Permits {
		p := &st.Permits[i]
		if !p.Known() || p.RanOut() {
			continue
		}
		tally.Add(p.member)
		alone := holders.NewTally(names)
		alone.Add(p.member)
		whose := alone.Shares()[0]
		whose.Permits = 0
		if first[whose] == nil {
			first[whose] = p.BackInMS
		}
	}
	for _, share := range tally.Shares() {
		whose := share
		whose.Permits = 0
		st.Shares = append(st.Shares, Share{share, first[whose]})
	}
}

// Known reports whether the member is of a layout that is known.
func (p *Permit) Known() bool { return p.parseError == nil }

// RanOut reports whether the permits are free again.
func (p *Permit) RanOut() bool { return p.BackInMS != nil && *p.BackInMS <= 0 }

// free returns the permits that a request would find, nil if that is unknown.
func (st *State) free(s *snapshot, cfg *Fields, allRunOut bool) *int64 {
	if cfg == nil || s.value.wrong("string") || s.permits.wrong("zset") || s.card > MaxMembers {
		return nil
	}
	if s.value.exists() && st.Value == nil {
		return nil
	}
	free := cfg.Rate - st.InUse
	if (!allRunOut || st.Window) && st.Value != nil {
		free = *st.Value
		if !st.Window {
			free += st.RunOut
		}
	}
	free = min(max(free, 0), cfg.Rate)
	return &free
}
