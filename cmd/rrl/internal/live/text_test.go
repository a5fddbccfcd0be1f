package live

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/look"
)

var update = flag.Bool("update", false, "write testdata anew")

func plain(_, text string) string { return text }

// golden compares lines with a file of testdata.
func golden(t *testing.T, name string, lines []string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	text := strings.Join(lines, "\n") + "\n"
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), text)
}

// requireFits fails where a line is wider than the screen, or holds what moves
// the cursor or the letters.
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

func TestSafe(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"": `""`, "api:orders": "api:orders", "限流器": "限流器", "é": "é", `with "quotes"`: `with "quotes"`,
		"a\x1b[31m": `"a\x1b[31m"`, "\u202ea": `"\u202ea"`, "e\u0301": `"e\u0301"`, "שלום": `"\u05e9\u05dc\u05d5\u05dd"`,
		"\xff": `"\xff"`,
	} {
		assert.Equal(t, want, Safe(name))
	}
}

func TestFit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text    string
		columns int
		want    string
	}{
		{"short", 10, "short"},
		{"exactly10!", 10, "exactly10!"},
		{"api:limit:user:17", 10, "api:l…r:17"},
		{"限流器订单服务", 7, "限…服务"},
		{"abcdef", 3, "abc"},
		{"abcdef", 0, ""},
		{"限", 1, ""},
	} {
		assert.Equal(t, c.want, Fit(c.text, c.columns), "%q in %d", c.text, c.columns)
	}
	for _, name := range hostile() {
		for columns := range 90 {
			assert.LessOrEqual(t, Width(Fit(Safe(name), columns)), columns, "%q", name)
			assert.Equal(t, columns, Width(left(Safe(name), columns)))
			assert.Equal(t, columns, Width(right(Safe(name), columns)))
		}
	}
}

func TestShortNumbers(t *testing.T) {
	t.Parallel()
	for f, want := range map[float64]string{
		0: "0", 0.25: "0.2", 9.5: "9.5", 12: "12", 9999: "9999", 12_345: "12.3k", 1_234_567: "1.23M", 2e9: "2G", 9.2e18: "9.2E",
	} {
		assert.Equal(t, want, short(f))
	}
	assert.Equal(t, "99999", count(99_999))
	assert.Equal(t, "100k", count(100_000))
	assert.LessOrEqual(t, len(count(1<<62)), 6)
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
	s.Err = errors.New("dial tcp:\n\x1b[31mconnection refused")
	for columns := 1; columns < 250; columns += 3 {
		for _, rows := range []int{0, 1, 2, 5, 50} {
			lines := topText(s, look.View{Sort: "use", Filter: "\x1b[2J", Reverse: true}, columns, rows, plain)
			requireFits(t, lines, columns)
			if rows > headLines {
				require.LessOrEqual(t, len(lines), rows)
			}
		}
	}
}

func TestTopSaysWhatItHasNotSeen(t *testing.T) {
	t.Parallel()
	s := &look.Snapshot{Known: 100_000, Left: true, Walked: 0.35, Cost: look.Cost{Commands: 12, RoundTripMicros: 1500}}
	lines := topText(s, look.View{Sort: "name"}, 120, 0, plain)
	assert.Contains(t, lines[0], "more than 100000 limiters, 0 in use, 0 used up, 35% of the keys seen")
	assert.Equal(t, "cost: 12 commands/s, 1.50 ms a round trip; sorted by name", lines[1])
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
	p.Gone = true
	assert.Equal(t, "10:20:30.1  no such limiter", pointText(&p))
}

// What is broken has no figures, and its reason fits any screen.
func TestBrokenFitsAnyScreen(t *testing.T) {
	t.Parallel()
	points := graphPoints(130)
	last := &points[129]
	last.At = time.Date(2026, 11, 22, 10, 20, 30, 0, time.UTC)
	last.Broken, last.Free = "key {orders}:permits is not a sorted set", nil
	assert.Equal(t, "10:20:30.0  broken: key {orders}:permits is not a sorted set", pointText(last))
	assert.Equal(t, "broken: key {orders}:permits is not a sorted set", headline(last))
	for _, text := range hostile() {
		last.Broken = "why: " + text
		s := &look.Snapshot{Known: 1, Broken: 1, Limiters: []look.Limiter{last.Limiter}}
		for columns := 1; columns < 120; columns += 7 {
			requireFits(t, Graph(points, time.Second, columns, 20, false, plain), columns)
			lines := topText(s, look.View{Sort: "use"}, columns, 0, plain)
			requireFits(t, lines, columns)
			assert.NotContains(t, lines[headLines], "100/1s")
		}
	}
}

func TestPercent(t *testing.T) {
	t.Parallel()
	for rate := int64(1); rate <= 1000; rate++ {
		for used := range rate + 1 {
			l := look.Limiter{Rate: rate, Free: new(rate - used)}
			if got, want := percent(&l), strconv.FormatInt(used*100/rate, 10)+"%"; got != want {
				require.Equal(t, want, got, "%d of %d", used, rate)
			}
		}
	}
}
