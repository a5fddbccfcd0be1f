package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestAnUnknownCommandHasSuggestions(t *testing.T) {
	t.Parallel()
	for typed, want := range map[string]string{
		"acqire":          "; did you mean acquire?",
		"lst":             "; did you mean ls?",
		"list":            "; did you mean ls?",
		"rm":              "; did you mean delete?",
		"set":             "; did you mean set-rate or try-set-rate?",
		"RATE":            "; did you mean set-rate or try-set-rate or update-rate?",
		"get":             "; did you mean show?",
		"foo":             "; rrl help lists all",
		"frobnicate":      "; rrl help lists all",
		`"x\" for rrl y"`: "; rrl help lists all",
	} {
		for _, line := range []string{typed, "help " + typed} {
			got := rrl(t, "%s", line)
			assert.Equal(t, exitError, got.code, line)
			assert.Regexp(t, `^rrl: unknown command ".*"`+want[:1]+` [^\n]*\n$`, got.stderr, line)
			assert.Contains(t, got.stderr, want+"\n", line)
		}
	}
	assert.Contains(t, object(t, rrl(t, "acqire --json").stderr)["error"], "did you mean acquire?")
}
