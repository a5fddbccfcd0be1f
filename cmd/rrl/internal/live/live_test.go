package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/gdamore/tcell/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/test/story"
)

// terminal is one in memory, in a bubble of synctest.
type terminal struct {
	tcell.SimulationScreen

	events chan tcell.Event
}

func newTerminal(t *testing.T) terminal {
	t.Helper()
	term := terminal{tcell.NewSimulationScreen(""), make(chan tcell.Event)}
	require.NoError(t, term.Init())
	term.SetSize(80, 12)
	return term
}

func (t terminal) resize(columns, rows int) {
	t.SetSize(columns, rows)
	t.events <- tcell.NewEventResize(columns, rows)
}

const down, end, pageUp, escape = "\x1b[B", "\x1b[F", "\x1b[5~", "\x1b"

func (t terminal) press(typed string) { tcell.NewInputProcessor(t.events).ScanUTF8([]byte(typed)) }

const minTick = 20 * time.Millisecond

// top shows limiters on the terminal, watch one.
func (t terminal) top(ctx context.Context, rdb redistest.Client, pattern string) (ended chan error) {
	top := &Top{Reader: look.NewReader(rdb, pattern), View: look.View{Sort: "use"}, Interval: minTick, Reads: 5000}
	top.Open = func(name string) *Watch {
		return &Watch{Watcher: look.Watcher{Client: rdb, Name: name}, Interval: minTick}
	}
	return t.run(func(s *Screen) error { return top.Show(ctx, s, plain) })
}

func (t terminal) watch(ctx context.Context, rdb redistest.Client, name string) (ended chan error) {
	w := &Watch{Watcher: look.Watcher{Client: rdb, Name: name}, Interval: minTick}
	return t.run(func(s *Screen) error { return w.Show(ctx, s, plain) })
}

func (t terminal) run(show func(*Screen) error) (ended chan error) {
	ended = make(chan error, 1)
	go func() { ended <- show(&Screen{t, t.events}) }()
	return ended
}

// text returns what is shown once all has been drawn.
func (t terminal) text() string {
	synctest.Wait()
	var shown strings.Builder
	columns, rows := t.Size()
	for y := range rows {
		shown.WriteByte('\n')
		for x := 0; x < columns; {
			text, _, width := t.Get(x, y)
			shown.WriteString(text)
			x += width
		}
	}
	return shown.String()
}

// shows waits until the screen has a text, or has it no longer.
func (t terminal) shows(tb testing.TB, text string, want bool) {
	tb.Helper()
	require.Eventually(tb, func() bool { return strings.Contains(t.text(), text) == want }, time.Minute, 5*time.Millisecond, "%q", text)
}

func twoLimiters(t *testing.T, rdb redistest.Client) (prefix string) {
	t.Helper()
	prefix = redistest.Name(t)
	limitertest.TakeOnce(t, rdb, prefix+":a", rratelimiter.PerHour(10), "", 3)
	limitertest.TakeOnce(t, rdb, prefix+":b", rratelimiter.PerHour(10), "", 10)
	return prefix
}

func TestInVirtualTime(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T){
		"top": testTop, "watch": testWatch, "Ctrl-C": testCtrlC, "a server that hangs": testHungServer,
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
	}
}

func testTop(t *testing.T) {
	rdb, m := redistest.Mini(t)
	prefix := twoLimiters(t, rdb)
	term := newTerminal(t)
	ended := term.top(t.Context(), rdb, prefix+"*")
	term.shows(t, "1 used up, 2 in use of 2 limiters", true)
	assert.Regexp(t, `(?s):b.*:a`, term.text())
	term.resize(30, 5)
	assert.Contains(t, term.text(), "\nq quit  s sort  r reverse  / …")
	term.resize(100, 12)
	term.shows(t, "\n  NAME      ", true)
	for _, step := range []struct {
		keys, text string
		want       bool
	}{
		{"", "> " + prefix + ":b", true},
		{down + down, "> " + prefix + ":a", true},
		{"\r", "free 7, in use 3", true},
		{escape, "> " + prefix + ":a", true},
		{pageUp, "> " + prefix + ":b", true},
		{end + "\r", "free 7, in use 3", true},
		{"q", "> " + prefix + ":a", true},
		{"s", "sorted by in-use", true},
		{"r", "reversed", true},
		{"/:Bx\b", "filter: :B_", true},
		{"\r", ":a ", false},
		{escape, ":a ", true},
		{"p", "paused", true},
		{"p", "q quit", true},
	} {
		term.press(step.keys)
		term.shows(t, step.text, step.want)
	}
	m.SetError("LOADING down")
	term.shows(t, "the server does not answer: LOADING down", true)
	m.SetError("")
	term.shows(t, "does not answer", false)
	term.press("q")
	require.NoError(t, <-ended)
}

func testCtrlC(t *testing.T) {
	rdb, _ := redistest.Mini(t)
	prefix := twoLimiters(t, rdb)
	// The second is that of a terminal that is lost.
	for _, end := range []tcell.Event{tcell.NewEventKey(tcell.KeyCtrlC, 0, 0), tcell.NewEventError(io.EOF)} {
		list, one := newTerminal(t), newTerminal(t)
		for term, ended := range map[terminal]chan error{list: list.top(t.Context(), rdb, ""), one: one.watch(t.Context(), rdb, prefix+":a")} {
			term.events <- end
			require.NoError(t, <-ended)
		}
	}
}

func testWatch(t *testing.T) {
	rdb, m := redistest.Mini(t)
	prefix := twoLimiters(t, rdb)
	term := newTerminal(t)
	term.SetSize(60, 20)
	term.watch(t.Context(), rdb, prefix+":a")
	term.shows(t, "free 7, in use 3", true)
	limitertest.TakeOnce(t, rdb, prefix+":a", rratelimiter.PerHour(10), "", 2)
	term.shows(t, "free 5, in use 5", true)
	term.resize(33, 9)
	assert.Regexp(t, `\ncost: .*…\n`, term.text())
	m.SetError("LOADING down")
	term.shows(t, "does not answer", true)
	m.SetError("")
	m.Del(prefix + ":a")
	term.shows(t, "no such limiter now", true)
}

// The display of a server that hangs is old long before go-redis gives up.
func testHungServer(t *testing.T) {
	rdb, m := redistest.Mini(t)
	proxy := redistest.MiniProxy(t, m)
	term := newTerminal(t)
	ended := term.watch(t.Context(), proxy.Client(t, nil), twoLimiters(t, rdb)+":a")
	term.shows(t, "free 7", true)
	release := make(chan struct{})
	proxy.OnCommand(func(redistest.Command) redistest.Action { return redistest.Pass.When(release) })
	term.shows(t, "old, the server does not answer: nothing for ", true)
	close(release)
	term.shows(t, "nothing for", false)
	term.press("q")
	require.NoError(t, <-ended)
}

func TestKeys(t *testing.T) {
	t.Parallel()
	term := terminal{events: make(chan tcell.Event, 20)}
	term.press("sé\r\b\x03\n\x7f\x1b[99;5u\x1b[A\x1b[6~\x1bOF\x1b[15~\x1bq" + escape)
	for key := range strings.SplitSeq("s é Enter Backspace Ctrl-C Enter Backspace Ctrl-C Up PgDn End F5  Esc", " ") {
		assert.Equal(t, key, keyOf(<-term.events))
	}
}

func TestDraw(t *testing.T) {
	t.Parallel()
	term := newTerminal(t)
	s := &Screen{Screen: term}
	s.draw([]string{"the line before"})
	s.draw([]string{output.Yellow + output.Faint + "限\a\x1b[0mx"})
	cells, _, _ := term.GetContents()
	assert.Equal(t, tcell.StyleDefault.Foreground(tcell.PaletteColor(3)).Dim(true), cells[0].Style)
	assert.Equal(t, tcell.StyleDefault, cells[3].Style)
	assert.Equal(t, "限 x ", string(cells[0].Runes)+string(cells[2].Runes)+string(cells[3].Runes)+string(cells[4].Runes))
}

func plain(_, text string) string { return text }

func golden(t *testing.T, name string, lines []string) {
	t.Helper()
	story.Golden(t, filepath.Join("testdata", name+".txt"), strings.Join(lines, "\n")+"\n")
}

// requireFits fails if a line is wider than the screen, or holds what moves the cursor or the letters.
func requireFits(t *testing.T, lines []string, columns int) {
	t.Helper()
	for _, line := range lines {
		require.LessOrEqual(t, Width(line), columns, "%q", line)
		bad := strings.IndexFunc(line, func(r rune) bool { return !unicode.IsPrint(r) || rightToLeft(r) || unicode.Is(unicode.M, r) })
		require.Equal(t, -1, bad, "%q", line)
	}
}

// hostile are names that a table must not show as they are.
func hostile() []string {
	return []string{
		"", "a\nb", "tab\tand\rreturn", "\x1b[2J\x1b[31mred", "bell\a", "\u202egnihtyreve", "שלום", "مرحبا", "zal\u0335\u0336go",
		"wide 限流器:订单", "emoji 🚦🚦", "bad \xff\xfe utf8", "zero\u200bwidth", strings.Repeat("long", 1024), strings.Repeat("限", 1024),
		strings.Repeat("\x1b]0;title\a", 400),
	}
}

func manyLimiters() *look.Snapshot {
	micros := 1234.5
	s := &look.Snapshot{
		At: time.Date(2026, 11, 22, 10, 20, 30, 0, time.UTC), Known: 48_210, InUse: 1201, Used: 1, Complete: true, RoundMS: 31_250,
		Cost: look.Cost{Commands: 4800, ServerMicros: &micros, RoundTripMicros: 310},
		Limiters: []look.Limiter{
			{
				Name: "api:orders", Type: "OVERALL", Rate: 100, IntervalMS: 1000, Free: new(int64(0)), InUse: 100, PerSecond: 100,
				Callers: []look.Caller{
					{Who: "client 3fa81b2c", Permits: 62, Share: 0.62}, {Who: "Redisson", Permits: 30, Share: 0.3},
					{Who: "client 00c0ffee", Permits: 5, Share: 0.05}, {Who: "unmarked", Permits: 3, Share: 0.03},
				},
			},
			{
				Name: "api:a-much-longer-name-of-a-limiter:for-user:4711", Type: "OVERALL", Rate: 2_000_000, IntervalMS: 3_600_000,
				Free: new(int64(1_234_567)), InUse: 765_433, PerSecond: 212.6,
			},
			{
				Name: "jobs", Type: "PER_CLIENT", Rate: 5, IntervalMS: 60_000, Free: new(int64(2)), InUse: 4, Clients: 2, PerSecond: 0.2,
				Callers: []look.Caller{{Who: "client ann", Permits: 3, Share: 0.75}, {Who: "client bob", Permits: 1, Share: 0.25}},
			},
			{Name: "broken", Type: "OVERALL", Rate: 5, IntervalMS: 500},
			{Name: "限流器:订单", Type: "OVERALL", Rate: 10, IntervalMS: 1000, Free: new(int64(10))},
		},
	}
	for _, name := range hostile() {
		s.Limiters = append(s.Limiters, look.Limiter{
			Name: name, Type: "OVERALL", Rate: 7, IntervalMS: 1000, Free: new(int64(7)), Callers: []look.Caller{{Who: name, Permits: 7, Share: 1}},
		})
	}
	return s
}

func TestTopFitsAnyScreen(t *testing.T) {
	t.Parallel()
	s := manyLimiters()
	for _, columns := range []int{40, 80, 200} {
		lines := topText(s, look.View{Sort: "use"}, columns, 0, plain)
		golden(t, fmt.Sprintf("top-%d", columns), lines)
	}
	unseen := &look.Snapshot{Known: 100_000, Left: true, Walked: 0.35, Cost: look.Cost{Commands: 12, RoundTripMicros: 1500}}
	lines := topText(unseen, look.View{Sort: "name"}, 120, 0, plain)
	assert.Contains(t, lines[0], "0 used up, 0 in use of more than 100000 limiters, 35% of the keys seen")
	assert.Equal(t, "cost: 12 commands/s, 1.50 ms a round trip; sorted by name", lines[1])
	s.Err = errors.New("dial tcp:\n\x1b[31mconnection refused")
	for columns := 1; columns < 250; columns += 3 {
		one := &s.Limiters[columns%len(s.Limiters)]
		one.Broken = "why: " + one.Name // one after the other
		for _, rows := range []int{0, 1, 2, 5, 50} {
			lines := topText(s, look.View{Sort: "use", Filter: "\x1b[2J", Reverse: true}, columns, rows, plain)
			requireFits(t, lines, columns)
			if rows > headLines {
				require.LessOrEqual(t, len(lines), rows)
			}
		}
	}
}

func graphPoints(n int) []look.Point {
	points := make([]look.Point, n)
	for i := range points {
		granted := int64(i % 12)
		free := max(100-granted*9, 0)
		points[i] = look.Point{Granted: granted, Limiter: look.Limiter{
			Name: "api:orders", Rate: 100, IntervalMS: 1000, Free: &free, InUse: 100 - free, PerSecond: float64(granted),
			Callers: []look.Caller{{Who: "client 3fa81b2c", Permits: 70, Share: 0.7}, {Who: "Redisson", Permits: 30, Share: 0.3}},
		}}
	}
	points[n/2].Free, points[n/2].Gone = nil, true
	return points
}

func TestGraphFitsAnyScreen(t *testing.T) {
	t.Parallel()
	points := graphPoints(130)
	for _, columns := range []int{40, 80, 200} {
		golden(t, fmt.Sprintf("watch-%d", columns), Graph(points, time.Second/2, columns, 24, false, plain))
	}
	golden(t, "watch-ascii", Graph(points, time.Second/2, 80, 16, true, plain))
	for _, name := range hostile() {
		points[129].Name, points[129].Callers[0].Who = name, name
		points[129].Err = errors.New(name)
		for columns := 1; columns < 120; columns += 7 {
			for rows := 1; rows < 30; rows += 4 {
				points[129].Broken = strings.Repeat(name, rows/4%2)
				lines := Graph(points, time.Second, columns, rows, rows%2 == 0, plain)
				requireFits(t, lines, columns)
				require.LessOrEqual(t, len(lines), rows)
			}
		}
	}
}

func TestPointText(t *testing.T) {
	t.Parallel()
	p := graphPoints(130)[129]
	p.At = time.Date(2026, 11, 22, 10, 20, 30, 123e6, time.UTC)
	assert.Equal(t, "10:20:30.1  free 19 of 100  in use 81  granted 9  by 3fa81b2c 70%, Redisson 30%", pointText(&p))
	p.More, p.Callers, p.Free = true, nil, nil
	assert.Equal(t, "10:20:30.1  free unknown  in use 81  granted 9 or more", pointText(&p))
	p.IntervalMS = math.MaxInt64 // which exceeds a time.Duration
	assert.Contains(t, headline(&p), "100 permits every 9223372036854775807ms, free unknown")
	p.Broken = "key {orders}:permits is not a sorted set"
	assert.Equal(t, "10:20:30.1  ! broken: key {orders}:permits is not a sorted set", pointText(&p))
	p.Gone = true
	assert.Equal(t, "10:20:30.1  no such limiter", pointText(&p))
	assert.Equal(t, "29%", percent(&look.Limiter{Rate: 100, Free: new(int64(71))}), "not 28.999 of floats")
}
