package envoylimit

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rratelimiter/rratelimiter/limit"
)

// Where each key belongs. Those of envoyproxy/ratelimit are accepted anywhere, as there, but have an effect only in their
// place.
var (
	rootKeys       = []string{"domain", "descriptors", "failure", "share", "hash"}
	descriptorKeys = []string{
		"key", "value", "descriptors", "rate_limit", "shadow_mode", "quota_mode", "detailed_metric", "value_to_metric",
		"share_threshold", "metadata",
	}
	limitKeys = []string{
		"unit", "requests_per_unit", "unlimited", "name", "replaces",
		"window", "algorithm", "calendar", "burst", "estimate", "hold", "charge",
	}
	replaceKeys = []string{"name"}
	ownKeys     = []string{
		"failure", "share", "hash", "window", "algorithm", "calendar", "burst", "estimate", "hold", "charge",
	}
	allKeys = slices.Concat(rootKeys, descriptorKeys, limitKeys)
)

// block returns a map, and reports keys that do not belong here.
func (p *parser) block(n *yaml.Node, what string, here []string) block {
	b := block{p, n, p.fields(n, what, 0)}
	for _, f := range slices.SortedFunc(maps.Values(b.keys), func(a, b field) int { return a.key.Line - b.key.Line }) {
		key := f.key.Value
		switch {
		case slices.Contains(here, key):
		case !slices.Contains(allKeys, key):
			p.failf(f.key, "unknown key %.60q", key)
		case slices.Contains(ownKeys, key):
			p.failf(f.key, "the key %q does not belong here", key)
		default:
			p.warnf(f.key, "the key %q has no effect here", key)
		}
	}
	return b
}

// parse reads one file.
func (p *parser) parse(f File) {
	root := p.document(f)
	if root == nil {
		return
	}
	b := p.block(root, "the file", rootKeys)
	d := &domain{name: b.text("domain"), spread: b.choice("hash", "domain", "descriptor") == "descriptor"}
	b.failure(d)
	known := p.config.domains[d.name]
	switch {
	case d.name == "":
		b.wrong("domain", "the domain is empty or missing")
		return
	case known != nil && !p.merge:
		b.wrong("domain", "another file has the domain %q too: put them together, or merge the files of a domain", d.name)
		return
	case known != nil:
		for _, key := range []string{"failure", "share", "hash"} {
			if b.has(key) {
				b.wrong(key, "%s of a domain belongs in the first of its files", key)
			}
		}
		d = known
	}
	p.config.domains[d.name] = d
	b.descriptors(&d.level, d.name, 1)
}

// failure reads what answers while Redis does not decide.
func (b block) failure(d *domain) {
	share, failure := 1.0, b.choice("failure", "open", "closed", "local")
	b.scalar("share", "a number", func(n *yaml.Node) bool { return n.Decode(&share) == nil })
	switch {
	case b.has("share") && failure != "local":
		b.wrong("share", "share is for failure: local")
	case !(share > 0 && share <= 1):
		b.wrong("share", "share is not above 0 and at most 1")
	}
	var f limit.Failure
	switch failure {
	case "":
		return
	case "open":
		f = limit.FailOpen()
	case "closed":
		f, d.closed = limit.FailClosed(), true
	default:
		f = limit.FailLocal(share)
	}
	d.failure = &f
}

// descriptors reads a list of descriptors. path is how metrics call what they are in.
func (b block) descriptors(into *level, path string, depth int) {
	if b.has("descriptors") && depth > maxDepth {
		b.wrong("descriptors", "descriptors are nested more than %d deep", maxDepth)
		return
	}
	for _, item := range b.items("descriptors") {
		b.block(item, "a descriptor", descriptorKeys).descriptor(into, path, depth)
	}
}

func (b block) descriptor(into *level, path string, depth int) {
	key, value := b.text("key"), b.text("value")
	n := &node{name: key, valueToMetric: b.bool("value_to_metric"), share: b.bool("share_threshold")}
	if value != "" {
		n.name += "_" + value
	}
	path += "." + n.name
	switch {
	case key == "":
		b.failf(b.at, "the descriptor has no key")
		return
	case into.entries[n.name] != nil:
		b.failf(b.at, "the descriptor %q is there twice", path)
		return
	case strings.Contains(n.name, "*"):
		n.parts = strings.Split(n.name, "*")
		into.wildcards = append(into.wildcards, n)
	case n.share:
		b.wrong("share_threshold", "share_threshold is for values with a *")
	}
	if into.entries == nil {
		into.entries = map[string]*node{}
	}
	into.entries[n.name] = n
	metadata := b.metadata()
	if b.has("rate_limit") {
		n.rule = b.block(b.keys["rate_limit"].value, "rate_limit", limitKeys).rule(path)
		n.rule.shadow, n.rule.quota, n.rule.detailed = b.bool("shadow_mode"), b.bool("quota_mode"), b.bool("detailed_metric")
		n.rule.metadata = metadata
	}
	b.descriptors(&n.level, path, depth+1)
}

// rule reads a rate_limit.
func (b block) rule(path string) *rule {
	r := &rule{metric: path, name: b.text("name"), unlimited: b.bool("unlimited"), limit: b.number("requests_per_unit", 0)}
	for _, item := range b.items("replaces") {
		name := b.block(item, "replaces", replaceKeys).text("name")
		switch name {
		case "":
			b.failf(item, "replaces has an entry without a name")
		case r.name:
			b.failf(item, "the limit %q replaces itself", name)
		}
		r.replaces = append(r.replaces, name)
	}
	if !r.unlimited {
		b.per(r)
		b.algorithm(r)
		b.reserving(r)
		r.setName()
		return r
	}
	if _, is := unitOf(b.text("unit")); is {
		b.wrong("unit", "an unlimited limit has no unit")
	}
	for _, key := range ownKeys {
		if b.has(key) {
			b.wrong(key, "an unlimited limit has no %s", key)
		}
	}
	return r
}

// per reads how a limit counts.
func (b block) per(r *rule) {
	name, window := b.text("unit"), b.duration("window")
	r.per = ofWindow(cmp.Or(window, time.Second)) // if it is wrong, what follows can be checked
	switch u, is := unitOf(name); {
	case b.has("window") && name != "":
		b.wrong("unit", "unit and window are given: choose one")
	case b.has("window"):
	case is:
		r.per = ofUnit(u, 1)
	case name == "":
		b.failf(b.at, "rate_limit has no unit")
	default:
		b.wrong("unit", "unknown unit %.60q", name)
	}
}

func (b block) algorithm(r *rule) {
	if r.estimate = b.number("estimate", 1); r.estimate > 0 {
		r.algorithm = slidingLog // which others can't settle
	}
	named := algorithm(b.choice("algorithm", string(slidingLog), string(fixedWindow), string(tokenBucket)))
	r.algorithm = cmp.Or(named, r.algorithm)
	b.calendar(r)
	switch {
	case r.algorithm != tokenBucket && b.has("burst"):
		b.wrong("burst", "burst is for algorithm: %s", tokenBucket)
	case r.algorithm == tokenBucket && r.window%time.Second != 0:
		b.wrong("window", "the window of a %s is a whole number of seconds", tokenBucket)
	default:
		r.burst = b.number("burst", 1)
	}
	switch {
	case r.estimate > 0 && r.algorithm != slidingLog:
		b.wrong("estimate", "estimate is for algorithm: %s", slidingLog)
	case r.endless():
		b.wrong("burst", "a bucket with that burst takes more than 292 years to fill")
	case r.estimate > r.limit:
		b.wrong("estimate", "estimate is above requests_per_unit, so no request would pass")
	}
}

func (b block) calendar(r *rule) {
	var err error
	b.scalar("calendar", "a time zone such as UTC or Europe/Berlin", func(n *yaml.Node) bool {
		r.calendar, err = time.LoadLocation(n.Value)
		return err == nil && n.Value != "" && r.calendar != time.Local // which is another one elsewhere
	})
	whole := r.multiple == 1 && (r.window == day || r.window == 7*day || r.window == 30*day)
	if err == nil && b.has("calendar") && (r.algorithm != fixedWindow || !whole) {
		b.wrong("calendar", "calendar is for unit: day, week or month and algorithm: %s", fixedWindow)
	}
}

// reserving reads what concerns costs that are known later.
func (b block) reserving(r *rule) {
	r.hold, r.charge = b.duration("hold"), b.choice("charge", "granted", "always")
	if b.has("hold") && r.estimate == 0 {
		b.wrong("hold", "hold is for limits with an estimate")
	}
	if r.charge == "always" && r.estimate > 0 {
		b.warnf(b.keys["charge"].key, "charge: always beside estimate charges the estimate, and then the cost: nothing is reserved")
	}
}
