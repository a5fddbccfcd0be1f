package look

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// View is what of the limiters is shown, and in which order.
type View struct {
	Sort    string // one of [Sorts]
	Reverse bool
	Filter  string // part of the name, of any case
	Rows    int
}

// Sorts returns the orders that a View may have.
func Sorts() []string { return []string{"use", "in-use", "granted", "free", "rate", "name"} }

// Check tells what is wrong with the View.
func (v View) Check() error {
	if !slices.Contains(Sorts(), v.Sort) {
		return fmt.Errorf("--sort %q: want one of %s", v.Sort, strings.Join(Sorts(), ", "))
	}
	return nil
}

// Next returns the view in the order that comes after its own.
func (v View) Next() View {
	all := Sorts()
	v.Sort = all[(slices.Index(all, v.Sort)+1)%len(all)]
	return v
}

func (v View) compare(a, b *Limiter) int {
	free := func(l *Limiter) int64 {
		if l.Free == nil {
			return -1
		}
		return *l.Free
	}
	var c int
	switch v.Sort {
	case "use":
		c = cmp.Or(cmp.Compare(b.Use(), a.Use()), cmp.Compare(b.InUse, a.InUse))
	case "in-use":
		c = cmp.Compare(b.InUse, a.InUse)
	case "granted":
		c = cmp.Or(cmp.Compare(b.PerSecond, a.PerSecond), cmp.Compare(b.Use(), a.Use()))
	case "free":
		c = cmp.Compare(free(a), free(b))
	case "rate":
		// Permits a second, without dividing by an interval of 0.
		c = cmp.Compare(float64(b.Rate)*float64(a.IntervalMS), float64(a.Rate)*float64(b.IntervalMS))
	}
	c = cmp.Or(c, cmp.Compare(a.Name, b.Name))
	if v.Reverse {
		return -c
	}
	return c
}
