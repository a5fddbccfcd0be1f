package dashboard

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
)

// row is a RateLimiter in the list.
type row struct {
	named

	State      look.Health   `json:"state,omitempty"` // "" if unknown
	Type       string        `json:"type"`
	Rate       int64         `json:"rate"`
	IntervalMS int64         `json:"interval_ms"`
	Origin     look.Origin   `json:"origin,omitempty"`
	Free       *int64        `json:"free"`
	InUse      *int64        `json:"in_use"`           // nil if unknown
	Use        *float64      `json:"use"`              // nil if unknown
	Broken     string        `json:"broken,omitempty"` // why calls of it fail
	Cure       string        `json:"cure,omitempty"`   // what to do then
	PerSecond  float64       `json:"granted_per_second"`
	Refused    *int64        `json:"refused"` // nil without a report
	Refusing   *float64      `json:"refused_per_second"`
	Clients    int           `json:"clients"`
	Callers    []look.Caller `json:"callers"`
	AgeMS      int64         `json:"age_ms"`
}

// list is a part of all RateLimiters.
type list struct {
	At       time.Time `json:"at"`
	Known    int       `json:"known"`
	Matching int       `json:"matching"`
	InUse    int       `json:"in_use"`
	Used     int       `json:"exhausted"`
	Broken   int       `json:"broken"`
	More     bool      `json:"more"` // than are kept
	Complete bool      `json:"complete"`
	Walked   float64   `json:"walked"`
	RoundMS  int64     `json:"round_ms"`
	Offset   int       `json:"offset"`
	Limiters []row     `json:"limiters"`
	Cost     look.Cost `json:"cost"`
}

func (h *handler) listOf(s *look.Snapshot) list {
	l := list{
		At: s.At, Known: s.Known, Matching: s.Matching, InUse: s.InUse, Used: s.Used, Broken: s.Broken, More: s.Left,
		Complete: s.Complete, Walked: s.Walked, RoundMS: s.RoundMS, Offset: s.Offset, Limiters: []row{}, Cost: s.Cost,
	}
	for i := range s.Limiters {
		l.Limiters = append(l.Limiters, h.rowOf(&s.Limiters[i]))
	}
	return l
}

// brokenOf returns why calls of a limiter fail, without what keys hold.
func brokenOf(l *look.Limiter) string {
	if l.Broken == "" {
		return ""
	}
	read := &look.Inspection{}
	if l.Rate > 0 {
		read.Rate = &l.Rate
	}
	return textOf(look.Anomaly{Kind: l.BrokenKind, Text: l.Broken}, look.ProblemOf(l.BrokenKind), read)
}

// maxCallers is how many callers a row names.
const maxCallers = 5

func (h *handler) rowOf(l *look.Limiter) row {
	r := row{
		named: nameOf(l.Name), Type: l.Type, Rate: l.Rate, IntervalMS: l.IntervalMS, Origin: l.Origin, Free: l.Free,
		Broken: brokenOf(l), PerSecond: l.PerSecond, Clients: l.Clients, Callers: []look.Caller{}, AgeMS: l.AgeMS,
	}
	if l.Free != nil {
		use := l.Use()
		r.Use = &use
	}
	if l.Broken == "" {
		r.InUse = &l.InUse
	} else {
		r.Cure = look.ProblemOf(l.BrokenKind).Advice
	}
	for _, c := range l.Callers[:min(len(l.Callers), maxCallers)] {
		c.Who = shown(c.Who)
		r.Callers = append(r.Callers, c)
	}
	if total, pace, known := h.cfg.Observer.of(l.Name); known {
		r.Refused, r.Refusing = &total, &pace
	}
	r.State = l.HealthWhile(r.Refusing != nil && *r.Refusing > 0)
	return r
}
