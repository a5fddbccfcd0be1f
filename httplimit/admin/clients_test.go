package admin_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/httplimit/admin"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestClientsAreShownByTheirShares(t *testing.T) {
	t.Parallel()
	for _, cfg := range []rratelimiter.Config{limitertest.Hourly(100), limitertest.PerClient(100, time.Hour)} {
		r := miniRig(t)
		d := readDocument(t, r)
		const where = "/clients?name=orders"
		assert.Equal(t, http.StatusNotFound, r.do(http.MethodGet, where, "").Code)
		d.checkAnswer(t, r, http.MethodGet, where, "")
		require.NoError(t, r.client.RateLimiter("orders").SetRate(t.Context(), cfg))
		assert.Contains(t, r.do(http.MethodGet, where, "").Body.String(), `{"inUse":0,`)
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
		require.Eventually(t, func() bool {
			w := r.do(http.MethodGet, where, "")
			if !assert.Equal(t, http.StatusOK, w.Code, w.Body) || !assert.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer)) {
				return true
			}
			return len(answer.Clients) > 1 && answer.Clients[1].Name == "ann" || len(answer.Clients) > 2 && answer.Clients[2].Name == "ann"
		}, 20*time.Second, 5*time.Millisecond)
		d.checkAnswer(t, r, http.MethodGet, where, "")
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
	assert.Equal(t, http.StatusBadRequest, r.do(http.MethodGet, "/clients?name=orders", "").Code)
}

func TestClientsOfALimiterThatIsCorrupt(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	r := newRig(t, rdb, nil)
	require.NoError(t, r.client.RateLimiter("orders").SetRate(t.Context(), limitertest.Hourly(100)))
	require.NoError(t, rdb.Set(t.Context(), "{orders}:permits", "x", 0).Err())
	assert.Equal(t, http.StatusConflict, r.do(http.MethodGet, "/clients?name=orders", "").Code)
}
