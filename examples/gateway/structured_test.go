package main

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// member is one of a List of RFC 9651: a String with parameters that are
// Integers.
type member struct {
	name   string
	params map[string]int64
}

// structuredParser reads such Lists as section 4.2 of the RFC tells, without
// the library that writes them.
type structuredParser struct{ rest string }

// parseList parses the lines of a header field.
func parseList(lines []string) ([]member, error) {
	p := &structuredParser{strings.Trim(strings.Join(lines, ", "), " ")}
	var list []member
	for p.rest != "" {
		m, err := p.member()
		if err != nil {
			return nil, fmt.Errorf("%w, before %q", err, p.rest)
		}
		list = append(list, m)
		p.rest = strings.TrimLeft(p.rest, " \t")
		if p.rest == "" {
			break
		}
		if !p.eat(",") {
			return nil, fmt.Errorf("no comma before %q", p.rest)
		}
		if p.rest = strings.TrimLeft(p.rest, " \t"); p.rest == "" {
			return nil, fmt.Errorf("a comma at the end")
		}
	}
	return list, nil
}

func (p *structuredParser) eat(text string) bool {
	rest, ok := strings.CutPrefix(p.rest, text)
	p.rest = rest
	return ok
}

func (p *structuredParser) member() (member, error) {
	name, err := p.text()
	if err != nil {
		return member{}, err
	}
	m := member{name, map[string]int64{}}
	for p.eat(";") {
		p.rest = strings.TrimLeft(p.rest, " ")
		end := strings.IndexFunc(p.rest, func(r rune) bool { return r < 'a' || r > 'z' })
		if end < 1 {
			return m, fmt.Errorf("no name of a parameter")
		}
		key := p.rest[:end]
		p.rest = p.rest[end:]
		if !p.eat("=") {
			return m, fmt.Errorf("parameter %s has no value", key)
		}
		if m.params[key], err = p.integer(); err != nil {
			return m, err
		}
	}
	return m, nil
}

func (p *structuredParser) text() (string, error) {
	if !p.eat(`"`) {
		return "", fmt.Errorf("no String")
	}
	var b strings.Builder
	for i := 0; i < len(p.rest); i++ {
		switch c := p.rest[i]; {
		case c == '"':
			p.rest = p.rest[i+1:]
			return b.String(), nil
		case c == '\\':
			if i++; i == len(p.rest) || p.rest[i] != '"' && p.rest[i] != '\\' {
				return "", fmt.Errorf("a lone backslash")
			}
			b.WriteByte(p.rest[i])
		case c < 0x20 || c > 0x7e:
			return "", fmt.Errorf("byte %#x in a String", c)
		default:
			b.WriteByte(c)
		}
	}
	return "", fmt.Errorf("a String without end")
}

func (p *structuredParser) integer() (int64, error) {
	digits := len(p.rest) - len(strings.TrimLeft(strings.TrimPrefix(p.rest, "-"), "0123456789"))
	text := p.rest[:digits]
	p.rest = p.rest[digits:]
	if len(strings.TrimPrefix(text, "-")) > 15 {
		return 0, fmt.Errorf("%s has more than 15 digits", text)
	}
	return strconv.ParseInt(text, 10, 64)
}

func TestParseList(t *testing.T) {
	t.Parallel()
	list, err := parseList([]string{`"a";q=1;w=60`, `"b \"\\";q=-2 ,	"c"`})
	require.NoError(t, err)
	assert.Equal(t, []member{
		{"a", map[string]int64{"q": 1, "w": 60}}, {`b "\`, map[string]int64{"q": -2}}, {"c", map[string]int64{}},
	}, list)
	for _, bad := range []string{`a`, `"a`, `"a",`, `"a" "b"`, `"a";`, `"a";q`, `"a";q=`, `"a";q=x`, `"a";q=1234567890123456`, `"a";q=1.5`, `"é"`, `"\a"`, `"a";Q=1`} {
		_, err := parseList([]string{bad})
		require.Error(t, err, bad)
	}
}
