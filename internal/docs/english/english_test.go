// Package english holds the words of code and pages: phrases that they do without.
package english

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../../.."

// phrases have plainer words, behind them: those of all files, and those of pages and
// of code that is no test.
var phrases = map[string]string{
	"tells " + "whether": "reports whether",
	"in va" + "in":       "without success",
	"whom" + "ever":      "the one that",
	" le" + "st ":        "so that ... not",
}

var plainPhrases = map[*regexp.Regexp]string{
	regexp.MustCompile(`\b(is|are) told\b`): "receives, learns, gets",
	regexp.MustCompile(`\b[Ww]hoever\b`):    "a caller who, if someone",
}

// plainComments are those of comments, in tests too; texts and data may quote them.
var plainComments = regexp.MustCompile(`(?m)(//|--) .*\b(nobody|somebody|whoever|takes note of)\b`)

func TestWordsThatHavePlainerOnes(t *testing.T) {
	t.Parallel()
	files := 0
	err := eachFile([]string{".go", ".lua", ".md"}, func(path, text string) {
		files++
		text = strings.ToLower(text)
		for phrase, plainer := range phrases {
			assert.NotContains(t, text, phrase, "%s: write %q", path, plainer)
		}
		if filepath.Ext(path) != ".md" {
			assert.NotRegexp(t, plainComments, text, path)
		}
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		for phrase, plainer := range plainPhrases {
			assert.NotRegexp(t, phrase, text, "%s: write %q", path, plainer)
		}
	})
	require.NoError(t, err)
	assert.Greater(t, files, 300)
}
