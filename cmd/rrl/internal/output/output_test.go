package output_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
)

func TestWrap(t *testing.T) {
	t.Parallel()
	p := &output.Printer{Width: 12, Color: true}
	for text, want := range map[string]string{
		"":                                       "",
		"short\n":                                "short\n",
		"twelve chars\n":                         "twelve chars\n",
		"some words more\n\nand one\n":           "some words\n  more\n\nand one\n",
		"  some words more":                      "  some words\n    more",
		"averylongwordindeed":                    "averylongwordindeed",
		p.Paint(output.Red, "some") + " words m": p.Paint(output.Red, "some") + " words m",
	} {
		assert.Equal(t, want, p.Wrap(text), "%q", text)
	}
	assert.Equal(t, "a long line without end", (&output.Printer{}).Wrap("a long line without end"))
	assert.Equal(t, "a lo…", output.Clip("a long name", 5))
	assert.Equal(t, "äöü", output.Clip("äöü", 3))
	assert.Empty(t, output.Clip("äöü", 0))
}
