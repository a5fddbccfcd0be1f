package browser_test

import (
	_ "embed"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// axe is version 4.14.1 of the npm package axe-core, whose licence is beside it.
//
//go:embed testdata/axe-core/axe.min.js
var axe string

// violation is a rule of axe-core that a page breaks.
type violation struct {
	ID, Impact, Help string
	Nodes            []struct{ Target, HTML, Summary string }
}

func (v violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%s): %s", v.ID, v.Impact, v.Help)
	for _, n := range v.Nodes {
		fmt.Fprintf(&b, "\n\t%s\n\t\t%s\n\t\t%s", n.Target, n.HTML, strings.ReplaceAll(n.Summary, "\n", "\n\t\t"))
	}
	return b.String()
}

// allRules are those that axe-core does not call experimental; colours alone differ
// between light and dark.
const (
	allRules = `['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']`
	colours  = `['color-contrast', 'link-in-text-block']`
)

const runAxe = `axe.run(document, {
  runOnly: %s,
  resultTypes: ['violations'],
}).then(r => r.violations.map(v => ({
  ID: v.id, Impact: v.impact, Help: v.help,
  Nodes: v.nodes.slice(0, 5).map(n => ({
    Target: n.target.join(' '), HTML: n.html.slice(0, 300), Summary: n.failureSummary,
  })),
})))`

// violations returns those that axe-core finds on what the tab shows.
func (p *tab) violations(rules string) []violation {
	p.t.Helper()
	if !get[bool](p, "'axe' in window") {
		p.eval(axe)
	}
	return get[[]violation](p, fmt.Sprintf(runAxe, rules))
}

// accessible fails the test where axe-core finds anything, in light or in dark.
func (p *tab) accessible() {
	p.t.Helper()
	found := p.violations(allRules)
	p.dark(true)
	found = append(found, p.violations(colours)...)
	p.dark(false)
	for _, v := range found {
		assert.Fail(p.t, "axe-core", v.String())
	}
}

func TestTheTabSeesWhatMustNotHappen(t *testing.T) {
	t.Parallel()
	elsewhere := serve(t, "", "")
	p := open(t, serve(t, "img-src 'none'; script-src-attr 'none'", `
		<script>
			fetch('missing')
			fetch('`+elsewhere+`there', {mode: 'no-cors'})
			console.error('oh')
			alert('hello')
			undefined.x
		</script>
		<img alt="" src="x"><p onclick="x()">`), look{})
	p.until("broken.length === 2")
	faults := strings.Join(p.faults(), "\n")
	for _, fault := range []string{
		"log: network: ", "request elsewhere: " + elsewhere + "there", `console: "oh"`, "dialog: hello",
		"exception: ", "policy: img-src", "policy: script-src-attr",
	} {
		assert.Contains(t, faults, fault)
	}
	p.provokes("")
	p.eval("broken.length = 0")
}

func TestAxeFindsViolations(t *testing.T) {
	t.Parallel()
	p := open(t, serve(t, "script-src 'none'", `<main><button></button><p style="color:#ccc">hardly to be read</p></main>`), look{})
	var found []string
	for _, v := range p.violations(allRules) {
		found = append(found, v.ID)
	}
	assert.Subset(t, found, []string{"button-name", "color-contrast", "page-has-heading-one"})
}
