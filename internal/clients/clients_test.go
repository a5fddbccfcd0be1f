package clients

import (
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
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

// Whatever others write under the key, names are those of entries that are ours.
func TestNamesOfWhatIsNoted(t *testing.T) {
	t.Parallel()
	ann := Client{Name: "ann <&> \u00e9", Mark: "0102030405060708", ID: "an id"}
	n := newNames([]string{
		ann.entry(), "", "x", "{}", "[]", "null", `{"name":"a\u0000b","mark":"0a","id":"i"}`, `{"name":"bob","mark":"zz","id":"j"}`,
		`{"name":7}`, ann.entry(), `{"name":"carl","id":"k"}`,
	})
	assert.Equal(t, []Client{ann, {Name: "bob", Mark: "zz", ID: "j"}, {Name: "carl", ID: "k"}}, n.All())
	assert.Equal(t, ann.Name, n.OfID("an id"))
	assert.Equal(t, "bob", n.OfID("j"))
	assert.Empty(t, n.OfID("i"))
	var back Client
	require.NoError(t, json.Unmarshal([]byte(ann.entry()), &back))
	assert.Equal(t, ann, back)
}

func memberOf(t *testing.T, ids *redisson.Identities, permits int64) codec.Member {
	t.Helper()
	m, err := codec.Parse(string(redisson.WithPermits(ids.Next(nil, 1), permits)))
	require.NoError(t, err)
	return m
}

func TestSharesByMark(t *testing.T) {
	t.Parallel()
	for layout, marked := range map[codec.Layout]bool{codec.LayoutB: false, codec.LayoutC: false, codec.LayoutD1: true, codec.LayoutD2: true} {
		named, unnamed := redisson.NewIdentities(layout), redisson.NewIdentities(layout)
		ann := Client{Name: "ann", Mark: hexOf(named.Mark()), ID: "i"}
		tally := NewTally(newNames([]string{ann.entry()}))
		for range 10 {
			tally.Add(memberOf(t, named, 3))
			tally.Add(memberOf(t, unnamed, 2))
		}
		want := []Share{{Kind: Unmarked, Permits: 50}}
		switch {
		case layout == codec.LayoutD2:
			want = []Share{{Named, "ann", ann.Mark, 30}, {Unnamed, "", hexOf(unnamed.Mark()), 20}}
		case marked:
			want = []Share{{Named, "ann", ann.Mark, 30}, {Kind: Unmarked, Permits: 20}}
		}
		assert.Equal(t, want, tally.Shares(), layout)
	}
}

func hexOf(mark []byte) string { return hex.EncodeToString(mark) }
