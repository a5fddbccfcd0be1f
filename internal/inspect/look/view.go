package look

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// View chooses which limiters are shown, and in which order.
type View struct {
	Sort    string // one of [Sorts]
	Reverse bool
	Filter  string // part of the name, of any case
	Offset  int    // rows left out
	Rows    int
	Name    string // the only limiter that is wanted; "" for all

	// Weight is what [ByWeight] sorts by, the highest first.
	Weight func(name string) float64

	// Refusing reports whether requests of a limiter are refused; nil: unknown. The
	// order by use begins with what is broken, used up or refusing.
	Refusing func(name string) bool
}

// ByWeight is an order by the View's Weight.
const ByWeight = "weight"

// Has reports whether a name has this part, of any case.
func Has(name, part string) bool {
	return strings.Contains(strings.ToLower(name), strings.ToLower(part))
}

// Sorts returns the orders that a View may have.
func Sorts() []string { return []string{"use", "in-use", "granted", "free", "rate", "name"} }

// Check returns an error if the View is invalid.
func (v *View) Check() error {
	if !slices.Contains(Sorts(), v.Sort) {
		return fmt.Errorf("--sort %q: want one of %s", v.Sort, strings.Join(Sorts(), ", "))
	}
	return nil
}

// Next returns the view in the order that comes after its own.
func (v *View) Next() View {
	next := *v
	all := Sorts()
	next.Sort = all[(slices.Index(all, v.Sort)+1)%len(all)]
	return next
}

// rank is what an entry is sorted by.
type rank struct {
	entry             *entry
	health            int
	use, pace, weight float64
	inUse, free       int64
}

func (v *View) rank(e *entry, now time.Time) rank {
	l := e.limiter(now)
	r := rank{entry: e, use: l.Use(), pace: l.PerSecond, inUse: l.InUse, free: -1}
	if l.Free != nil {
		r.free = *l.Free
	}
	r.health = l.HealthWhile(v.Refusing != nil && v.Refusing(e.name)).Rank()
	if v.Weight != nil {
		r.weight = v.Weight(e.name)
	}
	return r
}

func (v *View) compare(a, b rank) int {
	var c int
	switch v.Sort {
	case "use":
		c = cmp.Or(cmp.Compare(a.health, b.health), cmp.Compare(b.use, a.use), cmp.Compare(b.inUse, a.inUse))
	case "in-use":
		c = cmp.Compare(b.inUse, a.inUse)
	case "granted":
		c = cmp.Or(cmp.Compare(b.pace, a.pace), cmp.Compare(b.use, a.use))
	case "free":
		c = cmp.Compare(a.free, b.free)
	case "rate":
		// Permits a second, without dividing by an interval of 0.
		c = cmp.Compare(float64(b.entry.Rate)*float64(a.entry.IntervalMS), float64(a.entry.Rate)*float64(b.entry.IntervalMS))
	case ByWeight:
		c = cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(b.use, a.use))
	}
	c = cmp.Or(c, cmp.Compare(a.entry.name, b.entry.name))
	if v.Reverse {
		return -c
	}
	return c
}

// first keeps those of many that come first in a view's order, without sorting all.
type first struct {
	view *View
	most int
	kept []rank // the best so far come first, in order, once there were too many
	full bool
}

func (f *first) add(r rank) {
	if f.most < 1 || f.full && f.view.compare(f.kept[f.most-1], r) < 0 {
		return
	}
	f.kept = append(f.kept, r)
	if len(f.kept) >= 2*f.most+64 {
		f.cut()
		f.full = true
	}
}

func (f *first) cut() {
	slices.SortFunc(f.kept, f.view.compare)
	f.kept = f.kept[:min(len(f.kept), f.most)]
}
