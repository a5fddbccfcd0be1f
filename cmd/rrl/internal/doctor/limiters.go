package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

const (
	pageKeys = 500
	workers  = 4
	examples = 3 // names shown with a problem
)

// limiters looks at the limiters: all, or as many as the options and the time
// allow. SCAN shows keys in an order that has nothing to do with their names or
// age, so the first are as good as any.
func (d *doctor) limiters(ctx context.Context, masters []nodes.Client) error {
	timeUp := func() bool { return false }
	if d.opts.Time > 0 {
		ends := time.Now().Add(d.opts.Time)
		timeUp = func() bool { return time.Now().After(ends) }
		// Calls under way at the end may take a little longer, not more.
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, ends.Add(time.Second))
		defer cancel()
	}
	c := &checks{d: d, byKind: map[string]*kind{}, layouts: map[string]int{}}
	names := make(chan string)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for name := range names {
				c.check(ctx, name)
			}
		})
	}
	var err error
	c.walked, err = d.find(ctx, masters, timeUp, names)
	close(names)
	group.Wait()
	s := &d.report.Limiters
	s.Checked, s.Partly, s.Broken, s.UsedUp = c.checked, c.partly, c.broken, c.usedUp
	s.All = c.walked && s.Checked == s.Found && s.Partly == 0
	if answered(err) {
		return err
	}
	c.report(s)
	if errors.Is(err, context.DeadlineExceeded) && timeUp() {
		return nil // it says how many were checked
	}
	return errors.Join(err, c.err)
}

// find sends the names of limiters, until it has enough, or no time is left. It
// reports whether it has walked all keys, and sent all names.
func (d *doctor) find(ctx context.Context, masters []nodes.Client, timeUp func() bool, names chan<- string) (walked bool, err error) {
	s := &d.report.Limiters
	for _, node := range masters {
		size, err := node.DBSize(ctx).Result()
		if err != nil && !answered(err) {
			return false, err
		}
		s.Keys += size
	}
	sent := 0
	for _, node := range masters {
		var cursor uint64
		for {
			page, next, err := node.ScanType(ctx, cursor, d.opts.Pattern, pageKeys, "hash").Result()
			if err != nil {
				return false, err
			}
			page, err = limitersAmong(ctx, node, page)
			if err != nil {
				return false, err
			}
			s.Walked = min(s.Walked+pageKeys, max(s.Keys, 0))
			s.Found += len(page)
			for _, name := range page {
				if sent == d.opts.Sample && sent > 0 || timeUp() {
					return false, nil
				}
				sent++
				names <- name
			}
			if cursor = next; cursor == 0 {
				break
			}
			if timeUp() {
				return false, nil
			}
		}
	}
	s.Walked = s.Keys
	return true, nil
}

// limitersAmong returns the hashes that are limiters, or were meant for one.
func limitersAmong(ctx context.Context, node nodes.Client, names []string) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	pipe := node.Pipeline()
	answers := make([]*redis.SliceCmd, len(names))
	for i, name := range names {
		answers[i] = pipe.HMGet(ctx, name, look.FieldNames...)
	}
	if _, err := pipe.Exec(ctx); err != nil && !answered(err) {
		return nil, err
	}
	var limiters []string
	for i, name := range names {
		if err := answers[i].Err(); redis.HasErrorPrefix(err, "NOPERM") {
			return nil, err
		}
		if _, _, found := look.Judge(answers[i].Val()); found {
			limiters = append(limiters, name)
		}
	}
	return limiters, nil
}

// kind is a problem that some limiters have.
type kind struct {
	count int
	names []string
	text  string // of the first
}

// checks gathers what was found in limiters.
type checks struct {
	d      *doctor
	walked bool // all keys

	mu      sync.Mutex
	checked int
	partly  int
	broken  int
	usedUp  int
	err     error
	byKind  map[string]*kind
	layouts map[string]int
}

func (c *checks) check(ctx context.Context, name string) {
	found, err := c.d.opts.Check(ctx, name)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil {
			c.err = err
		}
		return
	}
	c.checked++
	if found.Partly {
		c.partly++
	}
	switch found.State {
	case look.IsBroken:
		c.broken++
	case look.UsedUp:
		c.usedUp++
		found.Problems = append(found.Problems, Problem{Kind: "used_up", Text: "no permit is free"})
	}
	for _, layout := range found.Layouts {
		c.layouts[layout]++
	}
	seen := map[string]bool{}
	for _, p := range found.Problems {
		if seen[p.Kind] {
			continue
		}
		seen[p.Kind] = true
		k := c.byKind[p.Kind]
		if k == nil {
			k = &kind{text: p.Text}
			c.byKind[p.Kind] = k
		}
		k.count++
		if len(k.names) < examples {
			k.names = append(k.names, words.Printable(clip(name)))
		}
	}
}

// clip cuts a name that would fill the screen.
func clip(name string) string {
	const most = 60
	if runes := []rune(name); len(runes) > most {
		return string(runes[:most]) + "..."
	}
	return name
}

func (c *checks) report(s *Sampled) {
	c.reportScope(s)
	for _, name := range slices.Sorted(maps.Keys(c.byKind)) {
		k := c.byKind[name]
		known := look.ProblemOf(name)
		what := words.Plural(int64(k.count), "limiter")
		if known.Level == look.Error {
			what += " " + string(look.IsBroken)
		}
		more := ""
		if k.count > len(k.names) {
			more = fmt.Sprintf(" and %d more", k.count-len(k.names))
		}
		if k.count > 1 {
			more += "; of the first"
		}
		c.d.add(nil, name, Level(known.Level), fmt.Sprintf("%s: %s%s: %s", what,
			strings.Join(k.names, ", "), more, k.text), known.Reason, known.Advice)
	}
	c.old()
}

// reportScope says how many limiters were looked at. What was not looked at may be
// wrong: that is a note.
func (c *checks) reportScope(s *Sampled) {
	verdict := ""
	switch {
	case s.Broken+s.UsedUp > 0:
		verdict = fmt.Sprintf("; %d %s, %d %s", s.Broken, look.IsBroken, s.UsedUp, look.UsedUp)
	case len(c.byKind) == 0 && s.Checked > 0:
		verdict = "; nothing is wrong with what was looked at"
	}
	switch {
	case c.walked && s.Found == 0:
		c.d.fine(nil, "limiters", "there are none")
	case c.walked && s.Checked == s.Found:
		c.d.fine(nil, "limiters", fmt.Sprintf("all %s looked at%s", words.Plural(int64(s.Found), "limiter"), verdict))
	default:
		walked := ""
		if !c.walked && s.Keys > 0 {
			walked = fmt.Sprintf(", about %d of %s walked", s.Walked, words.Plural(s.Keys, "key"))
		}
		c.d.add(nil, "limiters", Note, fmt.Sprintf("%d of %s limiters looked at%s%s", s.Checked, s.total(c.walked), walked, verdict),
			"what was not looked at may be wrong", "--all looks at all of them, however long that takes")
	}
	if s.Partly > 0 {
		c.d.add(nil, "clients", Note, fmt.Sprintf("%s whose clients have permits of their own: the keys of these were not looked for",
			words.Plural(int64(s.Partly), "limiter")), "each such search walks all keys", "rrl show NAME looks for those of one limiter")
	}
}

// old reports members that old releases of Redisson write.
func (c *checks) old() {
	var texts []string
	for _, w := range look.AllWriters {
		if n := c.layouts[w.Layout.String()]; n > 0 && w.Layout < codec.LayoutD2 {
			texts = append(texts, fmt.Sprintf("%s with members of layout %s, as Redisson %s writes", words.Plural(int64(n), "limiter"), w.Layout, w))
		}
	}
	if len(texts) > 0 {
		c.d.add(nil, "old layouts", Note, strings.Join(texts, "; "),
			"members in another layout than all sharers can read are misread, or make Redisson fail",
			"pass the oldest release of Redisson that shares these limiters: WithRedissonVersion, rrl --redisson")
	}
}
