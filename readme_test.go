package rratelimiter_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pages returns the documentation: each file's path and text.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/adr/*.md"} {
		paths, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, path := range paths {
			all[path] = readText(t, path)
		}
	}
	return all
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// trimmed returns the lines of text that are not empty, without indentation.
func trimmed(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

var codeBlock = regexp.MustCompile("(?s)```([a-z]*)\n(.*?)```\n")

func TestReadmeCodeIsThatOfTheExamples(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("example*_test.go")
	require.NoError(t, err)
	var lines []string
	for _, path := range paths {
		lines = append(lines, trimmed(readText(t, path))...)
	}
	examples := strings.Join(lines, "\n") + "\n"
	found := 0
	for _, block := range codeBlock.FindAllStringSubmatch(readText(t, "README.md"), -1) {
		if block[1] != "go" {
			continue
		}
		found++
		code := strings.Join(trimmed(block[2]), "\n") + "\n"
		assert.Contains(t, examples, "\n"+code, "README.md shows code that no example runs")
	}
	assert.NotZero(t, found)
}

func TestDocsLinkToWhatExists(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	all := pages(t)
	for path, text := range all {
		text = codeBlock.ReplaceAllString(text, "")
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), target)
			}
			if _, err := os.Stat(file); !assert.NoError(t, err, "%s links to %s", path, match[1]) || anchor == "" {
				continue
			}
			assert.Contains(t, anchors(all[file]), anchor, "%s links to %s", path, match[1])
		}
	}
}

// anchors returns what the headings of a page can be linked by.
func anchors(text string) []string {
	var found []string
	drop := regexp.MustCompile(`[^a-z0-9 _-]`)
	for line := range strings.Lines(codeBlock.ReplaceAllString(text, "")) {
		if heading := strings.TrimLeft(line, "#"); heading != line {
			heading = drop.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			found = append(found, strings.ReplaceAll(heading, " ", "-"))
		}
	}
	return found
}

func TestDocsNameTestsThatExist(t *testing.T) {
	t.Parallel()
	define := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w*)\(`)
	exist := []string{"TestName"} // stands for any test
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && path != "." && strings.HasPrefix(entry.Name(), ".") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, "_test.go") {
			for _, match := range define.FindAllStringSubmatch(readText(t, path), -1) {
				exist = append(exist, match[1])
			}
		}
		return nil
	})
	require.NoError(t, err)
	name := regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark|Example)[A-Z_]\w*`)
	for path, text := range pages(t) {
		for _, test := range name.FindAllString(text, -1) {
			assert.True(t, slices.Contains(exist, test), "%s names %s, which does not exist", path, test)
		}
	}
}

// What cmd/rrl has and what the README tells of it are the same commands.
func TestReadmeNamesEachCommand(t *testing.T) {
	t.Parallel()
	use := regexp.MustCompile(`Use:\s+"([a-z-]+)`)
	paths, err := filepath.Glob("cmd/rrl/*.go")
	require.NoError(t, err)
	readme := readText(t, "README.md")
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, match := range use.FindAllStringSubmatch(readText(t, path), -1) {
			if match[1] != "rrl" {
				assert.Contains(t, readme, "`rrl "+match[1], "README.md says nothing of this command")
			}
		}
	}
}
