package clients

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/limit"
)

func TestCheckName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "orders-7f9c", "orders 7f9c", "Müller/注文", strings.Repeat("x", 128)} {
		assert.NoError(t, CheckName(name), name)
	}
	for _, name := range []string{"", "a\x00", "\t", "a\u00a0b", "\u2028", "\xff", "\x1b[31m", strings.Repeat("ä", 65)} {
		assert.ErrorIs(t, CheckName(name), limit.ErrInvalidConfig, name)
	}
}
