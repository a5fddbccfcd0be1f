package compat_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// record adds a line of these columns to the test's table of results, a file in
// the directory that RRL_RESULTS names. Without one nothing is kept.
func record(t *testing.T, columns ...any) {
	t.Helper()
	dir := os.Getenv("RRL_RESULTS")
	if dir == "" {
		return
	}
	test, _, _ := strings.Cut(t.Name(), "/")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	f, err := os.OpenFile(filepath.Join(dir, test+".tsv"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	texts := make([]string, len(columns))
	for i, column := range columns {
		texts[i] = fmt.Sprint(column)
	}
	_, err = fmt.Fprintln(f, strings.Join(texts, "\t"))
	require.NoError(t, err)
}
