package look

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rratelimiter/rratelimiter/internal/words"
)

// Anomaly is something in a limiter's keys that a healthy limiter has not.
type Anomaly struct {
	Kind string `json:"kind"`
	Text string `json:"text"`
}

// Findings are the anomalies of a limiter.
type Findings []Anomaly

func (f *Findings) add(kind, format string, args ...any) {
	*f = append(*f, Anomaly{kind, fmt.Sprintf(format, args...)})
}

// maxDebt is more than a rate that was lowered leaves a value below 0: what a
// member of the wrong layout reads as is in the thousands of millions.
const maxDebt = 1 << 30

// checkConfig looks at the limiter's hash; err is why it can't be read.
func (f *Findings) checkConfig(s *snapshot, err error) {
	switch {
	case s.config.wrong("hash"):
		f.add("wrong_type", "key %s is a %s, not a hash", s.config.name, s.config.kind)
	case !s.config.exists():
		f.add("no_config", "the rate is gone, value or permits are still there")
	case err != nil:
		f.add("bad_config", "%v", err)
	}
}

// checkState looks at one pair of value and set.
func (f *Findings) checkState(s *snapshot, st *State, cfg *Fields) {
	if s.value.wrong("string") {
		f.add("wrong_type", "key %s is a %s, not a string", s.value.name, s.value.kind)
	} else if s.value.exists() && st.Value == nil {
		f.add("bad_value", "key %s holds %q, not a whole number", s.value.name, s.number)
	}
	if s.permits.wrong("zset") {
		f.add("wrong_type", "key %s is a %s, not a sorted set", s.permits.name, s.permits.kind)
	}
	f.checkMembers(s, st)
	if cfg == nil {
		return
	}
	f.checkSum(s, st, cfg)
	if st.Window && s.permits.exists() {
		f.add("window_and_members", "a Redisson before 3.13.3 counts a window by key %s, others keep members: its permits come "+
			"back early and too many are granted; upgrade it, then run rrl migrate", s.value.name)
	}
	if s.config.ttl > 0 {
		for _, k := range []keyState{s.value, s.permits} {
			if k.exists() && k.ttl < 0 {
				f.add("no_ttl", "the rate expires, key %s does not", k.name)
			}
		}
	}
}

func (f *Findings) checkMembers(s *snapshot, st *State) {
	var unknown, future int
	var furthest int64
	layouts := map[string]bool{}
	for i := range st.Permits {
		p := &st.Permits[i]
		if !p.Known() {
			unknown++
		} else {
			layouts[p.Layout] = true
		}
		if p.AgeMS < 0 {
			future++
			furthest = max(furthest, -p.AgeMS)
		}
	}
	if unknown > 0 {
		f.add("unknown_layout", "%s of %s: no release of Redisson writes such a member",
			words.Plural(int64(unknown), "member"), s.permits.name)
	}
	if future > 0 {
		f.add("future_members", "%s of %s: dated up to %s ahead of the server, by a client whose clock is fast",
			words.Plural(int64(future), "member"), s.permits.name, words.Soon(furthest))
	}
	if len(layouts) > 1 && (layouts["B"] || layouts["C"]) {
		f.checkMix(s, layouts)
	}
	if s.card > MaxMembers {
		f.add("not_all_read", "%s has %d members, the oldest %d were looked at", s.permits.name, s.card, MaxMembers)
	}
}

// checkMix names layouts that exclude each other.
func (f *Findings) checkMix(s *snapshot, layouts map[string]bool) {
	var names []string
	for _, name := range []string{"B", "C", "D1", "D2", "D"} {
		if layouts[name] {
			names = append(names, name)
		}
	}
	f.add("mixed_layouts", "%s has layouts %s, written by Redissons that can't read each other's, so that requests fail or too many "+
		"permits are granted once such a member runs out; upgrade those before 3.17 and run rrl migrate, or start anew by "+
		"rrl set-rate --reset or rrl delete", s.permits.name, strings.Join(names, ", "))
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
				s.value.name, words.Plural(inSet, "permit"))
		}
		return
	}
	value := *st.Value
	if st.Window {
		return
	}
	if value > cfg.Rate {
		f.add("value_above_rate", "key %s is %d, the rate is %d", s.value.name, value, cfg.Rate)
	}
	unread := slices.ContainsFunc(st.Permits, func(p Permit) bool { return p.parseError != nil })
	if sum := value + inSet; sum != cfg.Rate && !unread {
		what := fmt.Sprintf("%d too many; Redisson's release and a rate changed by it do that", sum-cfg.Rate)
		switch {
		case sum < cfg.Rate && !s.permits.exists():
			what = fmt.Sprintf("%d without a member; Redisson fails on it", cfg.Rate-sum)
		case value < -maxDebt:
			what = "Redisson 3.35 or newer has read a member of 3.16.4 to 3.16.8 as its own; rrl set-rate --reset starts anew"
		case sum < cfg.Rate:
			what = words.Plural(cfg.Rate-sum, "permit") + " lost"
		}
		f.add("sum_not_rate", "value %d and %d permits in the set are %d, the rate is %d: %s",
			value, inSet, sum, cfg.Rate, what)
	}
}
