package limit_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/limit"
)

var sentinels = map[string]error{
	"ErrPermitsExceedRate": limit.ErrPermitsExceedRate, "ErrInvalidPermits": limit.ErrInvalidPermits, "ErrInvalidConfig": limit.ErrInvalidConfig,
	"ErrCorrupt": limit.ErrCorrupt, "ErrUnknownOutcome": limit.ErrUnknownOutcome, "ErrUnavailable": limit.ErrUnavailable,
	"ErrUnsupported": limit.ErrUnsupported, "ErrNotInitialized": limit.ErrNotInitialized, "ErrNotReplicated": limit.ErrNotReplicated,
	"ErrSettled": limit.ErrSettled, "ErrClosed": limit.ErrClosed,
}

// Metrics would call an error without a kind "other", and no alert would name it.
func TestKindOf_KnowsEveryError(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	require.NoError(t, err)
	for name := range file.Scope.Objects {
		if !strings.HasPrefix(name, "Err") || !ast.IsExported(name) {
			continue
		}
		if assert.Contains(t, sentinels, name, "an error that this test does not know") {
			assert.NotEqual(t, limit.KindOther, limit.KindOf(sentinels[name]), name)
		}
	}
}
