package admin_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/httplimit/admin"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
)

func TestClientsAreShownByTheirShares(t *testing.T) {
	t.Parallel()
	for _, cfg := range []rratelimiter.Config{limitertest.Hourly(100), limitertest.PerClient(100, time.Hour)} {
		r := miniRig(t)
		const what = "GET /clients?name=orders"
		r.ask(what, "", http.StatusNotFound, "")
		require.NoError(t, r.client.RateLimiter("orders").SetRate(t.Context(), cfg))
		r.ask(what, "", http.StatusOK, `"inUse":0,`)
		for name, permits := range map[string]int64{"ann": 5, "bob": 8} {
			named := limitertest.NewClient(t, r.rdb, rratelimiter.WithClientName(name))
			limitertest.MustAcquire(t, named.RateLimiter("orders"), permits)
		}
		member := limitertest.NewMember(t, codec.LayoutD2, 6)
		require.NoError(t, r.rdb.ZAdd(t.Context(), "{orders}:permits", redis.Z{Score: float64(time.Now().UnixMilli()), Member: member}).Err())

		type share struct {
			Kind, Name, Mark string
			Permits          int64
		}
		var answer struct {
			InUse    int64
			Complete bool
			Clients  []share
		}
		require.EventuallyWithT(t, func(c *assert.CollectT) { // names are written in the background
			answer.Clients = nil
			w := r.ask(what, "", http.StatusOK, "")
			require.NoError(c, json.Unmarshal(w.Body.Bytes(), &answer))
			assert.True(c, slices.ContainsFunc(answer.Clients, func(s share) bool { return s.Name == "ann" }))
			assert.True(c, slices.ContainsFunc(answer.Clients, func(s share) bool { return s.Name == "bob" }))
		}, time.Minute, 5*time.Millisecond)
		for i, s := range answer.Clients {
			assert.Equal(t, s.Kind == "named", len(s.Mark) == 16, s)
			answer.Clients[i].Mark = ""
		}
		want := []share{{Kind: "named", Name: "bob", Permits: 8}, {Kind: "redisson", Permits: 6}, {Kind: "named", Name: "ann", Permits: 5}}
		assert.Equal(t, cfg.Type == rratelimiter.Overall, answer.Complete)
		if cfg.Type == rratelimiter.PerClient {
			want = []share{want[0], want[2]} // that member is no client's own
		}
		assert.Equal(t, want, answer.Clients)
	}
}

func TestClientsAfterABadOption(t *testing.T) {
	t.Parallel()
	r := newRig(t, untouchable(t), func(cfg *admin.Config) {
		cfg.Client = rratelimiter.New(untouchable(t), rratelimiter.WithClientID(""))
	})
	r.ask("GET /clients?name=orders", "", http.StatusBadRequest, "")
}

func TestClientsOfALimiterThatIsCorrupt(t *testing.T) {
	t.Parallel()
	r := miniRig(t)
	require.NoError(t, r.client.RateLimiter("orders").SetRate(t.Context(), limitertest.Hourly(100)))
	require.NoError(t, r.rdb.Set(t.Context(), "{orders}:permits", "x", 0).Err())
	r.ask("GET /clients?name=orders", "", http.StatusConflict, "")
}
