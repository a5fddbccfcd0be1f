// Package english holds the words of code and pages: phrases that they do without.
package english

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../../.."

// phrases have plainer words, behind them: those of all files, and those of pages and
// of the packages around the core.
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

// plainPackages are without those phrases; tests are left out.
var plainPackages = []string{
	"cmd/", "dashboard/", "fixedwindow/", "grpclimit/", "httplimit/", "internal/words/", "otellimit/", "slidinglog/", "tokenbucket/",
}

func TestWordsThatHavePlainerOnes(t *testing.T) {
	t.Parallel()
	files := 0
	err := eachFile([]string{".go", ".lua", ".md"}, func(path, text string) {
		files++
		text = strings.ToLower(text)
		for phrase, plainer := range phrases {
			assert.NotContains(t, text, phrase, "%s: write %q", path, plainer)
		}
		inPackage := func(folder string) bool {
			return strings.HasPrefix(path, folder) && !strings.HasSuffix(path, "_test.go")
		}
		if filepath.Ext(path) != ".md" && !slices.ContainsFunc(plainPackages, inPackage) {
			return
		}
		for phrase, plainer := range plainPhrases {
			assert.NotRegexp(t, phrase, text, "%s: write %q", path, plainer)
		}
	})
	require.NoError(t, err)
	assert.Greater(t, files, 300)
}
