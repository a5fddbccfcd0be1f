package compat_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/model"
)

// kinds are the operations of histories, each as often as its weight says.
var kinds = []struct {
	do     string
	weight int
	side   string // that has it; both if empty
}{
	{"tryAcquire", 40, ""},
	{"tryAcquireTimeout", 5, "Java"},
	{"take", 3, "Go"},
	{"withDefault", 3, "Go"}, // an acquire that brings a rate
	{"release", 10, ""},
	{"settle", 12, "Go"},
	{"availablePermits", 12, ""},
	{"trySetRate", 4, ""},
	{"setRate", 3, ""},
	{"setRateArgs", 5, ""}, // in Go with KeepState or, as often, without
	{"updateRate", 5, ""},
	{"getConfig", 3, ""},
	{"expire", 2, ""},
	{"expireAt", 2, ""},
	{"clearExpire", 2, ""},
	{"ttl", 3, ""},
	{"exists", 2, ""},
	{"delete", 1, ""},
	{"rename", 1, "Go"},
	{"unlink", 1, "Java"},
	{"acquireAll", 8, "Go"},
}

// more are those of Go that traces, recorded before, do without.
var more = []string{"peek", "takeUpTo", "takeUpTo", "reset", "reserve", "reserve"}

// operations returns the service's, each as often as it should be drawn.
func (a *actor) operations() (all []string) {
	for _, k := range kinds {
		lacks := a.release != nil && a.release.Lacks(k.do) || k.do == "settle" && a.Layout == 0
		if (k.side == "" || k.side == a.side()) && !lacks {
			all = append(all, slices.Repeat([]string{k.do}, k.weight)...)
		}
	}
	return all
}

// drawer draws what happens.
type drawer struct {
	*rand.Rand

	tick  int64 // ms, what all times are multiples of
	still bool  // the clock stands while a step is played
	heavy bool  // one operation in three is a release
	more  bool  // there are more operations
}

func pick[E any](d drawer, all []E) E { return all[d.IntN(len(all))] }

// operation draws what a service does next to a limiter.
func (d drawer) operation(who *actor, s *model.State) string {
	all := who.operations()
	if s.Config == nil && d.IntN(2) == 0 {
		return "trySetRate"
	}
	if s.Config == nil && who.release == nil && d.IntN(2) == 0 {
		return "withDefault"
	}
	if d.heavy && slices.Contains(all, "release") && d.IntN(3) == 0 {
		return "release"
	}
	if d.more && who.release == nil && d.IntN(8) == 0 {
		return pick(d, more)
	}
	return pick(d, all)
}

// op draws what an operation is called with.
func (d drawer) op(who *actor, s *model.State, do string) model.Op {
	op := model.Op{Do: do}
	switch do {
	case "tryAcquire", "take", "takeUpTo":
		op.Permits, op.Held = d.permits(s), who.release == nil && d.IntN(2) == 0
	case "tryAcquireTimeout", "release", "peek":
		op.Permits = d.permits(s)
	case "reserve":
		op.Permits, op.Hold, op.Held = d.permits(s), pick(d, []int64{1, 3, 5, 20})*d.tick, d.IntN(2) == 0
	case "settle":
		op.Row = d.reserved(who, s)
		if early := (1 + d.Int64N(4)) * d.tick; d.more && op.Row.At+early <= 0 {
			op.Early = early
		}
		op.Permits = min(rratelimiter.MaxPermits, op.Row.Permits+d.Int64N(3))
		for op.Used = op.Permits; op.Used == op.Permits; {
			op.Used = min(rratelimiter.MaxPermits, max(0, op.Permits-6)+d.Int64N(12))
		}
	case "withDefault":
		op.Permits, op.Rate = d.permits(s), d.rate()
	case "trySetRate", "setRate":
		op.Rate = d.rate()
	case "setRateArgs", "updateRate":
		op.Rate, op.Keep = d.rate(), d.IntN(4) > 0
	case "expire":
		op.TTL = pick(d, []int64{5, 10, 40}) * d.tick
	case "expireAt":
		op.At = pick(d, []int64{5, 10, 40, 5, 10, -2}) * d.tick // once in a while in the past
	case "rename":
		op.To = []string{pick(d, limiterNames)}
	case "acquireAll":
		op.Permits, op.To, op.More = d.permits(s), d.limiters(), max(0, d.Int64N(4)-1)
		if d.IntN(2) == 0 {
			op.Rate = d.rate()
		}
	}
	return op
}

// reserved draws what the service may have reserved: a row of its own in use, or one that has gone.
func (d drawer) reserved(who *actor, s *model.State) *model.Row {
	p := s.Pairs[""]
	if s.PerClient() {
		p = s.Pairs[who.ID]
	}
	own := slices.DeleteFunc(slices.Clone(p.Rows), func(r model.Row) bool {
		// In layout B a row may be another's. One of no permits, as Redisson's tryAcquire(0) leaves, is no reservation.
		return r.By != who.Number || r.Permits == 0 || r.Layout != who.Layout || r.Layout == codec.LayoutC && !r.Member.Twice()
	})
	if len(own) > 0 && d.IntN(6) > 0 {
		return &own[d.IntN(len(own))]
	}
	permits := 1 + d.Int64N(5)
	return &model.Row{
		Grant:  model.Grant{At: -d.Int64N(3) * d.tick, By: who.Number, Permits: permits},
		Member: who.newMember(1<<24-1, permits), Layout: who.Layout,
	}
}

// limiters draws limiters in any order: some, often all, seldom none.
func (d drawer) limiters() (names []string) {
	for _, i := range d.Perm(len(limiterNames))[:min(d.IntN(7), len(limiterNames))] {
		names = append(names, limiterNames[i])
	}
	return names
}

func (d drawer) rate() *model.Rate {
	r := &model.Rate{Type: "0", Rate: 1 + d.Int64N(12), Interval: pick(d, []int64{4, 6, 12}) * d.tick}
	switch d.IntN(20) {
	case 0:
		r.Rate = 5000
	case 1, 2, 3:
		r.Rate += 20
	}
	if d.IntN(3) == 0 {
		r.Type = "1"
	}
	if d.IntN(3) == 0 {
		r.KeepAlive = pick(d, []int64{r.Interval, 2 * r.Interval, 60 * d.tick})
	}
	return r
}

func (d drawer) permits(s *model.State) int64 {
	rate := max(1, s.Rate())
	switch d.IntN(40) {
	case 0:
		return 0
	case 1:
		return -1 - d.Int64N(3)
	case 2, 3:
		return rate + 1
	case 4, 5, 6, 7:
		return rate
	}
	return 1 + d.Int64N(min(rate, 5))
}

// javaDo makes a Redisson do an operation, now being base, and returns its answer.
func javaDo(ctx context.Context, java *javaClient, name string, op model.Op, base int64) model.Answer {
	switch op.Do {
	case "tryAcquire", "release":
		return javaSays(ask[any](ctx, java, op.Do, name, op.Permits))
	case "tryAcquireTimeout":
		return javaSays(ask[bool](ctx, java, "tryAcquire", name, op.Permits, 0))
	case "availablePermits":
		return javaSays(ask[int64](ctx, java, op.Do, name))
	case "trySetRate", "setRate":
		return javaSays(ask[any](ctx, java, op.Do, name, rateArgs(op.Rate.Public())...))
	case "setRateArgs", "updateRate":
		return javaSays(ask[any](ctx, java, op.Do, name, rateArgs(op.Rate.Public(), op.Keep)...))
	case "getConfig":
		cfg, err := ask[rratelimiter.Config](ctx, java, op.Do, name)
		return javaSays(fmt.Sprint(cfg.Type, cfg.Rate, cfg.Interval.Milliseconds()), err)
	case "expire":
		return javaSays(ask[bool](ctx, java, op.Do, name, op.TTL))
	case "expireAt":
		return javaSays(ask[bool](ctx, java, op.Do, name, base+op.At))
	case "ttl":
		ms, err := ask[int64](ctx, java, op.Do, name)
		if err != nil {
			return javaSays(nil, err)
		}
		return model.SayTTL(ms)
	case "exists":
		return javaSays(ask[bool](ctx, java, "isExists", name))
	case "clearExpire", "delete", "unlink":
		return javaSays(ask[bool](ctx, java, op.Do, name))
	}
	panic("no operation: " + op.Do)
}

func javaSays(value any, err error) model.Answer {
	if err != nil {
		return model.Say(javaProblem(err))
	}
	return model.Say(value)
}

func javaProblem(err error) string {
	if thrown, ok := errors.AsType[*javadriver.ThrownError](err); ok {
		// Behind that is the command, some releases with the script's text.
		message, _, _ := strings.Cut(thrown.Message, ". channel: ")
		if thrown.Class == "IllegalArgumentException" {
			return model.Illegal
		}
		for _, known := range [][2]string{
			{"RateLimiter is not initialized", model.NotInitialized},
			{"Requested permits amount cannot exceed defined rate", model.ExceedsRate},
			{"Requested permits amount could not exceed defined rate", model.ExceedsRate},
			{"arithmetic on a nil value", model.NilArithmetic},
			{"to 'unpack'", model.NothingToUnpack},
			{"Unexpected exception while processing command", model.NotDecoded},
		} {
			if strings.Contains(message, known[0]) {
				return known[1]
			}
		}
	}
	return "error: " + err.Error()
}

// TestRedisson_CodecDoesNotMatter: a Redisson's codec is for the values of applications, and
// useScriptCache decides how its scripts are sent. A limiter is the same with each.
func TestRedisson_CodecDoesNotMatter(t *testing.T) {
	t.Parallel()
	requireRelease(t, "3.35.0")
	peer := sharedDriver(t)
	limitertest.Each(t, limitertest.Rows(
		"codec.Kryo5Codec", "codec.JsonJacksonCodec", "codec.SerializationCodec", "client.codec.StringCodec",
	), func(t *testing.T, codec string) {
		limitertest.Each(t, limitertest.Rows(true, false), func(t *testing.T, cached bool) {
			playTurns(t, fleet{[]*javaDriver{peer, peer}, *redissonVersion, []any{"org.redisson." + codec, cached}})
		})
	})
}
