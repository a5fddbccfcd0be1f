package compat_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/model"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// Golden traces: histories of each release of Redisson beside this module, recorded once, so that a machine without Java too tests against
// what each release really did. Each step stands for itself: the state before it is put into Redis, and the result of the step is compared.

var recordFlag = flag.Bool("record", false, "TestGolden records its traces again, of all releases or those of -releases")

func goldenReleases(t *testing.T) []string {
	t.Helper()
	if *releasesFlag == "" && *redissonVersion == newestRedisson && !testing.Short() {
		return matrix
	}
	named := releases(t)
	return slices.DeleteFunc(slices.Clone(matrix), func(version string) bool { return !slices.Contains(named, version) })
}

func traceFile(version string) string { return filepath.Join("testdata", "golden", version+".jsonl") }

func readTrace(t *testing.T, version string) []step {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(limitertest.Must(os.ReadFile(traceFile(version)))(t)))
	decoder.DisallowUnknownFields()
	var steps []step
	for decoder.More() {
		var s step
		require.NoError(t, decoder.Decode(&s), "%s:%d", traceFile(version), len(steps)+1)
		steps = append(steps, s)
	}
	return steps
}

func writeTrace(t *testing.T, version string, steps []step) {
	t.Helper()
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	for _, s := range steps {
		require.NoError(t, encoder.Encode(s))
	}
	require.NoError(t, os.MkdirAll(filepath.Dir(traceFile(version)), 0o755))
	require.NoError(t, os.WriteFile(traceFile(version), text.Bytes(), 0o644))
}

func TestGolden(t *testing.T) {
	t.Parallel()
	for _, version := range goldenReleases(t) {
		t.Run(version, func(t *testing.T) {
			if *recordFlag {
				// One JVM at a time, and no file but of a whole history.
				steps := recordTrace(t, version)
				if !t.Failed() {
					writeTrace(t, version, steps)
				}
			} else {
				t.Parallel()
			}
			steps := readTrace(t, version)
			limitertest.Each(t, map[string]func(t *testing.T){
				"models": func(t *testing.T) { followTrace(t, version, steps) },
				"standing clock": func(t *testing.T) {
					redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) { playTrace(t, version, steps, rdb, true) })
				},
				"redis": func(t *testing.T) { playTrace(t, version, steps, redistest.Redis(t), false) },
			}, func(t *testing.T, play func(t *testing.T)) { play(t) })
		})
	}
}

// followTrace checks that the models still match the record.
func followTrace(t *testing.T, version string, steps []step) {
	t.Helper()
	h := newHistory(traceCast(version))
	for i, s := range steps {
		if err := s.check(h); err != nil {
			t.Errorf("%s:%d: %v", traceFile(version), i+1, err)
		}
		h.add(s)
	}
}

// playTrace plays what this module did, and checks that it does so still.
func playTrace(t *testing.T, version string, steps []step, rdb redistest.Client, still bool) {
	t.Helper()
	h := newHistory(traceCast(version))
	st := newStage(t, h.cast, version, rdb)
	st.still = still
	differ := 0
	for i, s := range steps {
		if who := st.named(s.Who); who != nil && who.module != nil {
			got, err := st.play(t, s, h)
			require.NoError(t, err, "%s:%d", traceFile(version), i+1)
			if got.text() != s.text() {
				t.Errorf("%s:%d: this module does not do what it did; if that is meant, record again\n%s",
					traceFile(version), i+1, s.differs(h, got.text(), "now"))
				if differ++; differ == maxMismatches {
					break
				}
			}
		}
		h.add(s)
	}
	st.requireNoOtherKeys(t)
}

const maxMismatches = 5

// step is a line of a trace: an operation of a service on a limiter, or something else that happens to it. It must not depend
// on when and by which program it was recorded: times are milliseconds from now, clients have names, and the ids of members are
// numbers in the order in which they were written.
type step struct {
	On  string `json:"on"`            // the limiter
	Who string `json:"who,omitempty"` // the service; empty for what just happens

	model.Op // an operation, or one of the happenings

	// More about the step.
	MS     int64  `json:"ms,omitempty"`
	Client string `json:"client,omitempty"` // whose pair; empty for that which all share

	outcome
}

type outcome struct {
	Answer string         `json:"answer,omitempty"`
	Times  []int64        `json:"times,omitempty"` // that are part of the answer
	State  *model.State   `json:"state"`
	Target []*model.State `json:"target,omitempty"` // of the other limiters that have to do with the step

	miscounted bool // by the model: rows were taken for permits
}

// text returns everything to compare.
func (o outcome) text() string {
	text, err := json.Marshal(o)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// involved returns the limiters that the step may change.
func (s step) involved() []string {
	return slices.Compact(append([]string{s.On}, s.To...))
}

// models returns what the step may come to by the model of who does it.
func (s step) models(h *history) (outcomes []outcome) {
	who, call := h.named(s.Who), &model.Call{State: h.states[s.On]}
	for _, name := range s.involved()[1:] {
		call.To = append(call.To, h.states[name])
	}
	for _, o := range who.outcomes(call, s.Op) {
		out := outcome{Answer: o.Text, Times: o.Times, State: o.State, Target: o.To, miscounted: o.Miscounted}
		for _, state := range append([]*model.State{o.State}, o.To...) {
			for _, r := range rows(state) {
				if r.Member == "" {
					r.Member = who.newMember(h.last+1, r.Permits)
				}
			}
			state.ExpireKeys(0)
			state.Sort()
		}
		outcomes = append(outcomes, out)
	}
	return outcomes
}

// sound returns the fault of the state that a call of ours left, "" if there is none.
func (s step) sound(h *history) string {
	who := h.named(s.Who)
	looks := aboutPermits[s.Do] && (s.Do != "release" || s.Permits > 0)
	if who.module == nil || !looks || s.State.Config == nil || strings.HasPrefix(s.Answer, "error") {
		return ""
	}
	before := &model.Call{State: h.states[s.On], Who: who.Client}
	return who.module.Sound(s.Op, before, &model.Call{State: s.State, Who: who.Client})
}

// check tells how the step differs from all that the model of who does it allows.
func (s step) check(h *history) error {
	if s.Who == "" {
		state, err := s.happen(h)
		if err == nil && (outcome{State: state}).text() != s.text() {
			err = fmt.Errorf("after %q: %s\nwanted: %s", s.Do, s.text(), outcome{State: state}.text())
		}
		return err
	}
	var wanted []string
	for _, out := range s.models(h) {
		wanted = append(wanted, out.text())
	}
	slices.Sort(wanted)
	if wanted = slices.Compact(wanted); !slices.Contains(wanted, s.text()) {
		return fmt.Errorf("the model of what %s does differs\n%s", s.Who, s.differs(h, strings.Join(wanted, "\nor     "), "by the model"))
	}
	if why := s.sound(h); why != "" {
		return fmt.Errorf("%s\n%s", why, s.differs(h, s.text(), "that is"))
	}
	return nil
}

// differs shows a step beside another outcome of it.
func (s step) differs(h *history, got, whose string) string {
	call := s
	call.outcome = outcome{}
	text, err := json.Marshal(call)
	if err != nil {
		return err.Error()
	}
	var before strings.Builder
	for _, name := range s.involved() {
		fmt.Fprintf(&before, "\nbefore, %s: %s", name, outcome{State: h.states[name]}.text())
	}
	return fmt.Sprintf("step: %s%s\ncame to: %s\n%s: %s", text, before.String(), s.text(), whose, got)
}

// happen returns the state after something that is no operation.
func (s step) happen(h *history) (*model.State, error) {
	state := h.states[s.On].Clone()
	p := state.Pairs[s.Client]
	if p == nil {
		return nil, fmt.Errorf("client %q is unknown", s.Client)
	}
	switch s.Do {
	case "pass":
		state.Pass(s.MS, 0)
	case "lose the value":
		p.DelValue()
	case "lose the permits":
		p.SetRows(nil)
	case "lose the configuration":
		state.DelConfig()
	case "lose the keep-alive time":
		delete(state.Config, "keepAliveTime")
	case "hasten the newest row":
		p.Rows[len(p.Rows)-1].At = s.MS
		state.Sort()
	case "raise the value":
		p.Value += s.MS
	case "take the value's end away":
		p.ValueEnd = 0
	case "set another rate":
		state.Config["rate"] = strconv.FormatInt(s.MS, 10)
	default:
		return nil, fmt.Errorf("%q is unknown", s.Do)
	}
	return state, nil
}

// history is where steps have come to.
type history struct {
	cast

	states map[string]*model.State // by limiter
	last   uint64                  // number of a member
}

func newHistory(c cast) *history {
	h := &history{cast: c, states: make(map[string]*model.State)}
	for _, name := range limiterNames {
		h.states[name] = model.NewState(c.clients()...)
	}
	return h
}

func (h *history) add(s step) {
	h.states[s.On] = s.State
	all := rows(s.State)
	for i, state := range s.Target {
		h.states[s.To[i]] = state
		all = append(all, rows(state)...)
	}
	for _, r := range all {
		h.last = max(h.last, numberOf(*r))
	}
}

func rows(s *model.State) (all []*model.Row) {
	for _, p := range s.Pairs {
		for i := range p.Rows {
			all = append(all, &p.Rows[i])
		}
	}
	return all
}

// kinds are the operations of histories, each as often as its weight says.
var kinds = []struct {
	do     string
	weight int
	side   string // that has it; both if empty
}{
	{"tryAcquire", 40, ""}, {"tryAcquireTimeout", 5, "Java"}, {"take", 3, "Go"},
	{"withDefault", 3, "Go"}, // an acquire that brings a rate
	{"release", 10, ""}, {"settle", 12, "Go"}, {"availablePermits", 12, ""}, {"trySetRate", 4, ""}, {"setRate", 3, ""},
	{"setRateArgs", 5, ""}, // in Go with KeepState or, as often, without
	{"updateRate", 5, ""}, {"getConfig", 3, ""}, {"expire", 2, ""}, {"expireAt", 2, ""}, {"clearExpire", 2, ""}, {"ttl", 3, ""},
	{"exists", 2, ""}, {"delete", 1, ""}, {"rename", 1, "Go"}, {"unlink", 1, "Java"}, {"acquireAll", 8, "Go"},
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
	do, args := op.Do, []any(nil)
	switch op.Do {
	case "tryAcquire", "release":
		args = []any{op.Permits}
	case "tryAcquireTimeout":
		do, args = "tryAcquire", []any{op.Permits, 0}
	case "trySetRate", "setRate":
		args = rateArgs(op.Rate.Public())
	case "setRateArgs", "updateRate":
		args = rateArgs(op.Rate.Public(), op.Keep)
	case "expire":
		args = []any{op.TTL}
	case "expireAt":
		args = []any{base + op.At}
	case "exists":
		do = "isExists"
	case "availablePermits":
		return javaSays(ask[int64](ctx, java, op.Do, name))
	case "getConfig":
		cfg, err := ask[rratelimiter.Config](ctx, java, op.Do, name)
		return javaSays(fmt.Sprint(cfg.Type, cfg.Rate, cfg.Interval.Milliseconds()), err)
	case "ttl":
		ms, err := ask[int64](ctx, java, op.Do, name)
		if err != nil {
			return javaSays(nil, err)
		}
		return model.SayTTL(ms)
	}
	return javaSays(ask[any](ctx, java, do, name, args...))
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
