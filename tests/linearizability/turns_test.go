package linearizability_test

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
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
	"github.com/rratelimiter/rratelimiter/internal/test/model"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// TestHistories checks the limiter against the model: random calls of two
// clients, with time passing and Redisson's mistakes between them. After each, its answer
// and all that Redis holds must be what the model says. All times are multiples of
// 100 ms, except that limiters expire between those.
func TestHistories(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		ops := rapid.SliceOfN(rapid.Custom(drawOp), 1, 60).Draw(rt, "ops")
		var problem error
		synctest.Test(t, func(t *testing.T) { problem = newTurns(t).run(ops) })
		if problem != nil {
			rt.Fatal(problem)
		}
	})
}

// turn is one event of a history.
type turn struct {
	model.Op

	Client int
	Span   time.Duration
}

func (o turn) String() string {
	return fmt.Sprintf("{%s client=%d permits=%d span=%v rate=%+v keep=%v}", o.Do, o.Client, o.Permits, o.Span, *o.Rate, o.Keep)
}

// What may happen in a history; what comes often is there more than once.
var turnNames = []string{
	"tryAcquire", "tryAcquire", "tryAcquire", "tryAcquire", "take", "take", "wait", "wait", "withDefault",
	"availablePermits", "availablePermits", "release", "release", "sleep", "sleep", "sleep", "trySetRate", "trySetRate",
	"setRate", "updateRate", "setRate", "updateRate", "getConfig", "ttl", "expire", "expireAt", "clearExpire", "delete", "exists", "rename",
	"loseValue", "loseSet", "loseConfig", "raise", "leak", "redate", "persist", "remake",
	"javaTry", "javaFast", "javaSlow", "javaTwice", "javaRelease", "javaAvailable",
}

func drawOp(t *rapid.T) turn {
	span := time.Duration(rapid.Int64Range(1, 15).Draw(t, "span")) * 100 * time.Millisecond
	return turn{
		Op: model.Op{
			Do:      rapid.SampledFrom(turnNames).Draw(t, "name"),
			Permits: rapid.Int64Range(1, 11).Draw(t, "permits"),
			Rate:    model.RateOf(drawConfig(t)),
			Keep:    rapid.Bool().Draw(t, "keep"),
			Held:    true,
			TTL:     span.Milliseconds() + 50,
			At:      span.Milliseconds() + 50,
		},
		Client: rapid.IntRange(0, 1).Draw(t, "client"),
		Span:   span,
	}
}

func drawConfig(t *rapid.T) rratelimiter.Config {
	cfg := rratelimiter.Config{
		Type:     rratelimiter.RateType(rapid.IntRange(0, 1).Draw(t, "type")),
		Rate:     rapid.Int64Range(1, 10).Draw(t, "rate"),
		Interval: time.Duration(rapid.Int64Range(2, 12).Draw(t, "interval")) * 100 * time.Millisecond,
	}
	if rapid.Bool().Draw(t, "keep alive") {
		cfg.KeepAlive = cfg.Interval + time.Duration(rapid.Int64Range(0, 12).Draw(t, "longer"))*100*time.Millisecond + 50*time.Millisecond
	}
	return cfg
}

// turns is a limiter, what Redis is to hold of it, and who takes turns with it.
type turns struct {
	t       *testing.T
	rdb     *redis.Client
	module  *model.Module
	state   *model.State
	who     [2]model.Client
	clients [2]*rratelimiter.Client
	handles [2]*rratelimiter.RateLimiter
	java    [2]limitertest.Java
}

func newTurns(t *testing.T) *turns {
	rdb, m := redistest.Mini(t)
	h := &turns{t: t, rdb: rdb, module: model.Beside(model.ReleaseOf("4.7.0")), state: model.NewState("0", "1")}
	for i := range h.clients {
		id := strconv.Itoa(i)
		h.who[i] = model.Client{Number: i + 1, ID: id, Layout: codec.LayoutD2}
		h.clients[i] = limitertest.NewClient(t, redistest.MiniClient(t, m, nil), rratelimiter.WithClientID(id))
		h.handles[i] = h.clients[i].RateLimiter("name")
		h.java[i] = limitertest.Java{Redis: rdb, Name: "name", ID: id}
	}
	return h
}

func (h *turns) run(ops []turn) error {
	for i, o := range ops {
		limitertest.OnPurpose(h.t, h.rdb, "name")
		before := h.state
		if err := h.do(o); err != nil {
			return fmt.Errorf("op %d, %v: %w\nbefore: %v", i, o, err, before)
		}
	}
	return nil
}

// came is what a call may come to.
type came struct {
	model.Answer

	state *model.State
	after time.Duration
}

func (c came) String() string { return fmt.Sprintf("%v after %v, %v", c.Answer, c.after, c.state) }

// do lets one thing happen, and checks what comes of it.
func (h *turns) do(o turn) error {
	start := time.Now()
	now := start.UnixMilli()
	call := func(s *model.State) *model.Call { return &model.Call{State: s.Clone(), Who: h.who[o.Client], Now: now} }
	var may []came
	var got model.Answer
	switch o.Do {
	case "sleep":
		time.Sleep(o.Span)
		may = []came{{state: h.state, after: o.Span}}
	case "rename":
		got, may = h.rename(o)
	case "wait":
		may = h.waits(o, h.state, now, now+o.Span.Milliseconds())
		granted, err := h.handles[o.Client].TryAcquire(h.t.Context(), o.Permits, o.Span)
		got = model.Says(granted, err)
	default:
		possible := h.module.May(o.Op)
		if possible == nil {
			if h.state.Config != nil {
				h.intervene(o)
				h.state = h.read(0)
			}
			return nil
		}
		for _, some := range possible {
			c := call(h.state)
			if answer, given := some(c); given {
				may = append(may, came{answer, c.State, 0})
			}
		}
		got = model.Do(h.t.Context(), h.clients[o.Client], h.handles[o.Client], o.Op, now)
	}
	is := came{got, h.read(o.Client + 1), time.Since(start)}
	var wanted strings.Builder
	for _, c := range may {
		c.state = c.state.Clone()
		c.state.ExpireKeys(time.Now().UnixMilli())
		if is.String() == c.String() {
			err := h.sound(o, is)
			h.state = is.state
			return err
		}
		fmt.Fprintf(&wanted, "\nwanted: %v", c)
	}
	return fmt.Errorf("\nfound:  %v%s", is, wanted.String())
}

// read returns what Redis holds; rows that are new are the writer's.
func (h *turns) read(writer int) *model.State {
	s, _, err := model.Read(h.t.Context(), h.rdb, "name", "0", "1")
	require.NoError(h.t, err)
	s.Inherit(h.state, writer)
	return s
}

// waits returns what a call that waits may come to, from a moment at which it asks on. It
// asks again when it may be granted, and to keep the limiter alive.
func (h *turns) waits(o turn, s *model.State, now, deadline int64) (all []came) {
	o.Do = "tryAcquire"
	asked := o.Span - time.Duration(deadline-now)*time.Millisecond
	for _, may := range h.module.May(o.Op) {
		c := &model.Call{State: s.Clone(), Who: h.who[o.Client], Now: now}
		c.ExpireKeys(now)
		answer, given := may(c)
		switch {
		case !given:
			continue
		case !reflect.DeepEqual(answer, model.Say(false)):
			all = append(all, came{answer, c.State, asked})
			continue
		}
		again := h.module.Ready(c, o.Permits)
		if half := c.KeepAlive() / 2; half > 0 && now+half <= deadline {
			again = min(again, now+half)
		}
		if again > deadline {
			all = append(all, came{answer, c.State, o.Span})
		} else {
			all = append(all, h.waits(o, c.State, again, deadline)...)
		}
	}
	return all
}

// rename moves the limiter elsewhere, and back.
func (h *turns) rename(o turn) (model.Answer, []came) {
	o.To = "elsewhere"
	got := model.Do(h.t.Context(), h.clients[o.Client], h.handles[o.Client], o.Op, 0)
	if h.state.Config == nil {
		return got, []came{{Answer: model.Say(model.NotInitialized), state: h.state}}
	}
	require.NoError(h.t, h.clients[o.Client].RateLimiter("elsewhere").Rename(h.t.Context(), "name"))
	return got, []came{{Answer: model.Say("done"), state: h.state}}
}

// aboutPermits are the calls that look at permits.
var aboutPermits = map[string]bool{
	"tryAcquire": true, "take": true, "withDefault": true, "wait": true, "release": true, "availablePermits": true,
}

// sound checks what must hold whatever a model says: calls of ours neither mint permits nor
// lose any, and bring back what others have lost.
func (h *turns) sound(o turn, is came) error {
	if !aboutPermits[o.Do] || strings.HasPrefix(is.Text, "error") || is.state.Config == nil || h.state.Config == nil {
		return nil
	}
	c := &model.Call{State: is.state, Who: h.who[o.Client], Now: time.Now().UnixMilli()}
	if why := h.module.Sound(c); why != "" {
		return errors.New(why)
	}
	p, before := c.Pair(), (&model.Call{State: h.state, Who: c.Who}).Pair()
	was, excess := h.state.Excess(before), is.state.Excess(p)
	switch {
	case excess > max(0, was) || excess < min(0, was):
		return fmt.Errorf("value and permits in use differ from the rate by %d, and by %d before", excess, was)
	case len(before.Rows) == 0 && excess != 0:
		return fmt.Errorf("nothing was in use, and value and permits in use differ from the rate by %d", excess)
	case o.Do == "availablePermits" && excess < 0:
		return fmt.Errorf("%d permits belong to nobody", -excess)
	}
	return nil
}

// intervene does what Redisson, a lost key or a strange hand may do.
func (h *turns) intervene(o turn) {
	t, ctx := h.t, h.t.Context()
	set, peer, rate := redisson.KeysOf("name", h.who[o.Client].ID), h.java[o.Client], h.state.Rate()
	valueKey, permitsKey := set.Value, set.Permits
	if h.state.PerClient() {
		valueKey, permitsKey = set.ClientValue, set.ClientPermits
	}
	there := h.rdb.Exists(ctx, valueKey).Val() == 1
	var err error
	switch o.Do {
	case "loseValue":
		err = h.rdb.Del(ctx, valueKey).Err()
	case "loseSet":
		err = h.rdb.Del(ctx, permitsKey).Err()
	case "loseConfig":
		err = h.rdb.Del(ctx, set.Config).Err()
	case "raise":
		if there {
			err = h.rdb.IncrBy(ctx, valueKey, o.Permits).Err()
		}
	case "leak":
		if there {
			err = h.rdb.DecrBy(ctx, valueKey, o.Permits).Err()
		}
	case "redate":
		members := h.rdb.ZRange(ctx, permitsKey, 0, -1).Val()
		if len(members) > 0 {
			score := float64(limitertest.ServerNow(t, h.rdb) + time.Minute.Milliseconds())
			err = h.rdb.ZAdd(ctx, permitsKey, redis.Z{Score: score, Member: members[int(o.Permits)%len(members)]}).Err()
		}
	case "persist":
		err = h.rdb.Persist(ctx, valueKey).Err()
	case "remake":
		err = h.rdb.HSet(ctx, set.Config, "rate", o.Rate.Rate).Err()
	case "javaRelease":
		peer.Release(t, o.Permits)
	case "javaAvailable":
		peer.AvailablePermits(t)
	default:
		peer.Fast = map[string]time.Duration{"javaFast": o.Span, "javaSlow": -o.Span}[o.Do]
		permits := min(o.Permits, rate)
		member := limitertest.NewMember(t, codec.LayoutD2, uint32(permits))
		for range map[string]int{"javaTwice": 1}[o.Do] + 1 {
			_, _, _ = peer.Resend(t, permits, member)
		}
	}
	require.NoError(t, err)
}
