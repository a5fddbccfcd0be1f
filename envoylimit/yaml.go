package envoylimit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// parser reads files, and collects what is wrong.
type parser struct {
	config *Config
	merge  bool
	errs   []error

	file    string // that is read
	aliases int    // that were followed in the file
}

// How many aliases of a file are followed, and how deep, since aliases of aliases could make any number of anything; and
// how many errors are reported.
const (
	maxAliases = 100_000
	maxDepth   = 100
	maxErrors  = 100
)

func (p *parser) failf(at *yaml.Node, format string, args ...any) {
	if len(p.errs) >= maxErrors {
		return
	}
	p.errs = append(p.errs, fmt.Errorf("%s:%d: %s", p.file, at.Line, fmt.Sprintf(format, args...)))
}

func (p *parser) warnf(at *yaml.Node, format string, args ...any) {
	p.config.warnings = append(p.config.warnings, fmt.Sprintf("%s:%d: %s", p.file, at.Line, fmt.Sprintf(format, args...)))
}

// document returns the root of a file; nil if it has none, which was reported.
func (p *parser) document(f File) *yaml.Node {
	var doc, next yaml.Node
	p.file, p.aliases = f.Name, 0
	from := yaml.NewDecoder(bytes.NewReader(f.Data))
	if err := from.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		text := strings.TrimPrefix(err.Error(), "yaml: ")
		where, found := strings.CutPrefix(text, "line ")
		if !found {
			where = "1: " + text
		}
		p.errs = append(p.errs, errors.New(f.Name+":"+where))
		return nil
	}
	if len(doc.Content) == 0 {
		return &yaml.Node{Kind: yaml.MappingNode, Line: 1}
	}
	if from.Decode(&next) == nil && !isNull(next.Content[0]) {
		p.warnf(next.Content[0], "the file has a second document, which has no effect")
	}
	return doc.Content[0]
}

// field is a key of a map with its value.
type field struct {
	key, value *yaml.Node
}

// resolved returns what an alias stands for. It returns nil if there are too many.
func (p *parser) resolved(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		if p.aliases++; p.aliases == maxAliases {
			p.failf(n, "the file has more than %d aliases", maxAliases)
		}
		if p.aliases >= maxAliases {
			return nil
		}
		n = n.Alias
	}
	return n
}

// fields returns a map's keys with their values, those of maps that it merges included. Of a key given twice the last one
// counts.
func (p *parser) fields(n *yaml.Node, what string, depth int) map[string]field {
	n = p.resolved(n)
	switch {
	case n == nil || isNull(n):
		return nil
	case n.Kind != yaml.MappingNode:
		p.failf(n, "%s is no map of keys and values", what)
		return nil
	case depth > maxDepth:
		p.failf(n, "%s is nested more than %d deep", what, maxDepth)
		return nil
	}
	all := map[string]field{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		for key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		switch {
		case key.Tag == "!!merge":
			p.mergeInto(all, value, what, depth)
		case key.Kind != yaml.ScalarNode:
			p.failf(key, "the key %s is no text", shown(key))
		default:
			if value = p.resolved(value); value == nil {
				return all
			}
			if before := all[key.Value].key; before != nil && slices.Contains(n.Content[:i], before) {
				p.warnf(before, "the key %.60q has no effect here: line %d has it again", key.Value, key.Line)
			}
			all[key.Value] = field{key, value}
		}
	}
	return all
}

// mergeInto adds what "<<" names: a map or a list of maps, whose keys count if they are given nowhere else.
func (p *parser) mergeInto(all map[string]field, value *yaml.Node, what string, depth int) {
	value = p.resolved(value)
	if value == nil {
		return
	}
	from := []*yaml.Node{value}
	if value.Kind == yaml.SequenceNode {
		from = value.Content
	}
	for _, one := range from {
		for key, f := range p.fields(one, what, depth+1) {
			if _, has := all[key]; !has {
				all[key] = f
			}
		}
	}
}

// block is a map of keys and values.
type block struct {
	*parser

	at   *yaml.Node
	keys map[string]field
}

// has reports whether a key is there, with a value.
func (b block) has(key string) bool {
	f, has := b.keys[key]
	return has && !isNull(f.value)
}

// wrong reports what is wrong with a key.
func (b block) wrong(key, format string, args ...any) {
	at := b.at
	if f, has := b.keys[key]; has {
		at = f.key
	}
	b.failf(at, format, args...)
}

// items returns the maps of a list; none if it is empty.
func (b block) items(key string) (all []*yaml.Node) {
	n := b.keys[key].value
	switch {
	case !b.has(key):
		return nil
	case n.Kind != yaml.SequenceNode:
		b.wrong(key, "%s is no list", key)
		return nil
	}
	for _, item := range n.Content {
		if item = b.resolved(item); item == nil {
			return nil
		}
		if item.Kind != yaml.MappingNode {
			b.failf(item, "%s has %s, which is no map of keys and values", key, shown(item))
			continue
		}
		all = append(all, item)
	}
	return all
}

// text returns a scalar as it is written; "" if there is none.
func (b block) text(key string) string {
	n := b.keys[key].value
	switch {
	case !b.has(key):
		return ""
	case n.Kind != yaml.ScalarNode:
		b.wrong(key, "%s is no text", key)
		return ""
	}
	return n.Value
}

// choice returns one of several texts; "" if there is none.
func (b block) choice(key string, of ...string) string {
	text, last := b.text(key), len(of)-1
	if text == "" || slices.Contains(of, text) {
		return text
	}
	b.wrong(key, "%s is %.60q, not %s or %s", key, text, strings.Join(of[:last], ", "), of[last])
	return ""
}

// scalar reads a scalar, if there is one, and reports what it is not.
func (b block) scalar(key, kind string, read func(n *yaml.Node) bool) {
	if n := b.keys[key].value; b.has(key) && (n.Kind != yaml.ScalarNode || !read(n)) {
		b.wrong(key, "%s is %s, not %s", key, shown(n), kind)
	}
}

func (b block) bool(key string) (v bool) {
	b.scalar(key, "true or false", func(n *yaml.Node) bool { return n.Decode(&v) == nil })
	return v
}

// number reads a whole number from least to 4294967295; 0 if there is none.
func (b block) number(key string, least uint32) (n int64) {
	kind := fmt.Sprintf("a whole number from %d to %d", least, uint32(math.MaxUint32))
	b.scalar(key, kind, func(at *yaml.Node) bool {
		var v float64 // as a whole one it would be read without its fraction
		if at.Decode(&v) != nil || v != math.Trunc(v) || v < float64(least) || v > math.MaxUint32 {
			return false
		}
		n = int64(v)
		return true
	})
	return n
}

// duration reads a duration of whole milliseconds, at least one; 0 if there is none.
func (b block) duration(key string) (v time.Duration) {
	b.scalar(key, "a duration of whole milliseconds such as 90s or 1h30m", func(n *yaml.Node) bool {
		d, err := time.ParseDuration(n.Value)
		if err != nil || d < time.Millisecond || d%time.Millisecond != 0 {
			return false
		}
		v = d
		return true
	})
	return v
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// shown is how errors show a node.
func shown(n *yaml.Node) string {
	switch n.Kind {
	case yaml.ScalarNode:
		return fmt.Sprintf("%.60q", n.Value)
	case yaml.SequenceNode:
		return "a list"
	default:
		return "a map"
	}
}
