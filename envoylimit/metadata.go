package envoylimit

import (
	"maps"
	"strings"

	"go.yaml.in/yaml/v3"
)

// metadata reads what is passed on to Envoy; nil if there is nothing.
func (b block) metadata() map[string]any {
	if !b.has("metadata") {
		return nil
	}
	return b.values(b.keys["metadata"].value, 0)
}

func (p *parser) values(n *yaml.Node, depth int) map[string]any {
	all := map[string]any{}
	for key, f := range p.fields(n, "metadata", depth) {
		all[key] = p.value(f.value, depth+1)
	}
	return all
}

// value returns a value of metadata as envoyproxy/ratelimit reads it, by YAML 1.1: "yes" is true, and a date is text.
func (p *parser) value(n *yaml.Node, depth int) (v any) {
	n = p.resolved(n)
	switch {
	case n == nil || isNull(n):
		return nil
	case depth > maxDepth:
		p.failf(n, "metadata is nested more than %d deep", maxDepth)
		return nil
	case n.Kind == yaml.MappingNode:
		return p.values(n, depth)
	case n.Kind == yaml.SequenceNode:
		all := []any{}
		for _, item := range n.Content {
			all = append(all, p.value(item, depth+1))
		}
		return all
	}
	switch kind := strings.TrimPrefix(n.Tag, "!!"); kind {
	case "bool", "int", "float":
		if n.Decode(&v) != nil {
			p.failf(n, "metadata has %s, which is no %s", shown(n), kind)
		}
		return v
	}
	var b bool
	if n.Style == 0 && n.Decode(&b) == nil {
		return b
	}
	return n.Value
}

// mergeMetadata adds to a map what another has: of values given twice the first counts, of maps all that they have.
func mergeMetadata(into, from map[string]any) {
	for key, value := range from {
		has, twice := into[key]
		if !twice {
			into[key] = value
			continue
		}
		a, isMap := has.(map[string]any)
		b, areMaps := value.(map[string]any)
		if isMap && areMaps {
			a = maps.Clone(a)
			mergeMetadata(a, b)
			into[key] = a
		}
	}
}
