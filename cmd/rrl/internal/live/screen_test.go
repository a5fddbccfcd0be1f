package live

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/look"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// terminal is a Screen of a test's own.
type terminal struct {
	mu            sync.Mutex
	drawn         string // since it was cleared last
	columns, rows int
	keys          chan Key
}

func newTerminal() *terminal { return &terminal{columns: 80, rows: 12, keys: make(chan Key)} }

func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drawn = string(p)
	return len(p), nil
}

func (t *terminal) size() (int, int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.columns, t.rows
}

func (t *terminal) resize(columns, rows int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.columns, t.rows = columns, rows
}

// minTick is as fast as samples come in tests.
const minTick = 20 * time.Millisecond

// top shows limiters on the terminal, watch one.
func (t *terminal) top(ctx context.Context, rdb redis.UniversalClient, pattern string) (ended chan error) {
	top := &Top{Reader: look.NewReader(rdb, pattern), View: look.View{Sort: "use"}, Interval: minTick, Reads: 5000}
	return t.run(func(s *Screen) error { return top.Show(ctx, s, plain) })
}

func (t *terminal) watch(ctx context.Context, rdb redis.UniversalClient, name string) (ended chan error) {
	w := &Watch{Watcher: look.Watcher{Client: rdb, Name: name}, Interval: minTick}
	return t.run(func(s *Screen) error { return w.Show(ctx, s, plain) })
}

func (t *terminal) run(show func(*Screen) error) (ended chan error) {
	ended = make(chan error, 1)
	go func() { ended <- show(&Screen{Out: t, Size: t.size, Keys: t.keys}) }()
	return ended
}

// text returns what is on the screen.
func (t *terminal) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.NewReplacer(home, "", toEnd, "", below, "").Replace(t.drawn)
}

func (t *terminal) lines() []string { return strings.Split(t.text(), "\r\n") }

// shows waits until the screen has a text, or has it no longer.
func (t *terminal) shows(tb testing.TB, text string, want bool) {
	tb.Helper()
	require.Eventually(tb, func() bool { return strings.Contains(t.text(), text) == want }, time.Minute, 5*time.Millisecond, "%q", text)
}

// press presses keys.
func (t *terminal) press(keys ...Key) {
	for _, k := range keys {
		t.keys <- k
	}
}

func twoLimiters(t *testing.T, rdb redis.UniversalClient) (prefix string) {
	t.Helper()
	prefix = redistest.Name(t)
	limitertest.TakeOnce(t, rdb, prefix+":a", rratelimiter.PerHour(10), "", 3)
	limitertest.TakeOnce(t, rdb, prefix+":b", rratelimiter.PerHour(10), "", 10)
	return prefix
}

func TestTopOnATerminal(t *testing.T) {
	t.Parallel()
	rdb, m := redistest.Mini(t)
	prefix := twoLimiters(t, rdb)
	term := newTerminal()
	ended := term.top(t.Context(), rdb, prefix+"*")
	term.shows(t, "2 limiters, 2 in use, 1 used up", true)
	term.shows(t, ":a", true)
	assert.Regexp(t, `(?s):b.*:a`, term.text())

	term.resize(30, 5)
	require.Eventually(t, func() bool { return len(term.lines()) == 5 }, time.Minute, 5*time.Millisecond)
	requireFits(t, term.lines(), 30)
	term.resize(100, 12)
	term.shows(t, "\r\nNAME      ", true)

	for _, step := range []struct {
		keys []Key
		text string
		want bool
	}{
		{[]Key{'s'}, "sorted by in-use", true},
		{[]Key{'r'}, "reversed", true},
		{[]Key{'/', ':', 'B', 'x', keyDelete}, "filter: :B_", true},
		{[]Key{keyEnter}, ":a ", false},
		{[]Key{keyEscape}, ":a ", true},
		{[]Key{'p'}, "paused", true},
		{[]Key{'p'}, "q quit", true},
	} {
		term.press(step.keys...)
		term.shows(t, step.text, step.want)
	}

	m.SetError("LOADING down")
	term.shows(t, "the server does not answer: LOADING down", true)
	m.SetError("")
	term.shows(t, "does not answer", false)
	term.press('q')
	require.NoError(t, <-ended)
}

func TestCtrlCEndsLiveCommands(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	prefix := twoLimiters(t, rdb)
	show := func(ctx context.Context, term *terminal) []chan error {
		return []chan error{term.top(ctx, rdb, ""), term.watch(ctx, rdb, prefix+":a")}
	}
	ctx, cancel := context.WithCancel(t.Context())
	term := newTerminal()
	all := slices.Concat(show(t.Context(), term), show(ctx, newTerminal()))
	term.press(keyStop, keyStop) // each takes one
	cancel()
	for _, ended := range all {
		require.NoError(t, <-ended)
	}
}

func TestPipedSamplesHaveNoEscapes(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	prefix := twoLimiters(t, rdb)
	var text bytes.Buffer
	top := &Top{Reader: look.NewReader(rdb, prefix+"*"), View: look.View{Sort: "use", Rows: 20}, Interval: minTick, Reads: 5000, Count: 2}
	require.NoError(t, top.Print(t.Context(), &output.Printer{Writer: &text}, 200))
	assert.NotContains(t, text.String(), "\x1b")
	assert.Equal(t, 2, strings.Count(text.String(), "\nNAME "))
	assert.Equal(t, 2, strings.Count(text.String(), "\n"+prefix+":b"))

	text.Reset()
	require.NoError(t, top.Print(t.Context(), &output.Printer{Writer: &text, JSON: true}, 120))
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	require.Len(t, lines, 2)
	for _, line := range lines {
		var s look.Snapshot
		require.NoError(t, json.Unmarshal([]byte(line), &s))
		assert.Len(t, s.Limiters, 2)
		assert.NotNil(t, s.Limiters[0].Callers)
	}
}

func TestWatchSeesGrants(t *testing.T) {
	t.Parallel()
	redistest.Everywhere(t, func(t *testing.T, rdb redis.UniversalClient) {
		name := redistest.Name(t)
		cfg := rratelimiter.PerHour(10)
		limitertest.TakeOnce(t, rdb, name, cfg, "", 3)
		w := &Watch{Watcher: look.Watcher{Client: rdb, Name: name}}
		sample := func() look.Point {
			p, err := w.Sample(t.Context())
			require.NoError(t, err)
			return p
		}
		p := sample()
		assert.EqualValues(t, 7, *p.Free)
		assert.Zero(t, p.Granted, "of before the first sample")
		for _, permits := range []int64{2, 1} {
			time.Sleep(5 * time.Millisecond) // grants of one millisecond count once
			limitertest.TakeOnce(t, rdb, name, cfg, "", permits)
		}
		p = sample()
		assert.Equal(t, []int64{4, 6, 3}, []int64{*p.Free, p.InUse, p.Granted})
		assert.Len(t, p.Callers, 3)
		assert.Zero(t, sample().Granted)

		own := "{" + name + "}own*?"
		limitertest.TakeOnce(t, rdb, own, limitertest.PerClient(10, time.Hour), "ann", 6)
		w = &Watch{Watcher: look.Watcher{Client: rdb, Name: own}}
		p = sample()
		assert.EqualValues(t, 4, *p.Free)
		assert.Equal(t, []look.Caller{{Who: "client idann", Permits: 6, Share: 1}}, p.Callers)

		require.NoError(t, rdb.Del(t.Context(), own).Err())
		assert.True(t, sample().Gone)
	})
}

func TestWatchOnATerminal(t *testing.T) {
	t.Parallel()
	rdb, m := redistest.Mini(t)
	prefix := twoLimiters(t, rdb)
	term := newTerminal()
	term.resize(60, 20)
	ended := term.watch(t.Context(), rdb, prefix+":a")
	term.shows(t, "free 7, in use 3", true)
	limitertest.TakeOnce(t, rdb, prefix+":a", rratelimiter.PerHour(10), "", 2)
	term.shows(t, "free 5, in use 5", true)
	term.resize(33, 9)
	require.Eventually(t, func() bool { return len(term.lines()) <= 9 }, time.Minute, 5*time.Millisecond)
	requireFits(t, term.lines(), 33)
	m.SetError("LOADING down")
	term.shows(t, "does not answer", true)
	m.SetError("")
	m.Del(prefix + ":a")
	term.shows(t, "no such limiter now", true)
	close(term.keys) // the end of what is typed is not the end
	term.shows(t, "no such limiter now", true)
	select {
	case err := <-ended:
		require.Fail(t, "it ended", "%v", err)
	default:
	}
}

// What is shown of a server that hangs is old long before go-redis gives up.
func TestAHungServerIsSoonSaidToBeSilent(t *testing.T) {
	t.Parallel()
	rdb, m := redistest.Mini(t)
	prefix := twoLimiters(t, rdb)
	proxy := redistest.MiniProxy(t, m)
	slow := proxy.Client(t, nil)
	term, other := newTerminal(), newTerminal()
	ended := map[*terminal]chan error{term: term.top(t.Context(), slow, prefix+"*"), other: other.watch(t.Context(), slow, prefix+":a")}
	term.shows(t, "2 limiters", true)
	other.shows(t, "free 7", true)
	release := make(chan struct{})
	proxy.OnCommand(func(redistest.Command) redistest.Action { return redistest.Pass.When(release) })
	for screen := range ended {
		screen.shows(t, "old, the server does not answer: nothing for ", true)
	}
	close(release)
	for screen, ended := range ended {
		screen.shows(t, "nothing for", false)
		screen.press('q')
		require.NoError(t, <-ended)
	}
}

func TestWatchOfNothing(t *testing.T) {
	t.Parallel()
	rdb, _ := redistest.Mini(t)
	w := &Watch{Watcher: look.Watcher{Client: rdb, Name: "none"}, Interval: minTick}
	require.ErrorIs(t, w.Print(t.Context(), &output.Printer{Writer: &bytes.Buffer{}}), ErrGone)
	require.ErrorIs(t, <-newTerminal().watch(t.Context(), rdb, "none"), ErrGone)
}

func TestKeys(t *testing.T) {
	t.Parallel()
	assert.Equal(t, []Key{'s', 'é', keyEnter, keyDelete}, keysOf([]byte("sé\n\b")))
	assert.Equal(t, []Key{keyEscape}, keysOf([]byte{0x1b}))
	assert.Empty(t, keysOf([]byte("\x1b[A")), "an arrow")
}

func TestNoScreenWhereThereIsNoTerminal(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _, _ = r.Close(), w.Close() }()
	for in, out := range map[*os.File]io.Writer{os.Stdin: &bytes.Buffer{}, r: w} {
		s, err := OpenScreen(out, in)
		require.NoError(t, err)
		assert.Nil(t, s)
	}
}
