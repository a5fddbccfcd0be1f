package dashboard

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/inspect/holders"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

const (
	// manyMembers is from how many members on a limiter is read in full only now and
	// then.
	manyMembers = 1000
	nowAndThen  = 5 * time.Second

	maxStates  = 20 // clients with permits of their own
	maxPermits = 20 // single permits shown
	returns    = 60 // parts of the coming interval
	maxHolders = 50
)

// inspection is a limiter as it was read last in full.
type inspection struct {
	found *look.Inspection
	at    time.Time
}

// inspect reads the limiters of these viewers in full. If the server refuses to read one, for
// example for lack of a right, failed has its error.
func (p *poller) inspect(ctx context.Context, viewers []*viewer) (failed map[string]error, err error) {
	failed = make(map[string]error)
	fresh := make(map[string]*inspection, len(viewers))
	for _, v := range viewers {
		if fresh[v.name] != nil {
			continue
		}
		if old := p.inspections[v.name]; old != nil && old.members() > manyMembers && time.Since(old.at) < nowAndThen {
			fresh[v.name] = old
			continue
		}
		found, err := look.Inspect(ctx, p.h.cfg.Redis, v.name, func(context.Context) ([]string, error) {
			ids := p.reader.Clients(v.name)
			return ids[:min(len(ids), maxStates)], nil
		})
		if _, answered := errors.AsType[redis.Error](err); answered {
			failed[v.name] = err
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, t := range found.Trips {
			p.reader.Spend(t.Took, t.Cmds)
		}
		found.Tell(p.names, p.namesErr)
		fresh[v.name] = &inspection{found, time.Now()}
	}
	p.inspections = fresh
	return failed, nil
}

func (i *inspection) members() (n int64) {
	for s := range i.found.States {
		n += i.found.States[s].Members
	}
	return n
}

// limiter is all that the page shows of one RateLimiter.
type limiter struct {
	named

	At          time.Time   `json:"at"`     // by the server's clock, when it was read in full
	Exists      bool        `json:"exists"` // it has any key
	State       look.Health `json:"state,omitempty"`
	Rate        *int64      `json:"rate"`
	IntervalMS  *int64      `json:"interval_ms"`
	Type        *string     `json:"type"`
	Origin      look.Origin `json:"origin,omitempty"`
	Ends        *look.Ends  `json:"ends,omitempty"`
	KeepAliveMS *int64      `json:"keep_alive_ms"`
	TTLMS       *int64      `json:"ttl_ms"`
	Row         *row        `json:"row"` // nil until the walk has found it
	Free        *int64      `json:"free"`
	InUse       *int64      `json:"in_use"` // nil if unknown
	Granted     *float64    `json:"granted_per_second"`
	Refused     *int64      `json:"refused"`
	Refusing    *float64    `json:"refused_per_second"`
	Clients     int         `json:"clients"`
	States      []state     `json:"states"`
	NamesError  string      `json:"names_error,omitempty"`
	Anomalies   []complaint `json:"anomalies"`
	Broken      string      `json:"broken,omitempty"` // why calls of it fail, or are answered wrongly
	Cost        look.Cost   `json:"cost"`
}

// state is a pair of value and set: the shared one, or a client's.
type state struct {
	Client     *named   `json:"client"` // nil for the pair that all share
	ClientName string   `json:"client_name,omitempty"`
	Free       *int64   `json:"free"`
	Value      *int64   `json:"value"`
	InUse      int64    `json:"in_use"`
	RunOut     int64    `json:"run_out"`
	Members    int64    `json:"members"`
	Whole      bool     `json:"whole"` // all members were read
	Window     bool     `json:"window"`
	ValueTTLMS *int64   `json:"value_ttl_ms"`
	Debt       int64    `json:"debt,omitempty"`           // permits in use beyond the rate
	NextMS     *int64   `json:"next_permit_ms,omitempty"` // if none is free
	UsedUpMS   *int64   `json:"used_up_ms,omitempty"`     // since the last was granted, or less
	Merged     int64    `json:"merged,omitempty"`         // members that stand for several grants
	LateMS     int64    `json:"late_ms,omitempty"`        // by how much their permits come back late at most
	Holders    []holder `json:"holders"`
	// Returns are the permits that come back in each part of the coming interval.
	Returns []int64  `json:"returns"`
	Permits []permit `json:"permits"` // the ones that come back first
}

type holder struct {
	Kind    holders.Kind `json:"kind"`
	Who     string       `json:"who"`
	Mark    string       `json:"mark,omitempty"`
	Permits int64        `json:"permits"`
	BackIn  *int64       `json:"back_in_ms"` // the first of them
}

type permit struct {
	Permits  uint32 `json:"permits"`
	Layout   string `json:"layout"`
	BackInMS *int64 `json:"back_in_ms"`
}

// complaint is an anomaly with what to do about it.
type complaint struct {
	Kind   string `json:"kind"`
	Text   string `json:"text"`
	Level  string `json:"level"`
	Reason string `json:"reason"`
	Advice string `json:"advice"`
}

// limiterOf assembles everything known about a limiter; s has its row, if any.
func (h *handler) limiterOf(name string, i *inspection, s *look.Snapshot) limiter {
	f := i.found
	l := limiter{
		named: nameOf(name), At: time.UnixMilli(f.NowMS), Exists: f.Exists, Rate: f.Rate, IntervalMS: f.IntervalMS, Type: f.Type,
		Origin: f.Origin, Ends: f.Ends, KeepAliveMS: f.KeepAliveMS, Clients: f.Clients, States: []state{}, Anomalies: []complaint{}, Cost: s.Cost,
	}
	if f.Rate != nil {
		l.TTLMS = f.TTLMS
	}
	l.Exists = f.Exists && (!f.Foreign || f.Broken != "") // the page says what else it is
	l.Name = whole(name)
	if f.NamesError != "" {
		l.NamesError = cut(f.NamesError, maxTold)
	}
	for _, a := range f.Anomalies {
		p := look.ProblemOf(a.Kind)
		text := textOf(a, p, f)
		l.Anomalies = append(l.Anomalies, complaint{a.Kind, text, p.Level, p.Reason, p.Advice})
		if p.Level == look.Error && l.Broken == "" {
			l.Broken = text
		}
	}
	var inUse int64
	for n := range f.States {
		st := stateOf(&f.States[n], f)
		l.States = append(l.States, st)
		inUse += st.InUse
		if l.Free == nil || st.Free != nil && *st.Free < *l.Free {
			l.Free = st.Free
		}
	}
	if len(f.States) == 0 {
		l.Free = f.Rate
	}
	if f.Rate != nil && (l.Broken == "" || l.Free != nil) {
		l.InUse = &inUse
	}
	if total, pace, known := h.cfg.Observer.of(name); known {
		l.Refused, l.Refusing = &total, &pace
	}
	l.freshen(h, i, s)
	if l.State = f.State; l.Exists {
		refusing := l.Refusing != nil && *l.Refusing > 0
		if broken := l.Broken != ""; broken || refusing && l.State == look.Fine {
			l.State = look.HealthOf(broken, l.Free, refusing)
		}
		if l.Row != nil && l.Row.State == look.UsedUp && (l.State == look.Fine || l.State == look.Refusing) {
			l.State = look.UsedUp // until a moment ago
		}
	}
	return l
}

// freshen takes the figures of the row if it is newer.
func (l *limiter) freshen(h *handler, i *inspection, s *look.Snapshot) {
	if len(s.Limiters) == 0 {
		l.Granted = i.lately()
		return
	}
	r := h.rowOf(&s.Limiters[0])
	l.Row, l.Granted, l.Broken = &r, &r.PerSecond, cmp.Or(l.Broken, r.Broken)
	if i.members() > manyMembers {
		l.Free, l.InUse = r.Free, r.InUse
	}
	if r.Clients > l.Clients {
		l.Clients = r.Clients
	}
}

// lately returns the permits granted in the last second, as far as members show.
func (i *inspection) lately() *float64 {
	if i.found.IntervalMS == nil || i.members() > look.MaxMembers {
		return nil
	}
	pace := i.found.PerSecond()
	return &pace
}

// whole returns all of a name, as far as it can be looked at.
func whole(name string) string {
	if len(name) > maxName {
		return shown(name)
	}
	return words.Printable(name)
}

// plainTexts are the kinds of anomalies whose texts have nothing of what keys hold, and
// ofReadable those whose texts have numbers and times of a limiter's own.
var (
	plainTexts = []string{"wrong_type", "no_config", "unknown_layout", "not_all_read", "keys_of_other_type", "no_ttl", "client_no_ttl"}
	ofReadable = []string{"future_members", "mixed_layouts", "window_and_members", "value_above_rate", "sum_not_rate", "in_debt", "no_value"}
)

// textOf returns what an anomaly says, without what keys hold that are no limiter's.
func textOf(a look.Anomaly, p look.Problem, f *look.Inspection) string {
	switch {
	case a.Kind == "not_ours":
		return "this key holds something else, not a limiter"
	case a.Kind == "bad_config":
		return "rate, interval or type in the hash is missing, or no whole number that may be there"
	case a.Kind == "bad_value":
		return "the value is no whole number"
	case slices.Contains(plainTexts, a.Kind), f.Rate != nil && slices.Contains(ofReadable, a.Kind):
		return cut(a.Text, maxTold)
	}
	return p.Reason
}

// stateOf is what the page shows of a pair. Without a rate it may be anything's: then only
// its size.
func stateOf(s *look.State, f *look.Inspection) state {
	if f.Rate == nil {
		return state{Members: s.Members, Holders: []holder{}, Permits: []permit{}, Returns: []int64{}}
	}
	st := state{
		Free: s.Free, Value: s.Value, InUse: s.InUse, RunOut: s.RunOut, Members: s.Members, Whole: s.Members <= look.MaxMembers,
		Window: s.Window, ValueTTLMS: s.ValueTTLMS, Debt: s.Debt, NextMS: s.NextMS, UsedUpMS: s.UsedUpMS, Merged: s.Merged, LateMS: s.LateMS,
		Holders: []holder{}, Permits: []permit{}, Returns: []int64{},
	}
	if s.ClientID != nil {
		id := nameOf(*s.ClientID)
		st.Client, st.ClientName = &id, cut(s.ClientName, maxTold)
	}
	for _, share := range s.Shares[:min(len(s.Shares), maxHolders)] {
		st.Holders = append(st.Holders, holder{share.Kind, cut(share.Name, maxTold), share.Mark, share.Permits, share.BackInMS})
	}
	for i := range s.Permits {
		if p := &s.Permits[i]; p.Known() && !p.RanOut() && len(st.Permits) < maxPermits {
			st.Permits = append(st.Permits, permit{p.Permits, p.Layout, p.BackInMS})
		}
	}
	st.Returns = returnsOf(s, *f.Rate, *f.IntervalMS)
	return st
}

// returnsOf adds up when permits come back, in equal parts of the interval. A window's
// all come back at its end.
func returnsOf(s *look.State, rate, intervalMS int64) []int64 {
	parts := make([]int64, returns)
	add := func(inMS, permits int64) {
		at := int64(float64(max(inMS-1, 0)) / float64(max(intervalMS, 1)) * returns)
		parts[min(max(at, 0), returns-1)] += permits
	}
	for i := range s.Permits {
		if p := &s.Permits[i]; p.BackInMS != nil && !p.RanOut() {
			add(*p.BackInMS, int64(p.Permits))
		}
	}
	if s.Window && s.ValueTTLMS != nil && s.Free != nil {
		add(*s.ValueTTLMS, rate-*s.Free)
	}
	return parts
}

// typeOf returns the type that Redisson calls so.
func typeOf(name string) (rratelimiter.RateType, bool) {
	for _, t := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
		if t.String() == name {
			return t, true
		}
	}
	return 0, false
}
