package model

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/rratelimiter/rratelimiter/codec"
)

// A Release is what the rate limiter of one release of Redisson does. Each flag is a change that a release brought.
type Release struct {
	Version string
	Layout  codec.Layout // of the members that it writes

	DeletesAll  bool `since:"3.13.0"` // delete takes the state too, not the configuration alone
	Expires     bool `since:"3.13.1"` // expire, expireAt, clearExpire and remainTimeToLive
	KeepsSet    bool `since:"3.13.3"` // else the value's key alone is the limiter: a fixed window, which ends with the key
	SetsRate    bool `since:"3.13.4"` // setRate
	DeletesMany bool `since:"3.13.6"` // delete answers true for more than one key too
	LooksFirst  bool `since:"3.14.0"` // more than the rate is an error always, not only if there is no value
	SeesFuture  bool `since:"3.15.3"` // a refusal's wait comes from rows of a later date too
	PlainWait   bool `since:"3.15.4"` // a refusal that finds no row fails at the sum, not at the row
	Clamps      bool `since:"3.16.2"` // a value above the rate, after a reclaim, becomes what is not in use
	ReadsOldest bool `since:"3.16.2"` // a refusal's wait comes from the oldest row, whatever its date
	GivesTTL    bool `since:"3.17.3"` // tryAcquire gives the configuration's time to live to the state
	ReadsEmpty  bool `since:"3.18.0"` // getConfig answers if there is no configuration
	ClearsOwn   bool `since:"3.22.1"` // setRate clears the pair of the new type, not the shared one
	SumsUp      bool `since:"3.35.0"` // what is in use are permits, not rows
	TakesTTL    bool `since:"3.37.0"` // trySetRate and setRate with a time to live
	KeepsAlive  bool `since:"3.38.0"` // which is a field, and renewed by each acquire
	Releases    bool `since:"3.52.0"` // release
	Updates     bool `since:"4.4.0"`  // setRate(args) and updateRate

	Trusts   bool `since:"next"`       // a value above the rate stays, if it and what is in use were more before
	TakesOff bool `since:"after-next"` // release takes permits off the oldest rows
}

// Unreleased are changes of Redisson that no release has yet, with the release that drivers make them to. "next" is what
// https://github.com/redisson/redisson/pull/7343 describes, "after-next" a release() that was seen in the sources later, instead of it.
var Unreleased = map[string]string{"next": "4.7.0", "after-next": "4.7.0"}

// ReleaseOf returns the release with a version such as "3.52.0", or what is Unreleased.
func ReleaseOf(version string) *Release {
	since := func(first string) bool {
		if Unreleased[first] != "" {
			return version == first
		}
		return !Older(version, first)
	}
	r := &Release{Version: version}
	for field, flag := range reflect.ValueOf(r).Elem().Fields() {
		if first, ok := field.Tag.Lookup("since"); ok {
			flag.SetBool(since(first))
		}
	}
	switch {
	case since("3.21.0"):
		r.Layout = codec.LayoutD2
	case since("3.17.0"):
		r.Layout = codec.LayoutD1
	case since("3.16.4"):
		r.Layout = codec.LayoutC
	case r.KeepsSet:
		r.Layout = codec.LayoutB
	}
	return r
}

// CountsRows reports whether it takes the number of rows for the number of permits in use.
func (r *Release) CountsRows() bool { return r.Clamps && !r.SumsUp }

// Lacks reports whether the release has no such operation.
func (r *Release) Lacks(operation string) bool {
	switch operation {
	case "release":
		return !r.Releases
	case "setRate":
		return !r.SetsRate
	case "setRateArgs", "updateRate":
		return !r.Updates
	case "expire", "expireAt", "clearExpire", "ttl":
		return !r.Expires
	}
	return false
}

// Older reports whether a release came before another. Both are numbers with dots between, or Unreleased.
func Older(version, than string) bool {
	version, than = cmp.Or(Unreleased[version], version), cmp.Or(Unreleased[than], than)
	a, b := strings.Split(version, "."), strings.Split(than, ".")
	for i := range min(len(a), len(b)) {
		x, errX := strconv.Atoi(a[i])
		y, errY := strconv.Atoi(b[i])
		if errX != nil || errY != nil {
			panic(fmt.Sprintf("no releases: %q, %q", version, than))
		}
		if x != y {
			return x < y
		}
	}
	return len(a) < len(b)
}

// releaseDoes are the operations, defects included.
var releaseDoes = map[string]func(r *Release, c *Call, op Op) Answer{
	"tryAcquire":        (*Release).tryAcquire,
	"tryAcquireTimeout": (*Release).tryAcquire,
	"release":           (*Release).release,
	"availablePermits":  (*Release).availablePermits,
	"trySetRate":        (*Release).trySetRate,
	"setRate":           (*Release).setRate,
	"setRateArgs":       (*Release).setRateArgs,
	"updateRate":        (*Release).setRateArgs,
	"getConfig":         (*Release).getConfig,
	"expire":            (*Release).expire,
	"expireAt":          (*Release).expire,
	"clearExpire":       (*Release).clearExpire,
	"ttl":               func(_ *Release, c *Call, _ Op) Answer { return ttl(c) },
	"exists":            func(_ *Release, c *Call, _ Op) Answer { return exists(c) },
	"delete":            (*Release).remove,
	"unlink":            (*Release).unlink,
}

func (r *Release) may(op Op) []Possible {
	return []Possible{func(c *Call) (Answer, bool) { return releaseDoes[op.Do](r, c, op), true }}
}

// tail is what tryAcquire, release and a rate set with keepState do at their end.
func (r *Release) tail(c *Call) {
	if keepAlive := c.KeepAlive(); r.KeepsAlive && keepAlive > 0 {
		c.ConfigEnd = c.after(keepAlive)
		c.Pair().expire(c.ConfigEnd)
	} else if r.GivesTTL && c.ConfigEnd != 0 {
		c.Pair().expire(c.ConfigEnd)
	}
}

func (r *Release) tryAcquire(c *Call, op Op) Answer {
	if c.Config == nil {
		return Say(NotInitialized)
	}
	permits, rate, p := op.Permits, c.Rate(), c.Pair()
	if permits > rate && (r.LooksFirst || !p.HasValue) {
		return Say(ExceedsRate)
	}
	if !r.KeepsSet {
		return r.tryWindow(c, permits)
	}
	if !p.HasValue {
		p.set(rate) // whatever is in use
		c.grant(p, permits)
		r.tail(c)
		return Say(true)
	}
	if before := p.Value; r.reclaim(c, p) && r.Clamps && p.Value > rate {
		if used := r.inUse(c, p.Rows); r.Trusts && before+used > rate {
			p.Value = before
		} else {
			p.Value = rate - used
		}
	}
	if p.Value < permits {
		if problem := r.noWait(c, p); problem != "" {
			return Say(problem)
		}
		r.tail(c)
		return Say(false)
	}
	c.grant(p, permits)
	r.tail(c)
	return Say(true)
}

// reclaim takes back what has run out, and reports whether there was any.
func (r *Release) reclaim(c *Call, p *Pair) bool {
	out, rest := c.split(p.Rows, c.Interval())
	released := sum(out)
	if released > 0 {
		p.SetRows(rest)
		p.set(p.Value + released)
	}
	return released > 0
}

// inUse returns what the release takes for the permits of these rows.
func (r *Release) inUse(c *Call, rows []Row) int64 {
	permits := sum(rows)
	if r.SumsUp {
		return permits
	}
	c.Miscounted = int64(len(rows)) != permits
	return int64(len(rows))
}

// noWait returns the error of a refusal that finds no row to tell its wait from, "" if it finds one.
func (r *Release) noWait(c *Call, p *Pair) string {
	if r.ReadsOldest {
		if len(p.Rows) == 0 {
			return NilArithmetic
		}
		return ""
	}
	_, rows := c.split(p.Rows, c.Interval())
	for _, row := range rows {
		if r.SeesFuture || row.At <= c.Now {
			return ""
		}
	}
	if r.PlainWait {
		return NilArithmetic
	}
	return NothingToUnpack
}

// tryWindow is tryAcquire of a release without a set.
func (r *Release) tryWindow(c *Call, permits int64) Answer {
	p := c.Pair()
	if !p.HasValue {
		r.openWindow(c)
	}
	if p.Value < permits {
		return Say(false)
	}
	p.Value -= permits
	return Say(true)
}

func (r *Release) openWindow(c *Call) {
	p := c.Pair()
	p.set(c.Rate())
	if !r.KeepsSet {
		p.ValueEnd = c.after(c.Interval())
	}
}

func (r *Release) release(c *Call, op Op) Answer {
	permits := op.Permits
	switch {
	case permits < 0:
		return Say(Illegal)
	case permits == 0:
		return Say("done")
	case c.Config == nil:
		return Say(NotInitialized)
	}
	rate, p := c.Rate(), c.Pair()
	value := rate
	if p.HasValue {
		value = p.Value
	}
	p.set(min(rate, value+permits))
	if r.TakesOff { // else the rows stay
		takeOff(p, permits)
	}
	r.tail(c)
	return Say("done")
}

// takeOff takes permits off the oldest rows. A row that keeps some is removed and added again: if it was alone, the set loses its end.
func takeOff(p *Pair, permits int64) {
	for permits > 0 && len(p.Rows) > 0 {
		oldest, rest := p.Rows[0], slices.Clone(p.Rows[1:])
		p.SetRows(rest)
		if oldest.Permits > permits {
			p.SetRows(slices.Insert(rest, 0, oldest.lessened(oldest.Permits-permits)))
		}
		permits -= oldest.Permits
	}
}

func (r *Release) availablePermits(c *Call, _ Op) Answer {
	if c.Config == nil {
		return Say(NotInitialized)
	}
	p := c.Pair()
	if !p.HasValue {
		r.openWindow(c)
		return Say(p.Value)
	}
	if !r.KeepsSet {
		return Say(p.Value)
	}
	r.reclaim(c, p)
	return Say(p.Value)
}

func (r *Release) trySetRate(c *Call, op Op) Answer {
	if c.Config != nil {
		if _, ok := c.Config["keepAliveTime"]; !ok && r.KeepsAlive {
			c.Config["keepAliveTime"] = strconv.FormatInt(op.Rate.KeepAlive, 10)
		}
		return Say(false)
	}
	r.store(c, op.Rate)
	return Say(true)
}

// store writes the configuration. Without a keep-alive time the old end stays, and before there was a field for it the field too.
func (r *Release) store(c *Call, cfg *Rate) {
	field, ok := c.Config["keepAliveTime"]
	c.setConfig(cfg)
	if !r.KeepsAlive {
		delete(c.Config, "keepAliveTime")
		if ok {
			c.Config["keepAliveTime"] = field
		}
	}
	if cfg.KeepAlive > 0 {
		c.ConfigEnd = c.after(cfg.KeepAlive)
	}
}

func (r *Release) setRate(c *Call, op Op) Answer {
	r.store(c, op.Rate)
	if r.ClearsOwn {
		c.pairOf(op.Rate.Type).Del()
	} else {
		c.pairOf(overall).Del()
	}
	return Say("done")
}

func (r *Release) setRateArgs(c *Call, op Op) Answer {
	set, cfg := op.set(), op.Rate
	if c.Config == nil && op.Do == "updateRate" {
		return Say(false)
	}
	typeChanged := c.Config != nil && c.Config["type"] != cfg.Type
	r.store(c, cfg)
	p := c.Pair()
	switch {
	case typeChanged:
		for _, p := range c.own() {
			p.Del()
		}
	case !op.Keep:
		p.Del()
	default:
		_, rest := c.split(p.Rows, cfg.Interval)
		p.SetRows(rest)
		p.set(max(0, cfg.Rate-sum(rest)))
		r.tail(c)
	}
	return set
}

// unlink takes the configuration alone.
func (r *Release) unlink(c *Call, _ Op) Answer {
	there := c.Config != nil
	c.DelConfig()
	return Say(there)
}

func (r *Release) remove(c *Call, op Op) Answer {
	if !r.DeletesAll {
		return r.unlink(c, op)
	}
	gone := 0
	if c.Config != nil {
		gone++
	}
	for _, p := range c.own() {
		if p.HasValue {
			gone++
		}
		if len(p.Rows) > 0 {
			gone++
		}
	}
	answer := remove(c)
	if !r.DeletesMany {
		return Say(gone == 1)
	}
	return answer
}

// ending returns the pairs that get the limiter's end: without a set the configuration alone does.
func (r *Release) ending(c *Call) []*Pair {
	if r.KeepsSet {
		return c.own()
	}
	return nil
}

func (r *Release) expire(c *Call, op Op) Answer     { return expire(c, op.end(c), r.ending(c)) }
func (r *Release) clearExpire(c *Call, _ Op) Answer { return clearExpire(c, r.ending(c)) }

// getConfig reads missing fields as OVERALL, 0, 0.
func (r *Release) getConfig(c *Call, _ Op) Answer {
	if c.Config == nil && !r.ReadsEmpty {
		return Say(NotDecoded)
	}
	return Say(TypeName(c.Config["type"]), c.Rate(), c.Interval())
}
