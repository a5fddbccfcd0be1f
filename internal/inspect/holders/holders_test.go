package holders

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/clients"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// Whatever others write under the key, names are those of entries that are ours.
func TestNames_ForeignEntriesAreIgnored(t *testing.T) {
	t.Parallel()
	ann := clients.Client{Name: "ann <&> \u00e9", Mark: "0102030405060708", ID: "an id"}
	n := newNames([]string{
		entry(t, ann), "", "x", "{}", "[]", "null", `{"name":"a\u0000b","mark":"0a","id":"i"}`, `{"name":"bob","mark":"zz","id":"j"}`,
		`{"name":7}`, entry(t, ann), `{"name":"carl","id":"k"}`,
	})
	assert.Equal(t, []clients.Client{ann, {Name: "bob", Mark: "zz", ID: "j"}, {Name: "carl", ID: "k"}}, n.All())
	assert.Equal(t, ann.Name, n.OfID("an id"))
	assert.Equal(t, "bob", n.OfID("j"))
	assert.Empty(t, n.OfID("i"))
}

func entry(t *testing.T, c clients.Client) string {
	t.Helper()
	return string(limitertest.Must(json.Marshal(c))(t))
}

func memberOf(t *testing.T, ids *redisson.Identities, permits int64) codec.Member {
	t.Helper()
	return limitertest.Must(codec.Parse(string(redisson.WithPermits(ids.Next(nil, 1), permits))))(t)
}

func TestSharesByMark(t *testing.T) {
	t.Parallel()
	for layout, marked := range map[codec.Layout]bool{codec.LayoutB: false, codec.LayoutC: false, codec.LayoutD1: true, codec.LayoutD2: true} {
		named, unnamed := redisson.NewIdentities(layout), redisson.NewIdentities(layout)
		ann := clients.Client{Name: "ann", Mark: hexOf(named.Mark()), ID: "i"}
		tally := NewTally(newNames([]string{entry(t, ann)}))
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

// Names are read in pages: all are found, whatever shares a page's last millisecond.
func TestManyNamesAreRead(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	at := time.Now().Add(time.Hour)
	for i := range 1500 {
		of := at.Add(time.Duration(i/700) * time.Minute)
		c := clients.Client{Name: fmt.Sprint("client ", i), ID: fmt.Sprint(i)}
		require.NoError(t, rdb.ZAdd(t.Context(), clients.Key, redis.Z{Score: float64(of.UnixMilli()), Member: entry(t, c)}).Err())
	}
	last := clients.Client{Name: "last", ID: "last"}
	require.NoError(t, rdb.ZAdd(t.Context(), clients.Key, redis.Z{Score: float64(at.Add(time.Hour).UnixMilli()), Member: entry(t, last)},
		redis.Z{Score: 1, Member: entry(t, clients.Client{Name: "past", ID: "past"})}).Err())
	e := engine.New(rdb, redistest.Patience(script.DefaultTimeout), redisson.NewestRules, redisson.NewIdentities(codec.LayoutD2), nil)
	n := limitertest.Must(known(t.Context(), e))(t)
	assert.Equal(t, "last", n.OfID("last"))
	assert.Empty(t, n.OfID("past"))
	assert.Equal(t, "last", n.All()[0].Name, "noted last")
	assert.GreaterOrEqual(t, len(n.All()), 2*512)
}
