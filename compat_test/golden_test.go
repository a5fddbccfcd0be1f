package compat_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/model"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// Golden traces: histories of each release of Redisson beside this module, recorded once, so
// that a machine without Java too tests against what each release really did. Each step stands
// for itself: the state before it is put into Redis, and the result of the step is compared.

var recordFlag = flag.Bool("record", false, "TestGolden records its traces again, of all releases or those of -releases")

// goldenReleases returns the releases with traces to play.
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
	text, err := os.ReadFile(traceFile(version))
	require.NoError(t, err)
	decoder := json.NewDecoder(bytes.NewReader(text))
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
			t.Run("models", func(t *testing.T) {
				t.Parallel()
				followTrace(t, version, steps)
			})
			t.Run("standing clock", func(t *testing.T) {
				t.Parallel()
				redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
					playTrace(t, version, steps, rdb, true)
				})
			})
			t.Run("redis", func(t *testing.T) {
				t.Parallel()
				playTrace(t, version, steps, redistest.Redis(t), false)
			})
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

// step is a line of a trace: an operation of a service on a limiter, or
// something else that happens to it. It must not depend on when and by which program it was recorded:
// times are milliseconds from now, clients have names, and the ids of members are numbers
// in the order in which they were written.
type step struct {
	On  string `json:"on"`            // the limiter
	Who string `json:"who,omitempty"` // the service; empty for what just happens

	model.Op // an operation, or one of the happenings

	// More about the step.
	MS     int64  `json:"ms,omitempty"`
	Client string `json:"client,omitempty"` // whose pair; empty for that which all share

	outcome
}

// outcome is the result of a step.
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

// add goes on to after a step.
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

// rows returns those of all pairs.
func rows(s *model.State) (all []*model.Row) {
	for _, p := range s.Pairs {
		for i := range p.Rows {
			all = append(all, &p.Rows[i])
		}
	}
	return all
}
