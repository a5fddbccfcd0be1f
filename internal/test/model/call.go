package model

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
)

// A Client is who calls.
type Client struct {
	Number int // who wrote a row; 0 if members don't tell
	ID     string
	Layout codec.Layout // of the members that it writes
}

// An Op is an operation as it is called; times are milliseconds from now.
type Op struct {
	Do      string   `json:"do"`
	Permits int64    `json:"permits,omitempty"`
	Rate    *Rate    `json:"rate,omitempty"`
	Keep    bool     `json:"keepState,omitempty"`
	TTL     int64    `json:"ttl,omitempty"`
	At      int64    `json:"at,omitempty"`
	To      []string `json:"to,omitempty"`    // the limiters beside the one it is called on
	More    int64    `json:"more,omitempty"`  // permits that each of To is asked for beyond those of the one before
	Held    bool     `json:"held,omitempty"`  // the handle has been refused lately
	Row     *Row     `json:"row,omitempty"`   // the reserved row, of Permits, whatever is left of it
	Used    int64    `json:"used,omitempty"`  // of them, or more
	Hold    int64    `json:"hold,omitempty"`  // until what is reserved comes back
	Early   int64    `json:"early,omitempty"` // how long before its grant the reserved row is dated, for a hold
}

// PermitsOf returns how many permits are asked of the limiter at that place, 0 being the one it is called on.
func (op Op) PermitsOf(place int) int64 { return op.Permits + int64(place)*op.More }

func (op Op) end(c *Call) int64 {
	if op.Do == "expireAt" {
		return c.after(op.At)
	}
	return c.after(op.TTL)
}

// set returns the answer once a rate is set.
func (op Op) set() Answer {
	if op.Do == "updateRate" {
		return Say(true)
	}
	return Say("done")
}

// A Rate is one as Redis holds it: times are milliseconds.
type Rate struct {
	Type      string `json:"type"` // 0: for all clients together, 1: for each
	Rate      int64  `json:"rate"`
	Interval  int64  `json:"interval"`
	KeepAlive int64  `json:"keepAlive"`
}

const (
	overall   = "0"
	perClient = "1"
)

// Public returns it as callers give it.
func (r *Rate) Public() rratelimiter.Config {
	cfg := rratelimiter.Config{Rate: r.Rate, Interval: time.Duration(r.Interval) * ms, KeepAlive: time.Duration(r.KeepAlive) * ms}
	if r.Type == perClient {
		cfg.Type = rratelimiter.PerClient
	}
	return cfg
}

// TypeName is what getConfig calls a type.
func TypeName(kind string) string {
	if kind == perClient {
		return "PER_CLIENT"
	}
	return "OVERALL"
}

// An Answer is what an operation returned: a text, and durations in milliseconds.
type Answer struct {
	Text  string
	Times []int64
}

// Say returns the answer of these values.
func Say(values ...any) Answer {
	return Answer{Text: strings.TrimSuffix(fmt.Sprintln(values...), "\n")}
}

// With returns the answer with durations.
func (a Answer) With(times ...int64) Answer {
	a.Times = times
	return a
}

// What both libraries say, each in its own words.
const (
	NotInitialized = "error: not initialized"
	ExceedsRate    = "error: more than the rate"
	Illegal        = "error: illegal argument"
	NilArithmetic  = "error: arithmetic on a nil value"

	// This module alone, beside a Redisson that keeps no set.
	Unsupported = "error: unsupported"

	// Redisson alone, of some releases.
	NothingToUnpack = "error: bad argument to unpack"
	NotDecoded      = "error: the reply is not decoded"
)

// A Call is one operation under way: the state that it changes, who calls, and when.
type Call struct {
	*State

	To  []*State // of the other limiters
	Who Client
	Now int64

	Miscounted bool // rows were taken for permits, and their numbers differ

	early int64 // how long before now a grant is dated
}

// A Possible is what an operation may do; false if the case is not given.
type Possible func(*Call) (Answer, bool)

// Pair returns the keys in use, by the limiter's type.
func (c *Call) Pair() *Pair { return c.pairOf(c.Config["type"]) }

func (c *Call) pairOf(kind string) *Pair {
	if kind == perClient {
		return c.Pairs[c.Who.ID]
	}
	return c.Pairs[""]
}

// own returns both pairs that the caller knows of.
func (c *Call) own() []*Pair { return []*Pair{c.Pairs[""], c.Pairs[c.Who.ID]} }

// after returns the moment that many ms from now; all that are over are one.
func (c *Call) after(ms int64) int64 {
	if ms <= 0 {
		return c.Now - 1
	}
	return c.Now + ms
}

// split parts rows into those that have run out and the rest.
func (c *Call) split(rows []Row, interval int64) (out, rest []Row) {
	for _, r := range rows {
		if len(Grants{r.Grant}.Settled(interval, c.Now)) == 0 {
			out = append(out, r)
		} else {
			rest = append(rest, r)
		}
	}
	return out, rest
}

// grant takes permits: a new row, and that much less of the value.
func (c *Call) grant(p *Pair, permits int64) {
	// Redisson packs any number into 32 bits.
	g := Grant{At: c.Now - c.early, By: c.Who.Number, Permits: int64(uint32(permits))}
	p.Rows = append(p.Rows, Row{Grant: g, Layout: c.Who.Layout})
	sortRows(p.Rows)
	p.Value -= permits
}

func (c *Call) setConfig(rate *Rate) {
	c.Config = map[string]string{
		"rate":          strconv.FormatInt(rate.Rate, 10),
		"interval":      strconv.FormatInt(rate.Interval, 10),
		"type":          rate.Type,
		"keepAliveTime": strconv.FormatInt(rate.KeepAlive, 10),
	}
}

// The rest are the operations that are the same in both libraries.

func expire(c *Call, end int64, pairs []*Pair) Answer {
	there := c.Config != nil
	if there {
		c.ConfigEnd = end
	}
	for _, p := range pairs {
		there = there || p.there()
		p.expire(end)
	}
	c.ExpireKeys(c.Now)
	return Say(there)
}

func clearExpire(c *Call, pairs []*Pair) Answer {
	had := c.ConfigEnd != 0
	c.ConfigEnd = 0
	for _, p := range pairs {
		had = had || p.ValueEnd != 0 || p.RowsEnd != 0
		p.ValueEnd, p.RowsEnd = 0, 0
	}
	return Say(had)
}

func ttl(c *Call) Answer {
	switch {
	case c.Config == nil:
		return Say(-2)
	case c.ConfigEnd == 0:
		return Say(-1)
	}
	return Say("ms").With(c.ConfigEnd - c.Now)
}

func exists(c *Call) Answer { return Say(c.Config != nil) }

func remove(c *Call) Answer {
	there := c.Config != nil
	c.DelConfig()
	for _, p := range c.own() {
		there = there || p.there()
		p.Del()
	}
	return Say(there)
}

// An Outcome is what an operation may come to.
type Outcome struct {
	Answer

	*State              // of the limiter
	To         []*State // of the others
	Miscounted bool     // rows were taken for permits, and their numbers differ
}

func outcomes(c *Call, may []Possible) (all []Outcome) {
	for _, some := range may {
		with := *c
		with.State, with.To = c.Clone(), nil
		for _, other := range c.To {
			with.To = append(with.To, other.Clone())
		}
		answer, given := some(&with)
		o := Outcome{Answer: answer, State: with.State, To: with.To, Miscounted: with.Miscounted}
		if given && !slices.ContainsFunc(all, func(as Outcome) bool { return reflect.DeepEqual(as, o) }) {
			all = append(all, o)
		}
	}
	return all
}

// Outcomes returns what an operation may come to. What the call holds stays as it is.
func (r *Release) Outcomes(c *Call, op Op) []Outcome { return outcomes(c, r.may(op)) }

// Outcomes returns what an operation may come to. What the call holds stays as it is.
func (m *Module) Outcomes(c *Call, op Op) []Outcome { return outcomes(c, m.may(op)) }
