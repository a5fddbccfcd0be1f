package look

import (
	"slices"

	"github.com/rratelimiter/rratelimiter/internal/words"
)

// Health is the state of a limiter, in the word that rrl and the dashboard show; "" if it is
// unknown.
type Health string

// The states, the most urgent first.
const (
	IsBroken Health = "broken"   // its calls fail, or get wrong answers, until it is mended
	UsedUp   Health = "used up"  // no permit is free
	Refusing Health = "refusing" // permits are free, but requests were refused just now
	Fine     Health = "fine"
)

// HealthOf decides the state. If each client has permits of its own, free are those of the
// client with the fewest. Only an observer in the limiter's program sees refusals.
func HealthOf(broken bool, free *int64, refusing bool) Health {
	switch {
	case broken:
		return IsBroken
	case free == nil:
		return ""
	case *free == 0:
		return UsedUp
	case refusing:
		return Refusing
	}
	return Fine
}

// Rank orders states, the most urgent first.
func (h Health) Rank() int {
	return slices.Index([]Health{IsBroken, UsedUp, Refusing, "", Fine}, h)
}

// Signed returns the word behind a sign that stands out without colours.
func (h Health) Signed() string {
	switch h {
	case IsBroken:
		return "! " + string(h)
	case UsedUp:
		return "# " + string(h)
	case Refusing:
		return "~ " + string(h)
	case "":
		return "-"
	}
	return string(h)
}

// Health returns the limiter's state.
func (l *Limiter) Health() Health { return l.HealthWhile(false) }

// HealthWhile returns the state, given whether requests are refused. A limiter that was used up within
// the last second is used up.
func (l *Limiter) HealthWhile(refusing bool) Health {
	health := HealthOf(l.Broken != "", l.Free, refusing)
	if l.lately && (health == Fine || health == Refusing) {
		return UsedUp
	}
	return health
}

// health is the state of everything that was read: the state of the client with the fewest permits.
func (f *Inspection) health() Health {
	if f.Broken != "" || !f.Exists || f.Foreign {
		return HealthOf(f.Broken != "", nil, false)
	}
	all := Fine
	for i := range f.States {
		if h := f.States[i].health(); h.Rank() < all.Rank() {
			all = h
		}
	}
	return all
}

// health is HealthOf the pair. If a set is too large to read whole, its oldest members show
// whether a permit is free.
func (st *State) health() Health {
	free := st.Free
	if free == nil && st.Value != nil && !st.Unreadable {
		least := max(*st.Value+st.RunOut, 0)
		free = &least
	}
	return HealthOf(false, free, false)
}

// tellUsedUp adds, if no permit is free, the debt, when the next one is free and since when
// none is: nothing was granted since the newest member, unless it was a hold.
func (st *State) tellUsedUp(s *snapshot, rate int64) {
	if st.health() != UsedUp || st.Unreadable {
		return
	}
	if st.Window {
		st.NextMS = st.ValueTTLMS
		return
	}
	free := rate - st.InUse
	if st.Value != nil {
		free = *st.Value + st.RunOut
	}
	st.Debt = max(-free, 0)
	for i := range st.Permits {
		p := &st.Permits[i]
		if p.RanOut() || p.BackInMS == nil {
			continue
		}
		if free += int64(p.Permits); free > 0 {
			st.NextMS = p.BackInMS
			break
		}
	}
	if n := len(st.Permits); n > 0 && s.card <= MaxMembers {
		since := max(st.Permits[n-1].AgeMS, 0)
		st.UsedUpMS = &since
	}
}

// UsedUpText says when the next permit is free and since when none is, "" if neither is known.
func (st *State) UsedUpText() string {
	var text string
	if st.NextMS != nil {
		text = "next permit in " + words.Soon(*st.NextMS)
	}
	if st.UsedUpMS != nil {
		if text != "" {
			text += ", "
		}
		text += "none granted for up to " + words.Ago(*st.UsedUpMS)
	}
	return text
}
