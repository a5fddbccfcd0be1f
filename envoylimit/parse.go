package envoylimit

import (
	"maps"
	"math"
	"slices"
	"strconv"
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

// block returns a map's keys with their values, and reports those that do not belong here.
func (p *parser) block(n *yaml.Node, what string, here []string) map[string]field {
	all := p.fields(n, what, 0)
	for _, f := range slices.SortedFunc(maps.Values(all), func(a, b field) int { return a.key.Line - b.key.Line }) {
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
	return all
}

// parse reads one file.
func (p *parser) parse(f File) {
	root := p.document(f)
	if root == nil {
		return
	}
	all := p.block(root, "the file", rootKeys)
	d := &domain{name: p.text(all["domain"], "domain")}
	p.failure(d, all)
	switch hash := p.text(all["hash"], "hash"); hash {
	case "", "domain":
	case "descriptor":
		d.spread = true
	default:
		p.failf(all["hash"].value, "hash is %q, not domain or descriptor", hash)
	}
	if d.name == "" {
		at := root
		if of, has := all["domain"]; has {
			at = of.key
		}
		p.failf(at, "the domain is empty or missing")
		return
	}
	if known := p.config.domains[d.name]; known != nil {
		if !p.merge {
			p.failf(all["domain"].key, "another file has the domain %q too: put them together, or merge the files of a domain", d.name)
			return
		}
		for _, key := range []string{"failure", "share", "hash"} {
			if f, has := all[key]; has {
				p.failf(f.key, "%s of a domain belongs in the first of its files", key)
			}
		}
		d = known
	}
	p.config.domains[d.name] = d
	p.descriptors(&d.level, all["descriptors"], d.name, 1)
}

// failure reads what answers while Redis does not decide.
func (p *parser) failure(d *domain, all map[string]field) {
	of, share := all["failure"], 1.0
	text := p.text(of, "failure")
	if f, has := all["share"]; has {
		p.scalar(f, "share", "a number", &share)
		switch {
		case text != "local":
			p.failf(f.key, "share is for failure: local")
		case !(share > 0 && share <= 1):
			p.failf(f.value, "share is not above 0 and at most 1")
		}
	}
	var failure limit.Failure
	switch text {
	case "":
		return
	case "open":
		failure = limit.FailOpen()
	case "closed":
		failure, d.closed = limit.FailClosed(), true
	case "local":
		failure = limit.FailLocal(share)
	default:
		p.failf(of.value, "failure is %q, not open, closed or local", text)
		return
	}
	d.failure = &failure
}

// descriptors reads a list of descriptors. path is how metrics call what they are in.
func (p *parser) descriptors(into *level, list field, path string, depth int) {
	if list.value != nil && depth > maxDepth {
		p.failf(list.value, "descriptors are nested more than %d deep", maxDepth)
		return
	}
	for _, item := range p.items(list, "descriptors") {
		p.descriptor(into, item, p.block(item, "a descriptor", descriptorKeys), path, depth)
	}
}

func (p *parser) descriptor(into *level, item *yaml.Node, all map[string]field, path string, depth int) {
	key, value := p.text(all["key"], "key"), p.text(all["value"], "value")
	n := &node{
		name: key, valueToMetric: p.bool(all["value_to_metric"], "value_to_metric"),
		share: p.bool(all["share_threshold"], "share_threshold"),
	}
	if value != "" {
		n.name += "_" + value
	}
	if key == "" {
		p.failf(item, "the descriptor has no key")
		return
	}
	path += "." + n.name
	if into.entries[n.name] != nil {
		p.failf(item, "the descriptor %q is there twice", path)
		return
	}
	if strings.Contains(n.name, "*") {
		n.parts = strings.Split(n.name, "*")
		into.wildcards = append(into.wildcards, n)
	} else if n.share {
		p.failf(all["share_threshold"].key, "share_threshold is for values with a *")
	}
	if into.entries == nil {
		into.entries = map[string]*node{}
	}
	into.entries[n.name] = n
	if of, has := all["rate_limit"]; has && !isNull(of.value) {
		n.rule = p.rule(of.value, path)
		n.rule.shadow = p.bool(all["shadow_mode"], "shadow_mode")
		n.rule.quota = p.bool(all["quota_mode"], "quota_mode")
		n.rule.detailed = p.bool(all["detailed_metric"], "detailed_metric")
		n.rule.metadata = p.metadata(all["metadata"])
	}
	p.descriptors(&n.level, all["descriptors"], path, depth+1)
}

// rule reads a rate_limit.
func (p *parser) rule(n *yaml.Node, path string) *rule {
	all := p.block(n, "rate_limit", limitKeys)
	r := &rule{
		metric: path, name: p.text(all["name"], "name"), unlimited: p.bool(all["unlimited"], "unlimited"),
		limit: p.number(all["requests_per_unit"], "requests_per_unit", 0),
	}
	for _, item := range p.items(all["replaces"], "replaces") {
		name := p.text(p.block(item, "replaces", replaceKeys)["name"], "name")
		switch name {
		case "":
			p.failf(item, "replaces has an entry without a name")
		case r.name:
			p.failf(item, "the limit %q replaces itself", name)
		}
		r.replaces = append(r.replaces, name)
	}
	if !r.unlimited {
		p.per(r, n, all)
		p.reserving(r, all)
		return r
	}
	if _, is := unitOf(p.text(all["unit"], "unit")); is {
		p.failf(all["unit"].key, "an unlimited limit has no unit")
	}
	for _, key := range ownKeys {
		if f, has := all[key]; has {
			p.failf(f.key, "an unlimited limit has no %s", key)
		}
	}
	return r
}

// per reads how a limit counts.
func (p *parser) per(r *rule, n *yaml.Node, all map[string]field) {
	of, window := all["unit"], all["window"]
	name, length := p.text(of, "unit"), p.duration(window, "window")
	switch u, is := unitOf(name); {
	case window.value != nil && name != "":
		p.failf(of.key, "unit and window are given: choose one")
	case window.value != nil:
		r.per = ofWindow(max(length, time.Millisecond))
	case is:
		r.per = ofUnit(u, 1)
	case of.value == nil:
		p.failf(n, "rate_limit has no unit")
	default:
		p.failf(of.value, "unknown unit %.60q", name)
	}
	if r.window == 0 {
		r.per = ofWindow(time.Second) // what follows can be checked
	}
	p.algorithm(r, all)
	r.setName()
}

func (p *parser) algorithm(r *rule, all map[string]field) {
	of, zone, burst := all["algorithm"], all["calendar"], all["burst"]
	if r.estimate = p.number(all["estimate"], "estimate", 1); r.estimate > 0 {
		r.algorithm = slidingLog // which others can't settle
	}
	switch a := algorithm(p.text(of, "algorithm")); a {
	case "":
	case slidingLog, fixedWindow, tokenBucket:
		r.algorithm = a
	default:
		p.failf(of.value, "algorithm is %.60q, not %s, %s or %s", string(a), slidingLog, fixedWindow, tokenBucket)
	}
	if zone.value != nil {
		p.calendar(r, zone)
	}
	switch {
	case r.algorithm == tokenBucket:
		r.burst = p.number(burst, "burst", 1)
		if r.window%time.Second != 0 {
			p.failf(all["window"].value, "the window of a %s is a whole number of seconds", tokenBucket)
		}
	case burst.value != nil:
		p.failf(burst.key, "burst is for algorithm: %s", tokenBucket)
	}
	switch of := all["estimate"]; {
	case r.estimate > 0 && r.algorithm != slidingLog:
		p.failf(of.key, "estimate is for algorithm: %s", slidingLog)
	case r.estimate > r.limit:
		p.failf(of.key, "estimate is above requests_per_unit, so no request would pass")
	}
}

func (p *parser) calendar(r *rule, zone field) {
	loc, err := time.LoadLocation(p.text(zone, "calendar"))
	whole := r.multiple == 1 && (r.window == day || r.window == 7*day || r.window == 30*day)
	switch {
	case err != nil || zone.value.Value == "":
		p.failf(zone.value, "calendar is %s, not a time zone such as UTC or Europe/Berlin", shown(zone.value))
	case r.algorithm != fixedWindow || !whole:
		p.failf(zone.key, "calendar is for unit: day, week or month and algorithm: %s", fixedWindow)
	default:
		r.calendar = loc
	}
}

// reserving reads what concerns costs that are known later.
func (p *parser) reserving(r *rule, all map[string]field) {
	hold, charge := all["hold"], all["charge"]
	if r.hold = p.duration(hold, "hold"); hold.value != nil && r.estimate == 0 {
		p.failf(hold.key, "hold is for limits with an estimate")
	}
	r.charge = p.text(charge, "charge")
	if !slices.Contains([]string{"", "granted", "always"}, r.charge) {
		p.failf(charge.value, "charge is %.60q, not granted or always", r.charge)
	}
}

// number reads a whole number from least to 4294967295; 0 if there is none.
func (p *parser) number(f field, what string, least uint32) int64 {
	if f.value == nil || isNull(f.value) {
		return 0
	}
	var n uint32
	if f.value.Kind != yaml.ScalarNode || f.value.Decode(&n) != nil || n < least {
		p.failf(f.value, "%s is %s, not a whole number from %d to %s", what, shown(f.value), least, strconv.FormatUint(math.MaxUint32, 10))
		return 0
	}
	return int64(n)
}

// duration reads a duration of whole milliseconds, at least one; 0 if there is none.
func (p *parser) duration(f field, what string) time.Duration {
	if f.value == nil {
		return 0
	}
	d, err := time.ParseDuration(p.text(f, what))
	if err != nil || d < time.Millisecond || d%time.Millisecond != 0 {
		p.failf(f.value, "%s is %s, not a duration of whole milliseconds such as 90s or 1h30m", what, shown(f.value))
		return 0
	}
	return d
}
