package english

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mostWords is how many words all pages may have together, as wc -w counts them.
const mostWords = 42_000

func TestPagesAreShortEnough(t *testing.T) {
	t.Parallel()
	type page struct {
		path  string
		words int
	}
	var pages []page
	total := 0
	err := eachFile([]string{".md"}, func(path, text string) {
		words := len(strings.Fields(text))
		pages = append(pages, page{path, words})
		total += words
	})
	require.NoError(t, err)
	assert.Greater(t, len(pages), 40)

	slices.SortFunc(pages, func(a, b page) int { return b.words - a.words })
	var largest strings.Builder
	for _, p := range pages[:min(10, len(pages))] {
		fmt.Fprintf(&largest, "\n%6d %s", p.words, p.path)
	}
	assert.LessOrEqual(t, total, mostWords, "words of all pages; say each thing once, and link. The largest:%s", &largest)
}

// eachFile calls f with the path and the text of each file whose name ends so.
func eachFile(extensions []string, f func(path, text string)) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && path != root && strings.HasPrefix(entry.Name(), ".") {
			return filepath.SkipDir
		}
		if entry.IsDir() || !slices.Contains(extensions, filepath.Ext(path)) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		f(filepath.ToSlash(relative), string(text))
		return nil
	})
}
