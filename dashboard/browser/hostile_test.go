package browser_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/clients"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

// hostile returns names that would do or show something else than they are, if the
// page took them for anything but text.
func hostile() []string {
	binary := make([]byte, 4096)
	_, _ = rand.NewChaCha8([32]byte{}).Read(binary) // the same bytes each time
	return []string{
		`<img src=x onerror=alert(1)>`, `<img src=http://192.0.2.1/pic onerror=alert(1)>`, `<script>alert(1)</script>`,
		`<script src=//192.0.2.1/x.js></script>`, `"><svg onload=alert(1)>`, `' onmouseover='alert(1)`,
		`" style="position:fixed;inset:0" onclick="alert(1)`, `</title><script>alert(1)</script>`,
		`</textarea><iframe src=javascript:alert(1)>`, `<style>*{display:none}</style>`, `<base href=http://192.0.2.1/>`,
		`<meta http-equiv=refresh content=0;url=http://192.0.2.1/>`, `<form action=http://192.0.2.1/><button>`, `<template><dialog open>`,
		`javascript:alert(1)`, `data:text/html,<script>alert(1)</script>`, `//192.0.2.1/`, `../../api/change`, `%2e%2e%2f%00`,
		`#/changes`, `?search=<b>`, `a&lt;b&amp;c`, `{{constructor.constructor('alert(1)')()}}`, "${alert(1)}`", `__proto__`,
		`constructor`, `hasOwnProperty`, `null`, `0`, ` spaces  before and after `,
		"a line\nand another\r\nid: 1\nevent: fault\ndata: {}\n\n", "a tab\t\v\f\b\x1b[31m", "nul\x00 in it",
		"not UTF-8: \xff\xfe\xc3\x28", "a surrogate: \xed\xa0\x80", "exe.\u202egnp.rekcah", "\u2066isolated\u2067 and never closed",
		"\u05e9\u05dc\u05d5\u05dd 123 abc", "\u0645\u0631\u062d\u0628\u0627", "zero\u200bwidth\u200d\ufeff\u00ad",
		"line separators \u2028 and \u2029", "o" + strings.Repeat("\u0301\u0316", 200),
		"\U0001F3F4\U000E0067\U000E0062\U000E007F \U0001F9D1\u200d\U0001F680", "\ufffd\uffff",
		strings.Repeat("W", 4096), strings.Repeat("a ", 2048), strings.Repeat("<b>", 1365), string(binary),
	}
}

// harmless is that no markup has come of names: the page has none of these.
const harmless = `document.querySelectorAll('img, iframe, base, style, meta[http-equiv], form[action], [onerror], [onload], [onclick], ' +
  '[onmouseover], [style*="fixed"], script:not([src])').length`

// TestHostileNames of limiters, of who holds their permits, and of other keys.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	before := get[int](openLive(t, newSite(t).url, look{}), harmless)
	s := newSite(t, writable)
	names := hostile()
	s.plant(names)
	p := openLive(t, s.url, look{width: 360, height: 640})
	p.unlock(token)
	p.until(fmt.Sprintf("document.querySelectorAll('#limiters tbody tr[data-id]').length >= %d", min(len(names), 50)))
	assert.Empty(t, get[[]string](p, wide), "with hostile names")
	for _, name := range names {
		p.goTo("#/limiter/" + id(name))
		p.until(seen("#holders tbody tr") + " && " + one("#limiter-whole p") + ".textContent === " + quote(words.Printable(name)))
		assert.Equal(t, before, get[int](p, harmless), "%q became markup", name)
		assert.Empty(t, get[[]string](p, wide), "%q", name)
	}
	// A name goes to the server and back through a change, too.
	for _, name := range []string{names[0], "a line\nand another\r\nid: 1\nevent: fault\ndata: {}\n\n", names[len(names)-1]} {
		p.changeRate(name, "7")
		rate, err := s.rdb.HGet(t.Context(), name, "rate").Int()
		require.NoError(t, err)
		assert.Equal(t, 7, rate, "%q", name)
	}
	p.goTo("#/changes")
	p.until(`document.querySelectorAll('#audit tbody tr').length === 3`)
	assert.Equal(t, before, get[int](p, harmless))
	assert.Empty(t, get[[]string](p, wide))
	assert.Empty(t, p.asked("192.0.2.1"))
}

// plant makes limiters with these names, of each of which somebody of the same name
// holds a permit. This module would refuse some: others may write what they like.
func (s *site) plant(names []string) {
	s.t.Helper()
	ctx, now := s.t.Context(), float64(time.Now().UnixMilli())
	_, err := s.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, name := range names {
			id := make([]byte, 16) // of a client, and the count of its attempts
			id[0] = byte(i + 1)
			member, err := codec.Append(nil, codec.LayoutD2, id, 1)
			require.NoError(s.t, err)
			holder, err := json.Marshal(clients.Client{Name: name, Mark: hex.EncodeToString(id[:8])})
			require.NoError(s.t, err)
			keys := redisson.KeysOf(name, "")
			pipe.HSet(ctx, name, "rate", 10, "interval", 3_600_000, "type", 0)
			pipe.Set(ctx, keys.Value, 9, 0)
			pipe.ZAdd(ctx, keys.Permits, redis.Z{Score: now, Member: member})
			pipe.ZAdd(ctx, clients.Key, redis.Z{Score: now + 3_600_000, Member: holder})
		}
		return nil
	})
	require.NoError(s.t, err)
}
