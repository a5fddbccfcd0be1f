// Package development holds docs/development.md against the code: its drawing of
// the packages, its table of folders, and the files and functions in which it says
// the rules are.
package development

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// arrow leads from a name of a drawing to another.
type arrow struct{ from, to string }

// place is a character of a drawing, or the way from one to another.
type place struct{ row, column int }

var up, down, left, right = place{-1, 0}, place{1, 0}, place{0, -1}, place{0, 1}

func (p place) plus(way place) place { return place{p.row + way.row, p.column + way.column} }
func (p place) back() place          { return place{-p.row, -p.column} }

// ways are where the characters of lines lead to, and heads where those of arrows point to.
var (
	ways = map[rune][]place{
		'│': {up, down}, '─': {left, right},
		'┌': {right, down}, '┐': {left, down}, '└': {right, up}, '┘': {left, up},
		'├': {up, down, right}, '┤': {up, down, left}, '┬': {left, right, down}, '┴': {left, right, up},
		'┼': {up, down, left, right},
	}
	heads = map[rune]place{'▲': up, '▼': down, '◀': left, '▶': right}
)

// drawing is text in which lines lead from name to name.
type drawing [][]rune

func drawingOf(text string) drawing {
	var d drawing
	for line := range strings.Lines(text) {
		d = append(d, []rune(strings.TrimRight(line, "\n")))
	}
	return d
}

func (d drawing) at(p place) rune {
	if p.row < 0 || p.row >= len(d) || p.column < 0 || p.column >= len(d[p.row]) {
		return ' '
	}
	return d[p.row][p.column]
}

func isName(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '/' }

// name returns the name that has a character at p, "" if there is none.
func (d drawing) name(p place) string {
	if !isName(d.at(p)) {
		return ""
	}
	for isName(d.at(p.plus(left))) {
		p = p.plus(left)
	}
	var name strings.Builder
	for ; isName(d.at(p)); p = p.plus(right) {
		name.WriteRune(d.at(p))
	}
	return name.String()
}

// next is name for what a line or an arrow at p leads to: there may be a space between.
func (d drawing) next(p, way place) string {
	p = p.plus(way)
	if d.at(p) == ' ' {
		p = p.plus(way)
	}
	return d.name(p)
}

// leads reports whether the character at p continues a line by that way.
func (d drawing) leads(p, way place) bool {
	head, isHead := heads[d.at(p)]
	return slices.Contains(ways[d.at(p)], way) || isHead && head.back() == way
}

// arrows returns the arrows of a drawing. Lines that meet are one: each name at
// which they begin has an arrow to each at which they point.
func (d drawing) arrows() ([]arrow, error) {
	var all []arrow
	seen := map[place]bool{}
	for row := range d {
		for column := range d[row] {
			begin := place{row, column}
			if seen[begin] || ways[d.at(begin)] == nil && heads[d.at(begin)] == (place{}) {
				continue
			}
			from, to, err := d.follow(begin, seen)
			if err != nil {
				return nil, err
			}
			for _, f := range from {
				for _, t := range to {
					all = append(all, arrow{f, t})
				}
			}
		}
	}
	return all, nil
}

// follow returns the names at which the lines that meet at p begin and point.
func (d drawing) follow(p place, seen map[place]bool) (from, to []string, err error) {
	open := []place{p}
	for len(open) > 0 {
		p, open = open[0], open[1:]
		if seen[p] {
			continue
		}
		seen[p] = true
		all := ways[d.at(p)]
		if head, ok := heads[d.at(p)]; ok {
			name := d.next(p, head)
			if name == "" {
				return nil, nil, fmt.Errorf("line %d, column %d: the arrow points at no name", p.row+1, p.column+1)
			}
			to = append(to, name)
			all = []place{head.back()}
		}
		for _, way := range all {
			next := p.plus(way)
			if d.leads(next, way.back()) {
				open = append(open, next)
			} else if name := d.next(p, way); name != "" {
				from = append(from, name)
			} else {
				return nil, nil, fmt.Errorf("line %d, column %d: the line leads nowhere", p.row+1, p.column+1)
			}
		}
	}
	if len(from) == 0 || len(to) == 0 {
		return nil, nil, fmt.Errorf("line %d, column %d: the line is no arrow from one name to another", p.row+1, p.column+1)
	}
	return from, to, nil
}

func (d drawing) names() []string {
	var all []string
	for _, line := range d {
		all = append(all, strings.FieldsFunc(string(line), func(r rune) bool { return !isName(r) })...)
	}
	return all
}
