package linearizability_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// TestHistories checks the limiter against the model: random calls of two
// clients, with time passing and Redisson's mistakes between them. All times
// are multiples of 100 ms, save that limiters expire between those.
func TestHistories(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		ops := rapid.SliceOfN(rapid.Custom(drawOp), 1, 60).Draw(rt, "ops")
		var problem error
		synctest.Test(t, func(t *testing.T) { problem = newHistory(t).run(ops) })
		if problem != nil {
			rt.Fatal(problem)
		}
	})
}

// op is one event of a history.
type op struct {
	Name    string
	Client  int
	Permits int64
	Span    time.Duration
	Config  rratelimiter.Config
}

func (o op) String() string {
	return fmt.Sprintf("{%s client=%d permits=%d span=%v config=%+v}", o.Name, o.Client, o.Permits, o.Span, o.Config)
}

// What may happen in a history; what comes often is there more than once.
var opNames = []string{
	"try", "try", "try", "try", "take", "take", "wait", "wait", "default", "available", "available", "release", "release",
	"sleep", "sleep", "sleep", "trySetRate", "trySetRate", "setRate", "update", "updateKeep", "updateKeep", "setKeep",
	"config", "ttl", "expire", "expireAt", "clearExpire", "delete", "rename",
	"loseValue", "loseSet", "loseConfig", "raise", "leak", "redate", "persist", "remake",
	"javaTry", "javaFast", "javaSlow", "javaTwice", "javaRelease", "javaAvailable",
}

func drawOp(t *rapid.T) op {
	interval := time.Duration(rapid.Int64Range(2, 12).Draw(t, "interval")) * 100 * time.Millisecond
	keepAlive := time.Duration(0)
	if rapid.Bool().Draw(t, "keep alive") {
		keepAlive = interval + time.Duration(rapid.Int64Range(0, 12).Draw(t, "longer"))*100*time.Millisecond + 50*time.Millisecond
	}
	return op{
		Name:    rapid.SampledFrom(opNames).Draw(t, "name"),
		Client:  rapid.IntRange(0, 1).Draw(t, "client"),
		Permits: rapid.Int64Range(1, 11).Draw(t, "permits"),
		Span:    time.Duration(rapid.Int64Range(1, 15).Draw(t, "span")) * 100 * time.Millisecond,
		Config: rratelimiter.Config{
			Type:      rratelimiter.RateType(rapid.IntRange(0, 1).Draw(t, "type")),
			Rate:      rapid.Int64Range(1, 10).Draw(t, "rate"),
			Interval:  interval,
			KeepAlive: keepAlive,
		},
	}
}

// history is a limiter, its model and what happens to both.
type history struct {
	t        *testing.T
	rdb      *redis.Client
	model    *model
	clients  [2]*rratelimiter.Client
	limiters [2]*rratelimiter.RateLimiter
	java     [2]limitertest.Java
}

func newHistory(t *testing.T) *history {
	rdb, m := redistest.Mini(t)
	h := &history{t: t, rdb: rdb, model: newModel()}
	for i := range h.clients {
		id := strconv.Itoa(i)
		h.clients[i] = limitertest.NewClient(t, redistest.MiniClient(t, m, nil), rratelimiter.WithClientID(id))
		h.limiters[i] = h.clients[i].RateLimiter("name")
		h.java[i] = limitertest.Java{Redis: rdb, Name: "name", ID: id}
	}
	return h
}

func (h *history) run(ops []op) error {
	for i, o := range ops {
		if err := h.do(o); err != nil {
			return fmt.Errorf("op %d, %v: %w", i, o, err)
		}
	}
	return nil
}

// Do lets one thing happen, and checks what comes of it.
func (h *history) do(o op) error {
	limitertest.OnPurpose(h.t, h.rdb, "name")
	h.model.expire(time.Now())
	before := h.look(o.Client)
	if before.exists != (h.model.cfg.Rate != 0) {
		return fmt.Errorf("the limiter is there: %v", before.exists)
	}
	touched, err := h.call(o, before)
	if err != nil {
		return err
	}
	after := h.look(o.Client)
	if touched {
		if err := h.checkState(o, before, after); err != nil {
			return fmt.Errorf("%w\nbefore: %+v\nafter:  %+v", err, before, after)
		}
	}
	if p := h.model.pair(o.Client); after.exists && p.inexact && len(after.rows) == 0 && (!after.hasValue || after.value == after.rate) {
		*p = modelPair{}
	}
	return nil
}

// view is what Redis holds of the limiter for one client.
type view struct {
	exists                          bool
	rate                            int64
	interval                        time.Duration
	keepAlive                       time.Duration
	perClient                       bool
	value                           int64
	hasValue                        bool
	rows                            []viewRow
	configTTL, valueTTL, permitsTTL time.Duration
}

type viewRow struct {
	at      time.Time
	permits int64
}

func (h *history) look(client int) view {
	t, ctx := h.t, h.t.Context()
	set := redisson.KeysOf("name", strconv.Itoa(client))
	fields, err := h.rdb.HGetAll(ctx, set.Config).Result()
	require.NoError(t, err)
	v := view{exists: len(fields) > 0, perClient: fields["type"] == "1"}
	v.rate, _ = strconv.ParseInt(fields["rate"], 10, 64)
	interval, _ := strconv.ParseInt(fields["interval"], 10, 64)
	v.interval = time.Duration(interval) * time.Millisecond
	keepAlive, _ := strconv.ParseInt(fields["keepAliveTime"], 10, 64)
	v.keepAlive = time.Duration(keepAlive) * time.Millisecond
	valueKey, permitsKey := set.Value, set.Permits
	if v.perClient {
		valueKey, permitsKey = set.ClientValue, set.ClientPermits
	}
	v.value, v.hasValue = limitertest.StoredValue(t, h.rdb, valueKey)
	rows, err := h.rdb.ZRangeWithScores(ctx, permitsKey, 0, -1).Result()
	require.NoError(t, err)
	for _, row := range rows {
		member, err := codec.Parse(row.Member.(string))
		require.NoError(t, err)
		v.rows = append(v.rows, viewRow{at: time.UnixMilli(int64(row.Score)), permits: int64(member.Permits)})
	}
	v.configTTL = h.rdb.PTTL(ctx, set.Config).Val()
	v.valueTTL = h.rdb.PTTL(ctx, valueKey).Val()
	v.permitsTTL = h.rdb.PTTL(ctx, permitsKey).Val()
	return v
}

// bounds returns the least and the most permits that may be found free: they
// differ where permits have leaked, which not every request looks for.
func (v view) bounds(now time.Time) (least, most int64) {
	live, out := int64(0), int64(0)
	for _, row := range v.rows {
		if row.at.Add(v.interval).After(now) {
			live += row.permits
		} else {
			out += row.permits
		}
	}
	switch {
	case live == 0 && (len(v.rows) == 0 || !v.rows[len(v.rows)-1].at.Add(v.interval).After(now)):
		return v.rate, v.rate
	case !v.hasValue:
		return v.rate - live, v.rate - live
	}
	least = min(v.rate, min(v.value, v.rate)+out)
	return least, max(least, v.rate-live)
}

// excess is how many permits there are beyond the rate, free or in use.
func (v view) excess() int64 {
	if !v.hasValue {
		return 0
	}
	excess := v.value - v.rate
	for _, row := range v.rows {
		excess += row.permits
	}
	return excess
}

// checkState checks what must hold after any call that looked at the permits.
func (h *history) checkState(o op, before, after view) error {
	switch {
	case !after.hasValue && len(after.rows) > 0:
		return errors.New("a set without a value")
	case !after.hasValue:
		return nil
	case after.value > after.rate:
		return errors.New("the value is above the rate")
	case len(after.rows) == 0 && after.value != after.rate:
		return errors.New("an empty set, and the value is not the rate")
	}
	was, is := before.excess(), after.excess()
	if !before.exists || before.perClient != after.perClient {
		was = is
	}
	switch {
	case is > max(0, was) || is < min(0, was):
		return fmt.Errorf("value and permits in use differ from the rate by %d, and by %d before", is, was)
	case len(before.rows) == 0 && is != 0:
		return fmt.Errorf("nothing was in use, and value and permits in use differ from the rate by %d", is)
	case o.Name == "available" && is < 0:
		return fmt.Errorf("%d permits belong to nobody", -is)
	case !h.model.pair(o.Client).inexact && is != 0:
		return fmt.Errorf("value and permits in use differ from the rate by %d", is)
	}
	want := after.configTTL
	if after.perClient && after.keepAlive == 0 && (want < 0 || want > after.interval) {
		want = after.interval
	}
	if after.perClient && after.keepAlive > 0 && want < 0 {
		return nil // the other client has cleared it: the pair goes when its own last keep-alive time is over
	}
	if after.valueTTL != want || len(after.rows) > 0 && after.permitsTTL != want {
		return fmt.Errorf("times to live: %v of the value, %v of the set, not %v", after.valueTTL, after.permitsTTL, want)
	}
	return nil
}
