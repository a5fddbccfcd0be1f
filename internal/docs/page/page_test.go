package page_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/docs/page"
)

func TestFill(t *testing.T) {
	t.Parallel()
	const text = "a\n<!-- begin x -->\nold\n<!-- end -->\nb\n<!-- begin y -->\n<!-- end -->\n"
	got, err := page.Fill(text, func(name, old string) (string, error) {
		if name == "x" {
			return old, nil
		}
		return "new " + name + old + "\n", nil
	})
	require.NoError(t, err)
	assert.Equal(t, "a\n<!-- begin x -->\nold\n<!-- end -->\nb\n<!-- begin y -->\nnew y\n<!-- end -->\n", got)
	unknown := errors.New("unknown")
	_, err = page.Fill(text, func(string, string) (string, error) { return "", unknown })
	require.ErrorIs(t, err, unknown)
	_, err = page.Fill("<!-- begin x -->\nold\n", func(string, string) (string, error) { return "", nil })
	require.ErrorContains(t, err, `"x" has no end`)
}

func TestTable(t *testing.T) {
	t.Parallel()
	columns, rows := []string{"what", "how many", "again"}, [][]string{{"x", "1", "2"}}
	assert.Equal(t, "| what | how many | again |\n|---|---|---|\n| x | 1 | 2 |\n", page.Table(columns, rows, false))
	assert.Equal(t, "| what | how many | again |\n|---|---:|---:|\n| x | 1 | 2 |\n", page.Table(columns, rows, true))
}
