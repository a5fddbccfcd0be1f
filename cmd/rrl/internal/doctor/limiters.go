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

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
)

const (
	pageKeys = 500
	workers  = 4
	examples = 3 // names told with a problem
)

// limiters looks at a sample of the limiters. SCAN shows keys in an order that
// has nothing to do with their names or age, so the first are as good as any.
func (d *doctor) limiters(ctx context.Context, masters []*redis.Client) error {
	ends := time.Now().Add(d.opts.Time)
	// What is under way at the end may take a little longer, not more.
	ctx, cancel := context.WithDeadline(ctx, ends.Add(time.Second))
	defer cancel()
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
	all, err := d.find(ctx, masters, ends, names)
	close(names)
	group.Wait()
	s := &d.report.Limiters
	s.Checked = c.checked
	s.All = all && s.Checked == s.Found
	if answered(err) {
		return err
	}
	c.report(s)
	if errors.Is(err, context.DeadlineExceeded) && time.Now().After(ends) {
		return nil // it says how many were checked
	}
	return errors.Join(err, c.err)
}

// find sends the names of limiters, until it has enough, or no time is left. It
// returns whether there are no more.
func (d *doctor) find(ctx context.Context, masters []*redis.Client, ends time.Time, names chan<- string) (all bool, err error) {
	s := &d.report.Limiters
	for _, node := range masters {
		size, err := node.DBSize(ctx).Result()
		if err != nil && !answered(err) {
			return false, err
		}
		s.Keys += size
	}
	for _, node := range masters {
		var cursor uint64
		for {
			page, next, err := node.ScanType(ctx, cursor, d.opts.Pattern, pageKeys, "hash").Result()
			if err != nil {
				return false, err
			}
			s.Walked = min(s.Walked+pageKeys, max(s.Keys, 0))
			page, err = limitersAmong(ctx, node, page)
			if err != nil {
				return false, err
			}
			for _, name := range page {
				if s.Found >= d.opts.Sample || time.Now().After(ends) {
					return false, nil
				}
				s.Found++
				names <- name
			}
			if cursor = next; cursor == 0 {
				break
			}
			if time.Now().After(ends) {
				return false, nil
			}
		}
	}
	return true, nil
}

// limitersAmong returns those of the hashes that have a field of a limiter.
func limitersAmong(ctx context.Context, node *redis.Client, names []string) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	pipe := node.Pipeline()
	answers := make([]*redis.SliceCmd, len(names))
	for i, name := range names {
		answers[i] = pipe.HMGet(ctx, name, "rate", "interval", "type")
	}
	if _, err := pipe.Exec(ctx); err != nil && !answered(err) {
		return nil, err
	}
	var limiters []string
	for i, name := range names {
		if err := answers[i].Err(); redis.HasErrorPrefix(err, "NOPERM") {
			return nil, err
		}
		if fields := answers[i].Val(); len(fields) == 3 && !slices.Contains(fields, nil) {
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
	d *doctor

	mu      sync.Mutex
	checked int
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
			k.names = append(k.names, output.Printable(clip(name)))
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
	text := fmt.Sprintf("%s checked", output.Plural(int64(s.Checked), "limiter"))
	if s.All {
		text += ", all that there are"
	} else {
		text += fmt.Sprintf(", a sample: about %d of %s were walked", s.Walked, output.Plural(s.Keys, "key"))
	}
	if len(c.byKind) == 0 {
		text += "; nothing is wrong with them"
	}
	c.d.fine(nil, "limiters", text)
	for _, name := range slices.Sorted(maps.Keys(c.byKind)) {
		k := c.byKind[name]
		known := problems[name]
		if known.level == "" {
			known.level, known.reason = Warning, "a healthy limiter's keys are not so"
		}
		more := ""
		if k.count > len(k.names) {
			more = fmt.Sprintf(" and %d more", k.count-len(k.names))
		}
		if known.advice == "" {
			known.advice = "rrl show NAME tells more of each"
		}
		c.d.add(nil, name, known.level, fmt.Sprintf("%s: %s%s: %s", output.Plural(int64(k.count), "limiter"),
			strings.Join(k.names, ", "), more, k.text), known.reason, known.advice)
	}
	c.old()
}

// old tells of members that old releases of Redisson write.
func (c *checks) old() {
	var texts []string
	for _, l := range []struct{ layout, releases string }{{"B", "3.13.3 to 3.16.3"}, {"C", "3.16.4 to 3.16.8"}, {"D1", "3.17.0 to 3.20.1"}} {
		if n := c.layouts[l.layout]; n > 0 {
			texts = append(texts, fmt.Sprintf("%s with members of layout %s, as Redisson %s writes", output.Plural(int64(n), "limiter"), l.layout, l.releases))
		}
	}
	if len(texts) > 0 {
		c.d.add(nil, "old layouts", Note, strings.Join(texts, "; "),
			"members in another layout than all sharers can read are misread, or make Redisson fail",
			"pass the oldest release of Redisson that shares these limiters: WithRedissonVersion, rrl --redisson")
	}
}

// problems says of each kind of problem how bad it is, why, and what helps.
// What is not here is a warning.
var problems = map[string]struct {
	level          Level
	reason, advice string
}{
	"wrong_type": {Error, "calls of this limiter fail with WRONGTYPE", "find out who writes that key; rrl delete removes the limiter, then set its rate again"},
	"bad_config": {Error, "calls of this limiter fail", "rrl set-rate writes it anew"},
	"bad_value":  {Error, "calls of this limiter fail, Redisson's too", "rrl set-rate starts it anew"},
	"no_config":  {Warning, "calls fail for want of a rate, and what is left has no use", "rrl set-rate, or rrl delete"},
	"unknown_layout": {
		Error, "Redisson fails on such a member, or misreads it", "find out who writes it; rrl set-rate starts anew",
	},
	"mixed_layouts": {
		Error, "Redissons that can't read each other's members fail, or grant too many permits",
		"upgrade those before 3.17 and run rrl migrate, or start anew by rrl set-rate",
	},
	"window_and_members": {
		Error, "too many permits are granted", "upgrade the Redisson before 3.13.3, then run rrl migrate",
	},
	"value_above_rate": {Warning, "more permits are free than the rate", "rrl set-rate starts it anew"},
	"sum_not_rate": {
		Warning, "permits were lost, or are granted beyond the rate; Redisson's own release and changes of a rate do that too",
		"the next calls repair what can be told; rrl set-rate starts anew",
	},
	"no_value":           {Warning, "Redisson grants the whole rate again", "the next call through rratelimiter repairs it"},
	"future_members":     {Warning, "their permits come back late", "keep the clocks of machines that run Redisson in step"},
	"no_ttl":             {Warning, "the key stays when the limiter's rate has expired", "rrl expire sets all keys' times; or rrl delete"},
	"client_no_ttl":      {Warning, "each restart of a client leaves two keys that nobody removes", "give the limiter a keep-alive time, or run SCAN for old clients; rratelimiter's own clients expire"},
	"keys_of_other_type": {Note, "they take memory and nobody reads them", "delete them"},
	"not_all_read":       {Note, "what was not read was not judged", ""},
}
