package look

import (
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

// Anomaly is something in a limiter's keys that a healthy limiter lacks.
type Anomaly struct {
	Kind string `json:"kind"`
	Text string `json:"text"`
}

// Findings are the anomalies of a limiter.
type Findings []Anomaly

func (f *Findings) add(kind, format string, args ...any) {
	*f = append(*f, Anomaly{kind, fmt.Sprintf(format, args...)})
}

// maxDebt is a debt that no value has without the members that explain it: a member read in the
// wrong layout looks like billions of permits.
const maxDebt = 1 << 30

// checkConfig looks at the limiter's hash; err is why it can't be read.
func (f *Findings) checkConfig(s *snapshot, err error) {
	switch {
	case s.config.wrong("hash"):
		f.wrongType(s.config.name, s.config.kind, "hash")
	case !s.config.exists():
		f.add("no_config", "the rate is gone, value or permits are still there")
	case err != nil:
		if _, why, found := Judge(s.fields); found {
			f.add("bad_config", "%s", why)
		} else {
			f.add("wrong_type", "key %s is a hash of something else", words.Printable(s.config.name))
		}
	}
}

// notOurs says what a key looks like that is no limiter's: only its type and its time to live are read, since what it holds may
// be a secret.
func (f *Findings) notOurs(k keyState) {
	what, like := "a "+k.kind, ""
	switch {
	case k.kind == "hash":
		like = "which may be the thresholds of sliding logs: rrl threshold"
	case k.kind == "zset":
		what, like = "a sorted set", "as of a sliding log: rrl take sliding-log --peek"
	case k.kind == "string" && k.ttl >= 0:
		like = "as of a fixed window or a token bucket: rrl take fixed-window --peek, rrl take token-bucket --peek"
	}
	if k.ttl >= 0 {
		what += " that expires in " + words.Soon(k.ttl.Milliseconds())
	}
	if like != "" {
		what += ", " + like
	}
	f.add("not_ours", "key %s is no RateLimiter's. It is %s", words.Printable(k.name), what)
}

// checkState looks at one pair of value and set.
func (f *Findings) checkState(s *snapshot, st *State, cfg *Fields) {
	if s.value.wrong("string") {
		f.wrongType(s.value.name, s.value.kind, "string")
	} else if s.value.exists() && st.Value == nil {
		f.badValue(s.value.name, s.number)
	}
	if s.permits.wrong("zset") {
		f.wrongType(s.permits.name, s.permits.kind, "sorted set")
	}
	f.checkMembers(s, st)
	if cfg == nil {
		return
	}
	f.checkSum(s, st, cfg)
	if st.Window && s.permits.exists() {
		f.add("window_and_members", "a Redisson before 3.13.3 counts a window by key %s, others keep members: its permits come "+
			"back early and too many are granted; upgrade it, then run rrl migrate", words.Printable(s.value.name))
	}
	for _, k := range []keyState{s.value, s.permits} {
		f.checkTTL(k.name, k.ttl, s.config.ttl)
	}
}

func (f *Findings) checkMembers(s *snapshot, st *State) {
	var future int
	var furthest int64
	l := newLayouts()
	for i := range st.Permits {
		p := &st.Permits[i]
		l.count(p.Layout, p.ID, p.Known())
		if p.AgeMS < 0 {
			future++
			furthest = max(furthest, -p.AgeMS)
		}
	}
	f.checkLayouts(s.permits.name, l)
	if future > 0 {
		f.add("future_members", "%s of %s: dated up to %s ahead of the server, by a client with a fast clock",
			words.Plural(int64(future), "member"), words.Printable(s.permits.name), words.Soon(furthest))
	}
	if s.card > MaxMembers {
		f.add("not_all_read", "%s has %d members, the oldest %d were looked at", words.Printable(s.permits.name), s.card, MaxMembers)
	}
}

// layouts are those of a set's members.
type layouts struct {
	seen    map[string]bool
	unknown map[string]bool // members of none
}

func newLayouts() layouts { return layouts{map[string]bool{}, map[string]bool{}} }

func (l layouts) count(layout, member string, known bool) {
	if known {
		l.seen[layout] = true
	} else {
		l.unknown[member] = true
	}
}

// add counts a member as ZRANGE answers it.
func (l layouts) add(z redis.Z) {
	packed, _ := z.Member.(string)
	m, err := codec.Parse(packed)
	l.count(m.Layout.String(), packed, err == nil)
}

// checkLayouts looks for members of no layout, and for layouts that exclude each
// other.
func (f *Findings) checkLayouts(set string, l layouts) {
	set = words.Printable(set)
	if n := len(l.unknown); n > 0 {
		f.add("unknown_layout", "%s of %s: no release of Redisson writes such a member", words.Plural(int64(n), "member"), set)
	}
	if len(l.seen) < 2 || !l.seen["B"] && !l.seen["C"] {
		return
	}
	var names []string
	for _, name := range []string{"B", "C", "D1", "D2", "D"} {
		if l.seen[name] {
			names = append(names, name)
		}
	}
	f.add("mixed_layouts", "%s has layouts %s, written by Redissons that can't read each other's, so that requests fail or too many "+
		"permits are granted once such a member runs out; upgrade those before 3.17 and run rrl migrate, or start anew by "+
		"rrl set-rate --reset or rrl delete", set, strings.Join(names, ", "))
}

// checkSum compares the value and the permits in the set with the rate.
func (f *Findings) checkSum(s *snapshot, st *State, cfg *Fields) {
	if s.value.wrong("string") || s.permits.wrong("zset") || s.card > MaxMembers {
		return
	}
	inSet := st.InUse + st.RunOut
	if st.Value == nil {
		if !s.value.exists() && s.card > 0 {
			f.add("no_value", "key %s is gone while %s are in the set: Redisson grants the whole rate again",
				words.Printable(s.value.name), words.Plural(inSet, "permit"))
		}
		return
	}
	value := *st.Value
	if st.Window {
		return
	}
	if value > cfg.Rate {
		f.add("value_above_rate", "key %s is %d, the rate is %d", words.Printable(s.value.name), value, cfg.Rate)
	}
	unread := slices.ContainsFunc(st.Permits, func(p Permit) bool { return p.parseError != nil })
	sum := value + inSet
	if sum == cfg.Rate || unread {
		return
	}
	kind, what := "sum_not_rate", fmt.Sprintf("%d too many; Redisson's release and a rate changed by it do that", sum-cfg.Rate)
	if inDebt(value, inSet, cfg.Rate) {
		kind = "in_debt"
	}
	switch {
	case sum < cfg.Rate && !s.permits.exists():
		what = fmt.Sprintf("%d without a member; Redisson fails on it", cfg.Rate-sum)
	case value < -maxDebt:
		what = "Redisson 3.35 or newer has read a member of 3.16.4 to 3.16.8 as its own; rrl set-rate --reset starts it full"
	case sum < cfg.Rate:
		what = words.Plural(cfg.Rate-sum, "permit") + " lost"
	}
	f.add(kind, "value %d and %d permits in the set are %d, the rate is %d: %s", value, inSet, sum, cfg.Rate, what)
}

// inDebt reports whether a value is so low that none is free even when all permits in
// the set are back. A rate that was lowered is no debt of this kind: the permits in
// use come back.
func inDebt(value, inSet, rate int64) bool { return value+inSet <= 0 && rate > 0 }
