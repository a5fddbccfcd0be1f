package envoylimit

import (
	"strings"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

type entry = commonv3.RateLimitDescriptor_Entry

// match returns the rule of a descriptor, nil if it has none, with how its metric is called. values are those by which it is
// counted, nil if they are the entries' own. As many entries must match as the configuration has levels: on each the exact
// value, then the first wildcard in the file's order, then the key alone.
func (d *domain) match(entries []*entry) (r *rule, values []string, metric string) {
	at, shares, named := &d.level, false, false
	for i, e := range entries {
		n := at.find(e)
		if n == nil {
			return nil, nil, ""
		}
		shares, named = shares || n.share, named || n.valueToMetric
		at, r = &n.level, n.rule
		if i < len(entries)-1 {
			r = nil
		}
	}
	switch {
	case r == nil:
		return nil, nil, ""
	case !shares && !named && !r.detailed:
		return r, nil, r.metric
	}
	values, metric = d.names(entries, r.detailed)
	if !shares {
		values = nil
	}
	return r, values, metric
}

// names returns the values by which a descriptor is counted, and how its metric is called.
func (d *domain) names(entries []*entry, detailed bool) (values []string, metric string) {
	var path strings.Builder
	path.WriteString(d.name)
	for at, i := &d.level, 0; i < len(entries); i++ {
		key, value := entries[i].GetKey(), entries[i].GetValue()
		n := at.find(entries[i])
		pattern := strings.TrimPrefix(n.name, key+"_")
		shown := ""
		switch wild := n.parts != nil; {
		case wild && n.share:
			shown, value = pattern, pattern
		case wild && !n.valueToMetric:
			shown = pattern
		case wild || n.name == key+"_"+value || n.valueToMetric:
			shown = value
		}
		if detailed {
			shown = value
		}
		values = append(values, value)
		add(&path, key, shown)
		at = &n.level
	}
	return values, path.String()
}

func add(to *strings.Builder, key, value string) {
	to.WriteByte('.')
	to.WriteString(key)
	if value != "" {
		to.WriteByte('_')
		to.WriteString(value)
	}
}

// find returns the descriptor for an entry, nil if there is none.
func (l *level) find(e *entry) *node {
	var room [128]byte
	whole := append(append(append(room[:0], e.GetKey()...), '_'), e.GetValue()...)
	if n := l.entries[string(whole)]; n != nil {
		return n
	}
	for _, n := range l.wildcards {
		if n.matches(string(whole)) {
			return n
		}
	}
	return l.entries[e.GetKey()]
}

// matches reports whether text is what a wildcard stands for: each star is any text.
func (n *node) matches(text string) bool {
	first, last := n.parts[0], n.parts[len(n.parts)-1]
	rest, has := strings.CutPrefix(text, first)
	if !has || len(rest) < len(last) || !strings.HasSuffix(rest, last) {
		return false
	}
	rest = rest[:len(rest)-len(last)]
	for _, part := range n.parts[1 : len(n.parts)-1] {
		i := strings.Index(rest, part)
		if i < 0 {
			return false
		}
		rest = rest[i+len(part):]
	}
	return true
}
