// Package english holds the words of code and pages: phrases that they do without.
package english

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../../.."

// phrases have plainer words, behind them.
var phrases = map[string]string{
	"tells " + "whether": "reports whether",
	"in va" + "in":       "without success",
	"whom" + "ever":      "the one that",
	" le" + "st ":        "so that ... not",
}

func TestWordsThatHavePlainerOnes(t *testing.T) {
	t.Parallel()
	files := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && path != root && strings.HasPrefix(entry.Name(), ".") {
			return filepath.SkipDir
		}
		if !slices.Contains([]string{".go", ".lua", ".md"}, filepath.Ext(path)) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		for phrase, plainer := range phrases {
			assert.NotContains(t, strings.ToLower(string(text)), phrase, "%s: write %q", path, plainer)
		}
		return nil
	})
	require.NoError(t, err)
	assert.Greater(t, files, 300)
}
