package lua_test

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	top "github.com/rratelimiter/rratelimiter/lua"
)

var (
	twinSeed  = flag.Uint64("seed", 0, "seed of the random histories; 0 draws one")
	histories = flag.Int("histories", 12, "random histories")
)

// TestFastPath_DecidesAsGeneralPath plays random histories on two limiters. Each call
// finds both in one state, at one moment: one is decided by acquire, the other by acquire
// without its fast path. If the fast path decides, it does less, and only in what
// [twins.sameRefusal] and [twins.sameGrant] name.
func TestFastPath_DecidesAsGeneralPath(t *testing.T) {
	t.Parallel()
	seed := *twinSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	var grants, refusals, batches atomic.Int64 // of the fast path
	t.Run("histories", func(t *testing.T) {
		for i := range *histories {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
					t.Logf("-seed %d", seed)
					w := newTwins(t, rdb, rand.New(rand.NewPCG(seed, uint64(i))))
					for range 40 {
						w.disturb(t)
						w.acquire(t)
					}
					grants.Add(w.grants)
					refusals.Add(w.refusals)
					batches.Add(w.batches)
				})
			})
		}
	})
	if *histories >= 12 && !t.Failed() && !t.Skipped() && grants.Load()+refusals.Load() > 0 {
		assert.Positive(t, grants.Load(), "seed %d", seed)
		assert.Positive(t, refusals.Load(), "seed %d", seed)
		assert.Positive(t, batches.Load(), "seed %d", seed)
	}
}

// A member with the short id of a refused request may be another program's, but hardly if it is a moment old.
func TestAcquire_OldestMemberWithTheShortIDOfTheRequest(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb redistest.Client) {
		keys := redisson.KeysOf(redistest.Name(t), "id").List()
		require.NoError(t, rdb.HSet(t.Context(), keys[0], "rate", 1, "interval", 60_000, "type", 0).Err())
		member, err := codec.Append(nil, codec.LayoutD1, []byte("12345678"), 1)
		require.NoError(t, err)
		acquire := func(flags string) any {
			answer, err := rdb.Eval(t.Context(), lua.Acquire.Source, keys, member, 1, "", flags).Result()
			require.NoError(t, err)
			return answer
		}
		require.Equal(t, []any{int64(1), int64(1), int64(1), int64(60_000), int64(60_000), int64(0), int64(0)}, acquire("f"))
		require.Equal(t, int64(1), acquire(""), "the same request, which came twice")
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, []any{int64(1), int64(0), int64(0), int64(60_000), int64(59_500), int64(0), int64(0), int64(59_500)}, acquire(""))
	})
}

// withoutFastPath returns acquire's text with nothing of the fast path but what it reads
// for the general path, so that of two damaged keys both complain about the same.
func withoutFastPath(t *testing.T) string {
	t.Helper()
	text, err := fs.ReadFile(top.Files, "include/fast_path.lua")
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(lua.Acquire.Source, string(text)))
	reads, _, found := strings.Cut(string(text), "  local rate, value, sum = ")
	require.True(t, found)
	return strings.Replace(lua.Acquire.Source, string(text), reads+"end\n", 1)
}

// twins are two limiters and what happens to them.
type twins struct {
	rdb              redistest.Client
	random           *rand.Rand
	script           [2]string // acquire, and without its fast path
	keys             [2][]string
	rate             int64
	interval         time.Duration
	members          int
	last             []any // the arguments of the last call
	grants, refusals int64 // of the fast path
	batches          int64 // that it decided
}

func newTwins(t *testing.T, rdb redistest.Client, random *rand.Rand) *twins {
	t.Helper()
	name := redistest.Name(t)
	w := &twins{rdb: rdb, random: random, script: [2]string{lua.Acquire.Source, withoutFastPath(t)}}
	for i, part := range []string{"fast", "general"} {
		w.keys[i] = redisson.KeysOf(name+part, "id").List()
	}
	w.setUp(t)
	return w
}

func (w *twins) oneIn(n int) bool { return w.random.IntN(n) == 0 }

// setUp starts again, with another rate.
func (w *twins) setUp(t *testing.T) {
	t.Helper()
	require.NoError(t, w.rdb.Del(t.Context(), w.keys[0]...).Err())
	w.rate = []int64{1, 3, 10, 20, 50, 2000}[w.random.IntN(6)]
	w.interval = []time.Duration{time.Second, time.Minute, time.Hour}[w.random.IntN(3)]
	kind, keep := 0, 0
	if w.oneIn(8) {
		kind = 1
	}
	if w.oneIn(8) {
		keep = 5000
	}
	t.Logf("rate %d, interval %s, type %d, keep %d", w.rate, w.interval, kind, keep)
	require.NoError(t, w.rdb.HSet(t.Context(), w.keys[0][0],
		"rate", w.rate, "interval", w.interval.Milliseconds(), "type", kind, "keepAliveTime", keep).Err())
}

// member returns a member of a new attempt, mostly of the present layout.
func (w *twins) member(t *testing.T, permits int64) string {
	t.Helper()
	layout, size := codec.LayoutD2, 16
	if w.oneIn(10) {
		layout, size = codec.LayoutD1, 8
	}
	w.members++
	m, err := codec.Append(nil, layout, []byte(fmt.Sprintf("%0*d", size, w.members)), uint32(permits))
	require.NoError(t, err)
	return string(m)
}

// disturb lets something happen to the first of the limiters.
func (w *twins) disturb(t *testing.T) {
	t.Helper()
	wait := w.wait()
	switch n := w.random.IntN(40); {
	case n < 5:
		t.Logf("%s pass", wait)
		time.Sleep(wait)
	case n < 9:
		wait = (wait / 8).Truncate(time.Millisecond)
		t.Logf("%s pass", wait)
		time.Sleep(wait)
	case n < 12:
		n := 1 + w.random.Int64N(w.rate)
		note(t, fmt.Sprintf("%d released", n), w.rdb.Eval(t.Context(), lua.Release.Source, w.keys[0], n, "00000000", "", "", w.member(t, 1)).Err())
	case n < 27:
		w.damage(t)
	case n < 29:
		w.setUp(t)
	}
	// Damage is repaired soon.
	if !w.oneIn(3) && !w.inOrder(t) {
		w.setUp(t)
	}
}

func note(t *testing.T, what string, err error) {
	t.Helper()
	t.Logf("%s: %v", what, err)
}

func (w *twins) wait() time.Duration {
	return time.Duration(w.random.Int64N(w.interval.Milliseconds()*3/2)) * time.Millisecond
}

// damage changes the first of the limiters as no request would.
func (w *twins) damage(t *testing.T) {
	t.Helper()
	ctx, wait := t.Context(), w.wait()
	config, value, permits := w.keys[0][0], w.keys[0][1], w.keys[0][3]
	anyKey := []string{config, value, permits}[w.random.IntN(3)]
	switch w.random.IntN(15) {
	case 0:
		note(t, "no value", w.rdb.Del(ctx, value).Err())
	case 1:
		note(t, "no set", w.rdb.Del(ctx, permits).Err())
	case 2:
		note(t, "the oldest member is lost", w.rdb.ZPopMin(ctx, permits).Err())
	case 3:
		note(t, "the value has grown", w.rdb.IncrBy(ctx, value, 1+w.random.Int64N(w.rate)).Err())
	case 4:
		note(t, "the value has shrunk", w.rdb.DecrBy(ctx, value, 1+w.random.Int64N(w.rate)).Err())
	case 5:
		note(t, "a member of the future", w.rdb.ZAdd(ctx, permits,
			redis.Z{Score: float64(time.Now().Add(wait).UnixMilli()), Member: w.member(t, 1)}).Err())
	case 6:
		note(t, "a value of old", w.rdb.Set(ctx, value, w.random.Int64N(w.rate+2), w.interval-wait/2).Err())
	case 7, 8:
		note(t, fmt.Sprintf("%s expires in %s", anyKey, wait), w.rdb.PExpire(ctx, anyKey, wait+1).Err())
	case 9:
		note(t, "expires", w.rdb.Eval(ctx, lua.Expire.Source, w.keys[0], "PEXPIRE", (2*w.interval).Milliseconds()).Err())
	case 10:
		note(t, anyKey+" persists", w.rdb.Persist(ctx, anyKey).Err())
	case 11:
		note(t, "another rate", w.rdb.HSet(ctx, config, "rate", 1+w.random.Int64N(2*w.rate)).Err())
	case 12:
		field := []string{"rate", "interval", "type", "keepAliveTime"}[w.random.IntN(4)]
		text := []string{"", "x", "01", "-1", "1e3", "0", "99999999999999999999"}[w.random.IntN(7)]
		note(t, field+" is "+text, w.rdb.HSet(ctx, config, field, text).Err())
		fallthrough
	case 13:
		text := []string{"", "x", "01", "-1", "1.5", "9007199254740993"}[w.random.IntN(6)]
		note(t, "the value is "+text, w.rdb.Set(ctx, value, text, 0).Err())
	case 14:
		require.NoError(t, w.rdb.Del(ctx, anyKey).Err())
		note(t, anyKey+" is a list", w.rdb.RPush(ctx, anyKey, "x").Err())
	}
}

// inOrder reports whether acquire can decide at all.
func (w *twins) inOrder(t *testing.T) bool {
	t.Helper()
	return w.rdb.Eval(t.Context(), lua.Available.Source, w.keys[0], "").Err() == nil
}

// arguments draws a call.
func (w *twins) arguments(t *testing.T) []any {
	t.Helper()
	permits := 1 + w.random.Int64N(min(w.rate+1, 20))
	if w.oneIn(10) {
		permits = w.rate
	}
	args := []any{w.member(t, permits), strconv.FormatInt(permits, 10), "", "", "", "", ""}
	if w.oneIn(5) {
		args[3] = []string{"a", "f", "fa", "s"}[w.random.IntN(4)]
	}
	if w.oneIn(25) {
		args[4] = strconv.Itoa(w.random.IntN(1000))
	}
	if w.oneIn(3) { // a batch
		sum := int64(0)
		for n := 1 + w.random.IntN(3); n > 0; n-- {
			size, count := 1+w.random.Int64N(min(w.rate+1, 20)), 1+w.random.Int64N(5)
			sum, args = sum+size*count, append(args, size, count)
		}
		args[0], args[1], args[6] = w.member(t, sum), strconv.FormatInt(sum, 10), strconv.Itoa(w.random.IntN(4))
	}
	for args[len(args)-1] == "" || len(args) == 2 && args[1] == "1" {
		args = args[:len(args)-1]
	}
	return args
}

// acquire makes one call of both limiters, and goes on with the state of one.
func (w *twins) acquire(t *testing.T) {
	t.Helper()
	twice := w.last != nil && w.oneIn(10)
	if !twice {
		w.last = w.arguments(t)
	}
	w.copyTo(t, 0, 1)
	before := w.look(t, 0)
	keyed := [2][]string{w.keys[0], w.keys[1]}
	if w.oneIn(2) {
		for i, keys := range w.keys {
			keyed[i] = []string{keys[0], keys[1], keys[3]}
		}
	}
	var answers [2]any
	var errs [2]string
	for i := range answers {
		answer, err := w.rdb.Eval(t.Context(), w.script[i], keyed[i], w.last...).Result()
		answers[i], errs[i] = answer, said(err)
	}
	t.Logf("%q of %d keys: %v %s, %v %s", w.last, len(keyed[0]), answers[0], errs[0], answers[1], errs[1])
	fast, general := w.look(t, 0), w.look(t, 1)
	granted, ok := answers[0].(int64)
	if ok && len(w.last) > 7 {
		w.batches++
	}
	switch {
	case !ok:
		require.Equal(t, answers[1], answers[0])
		require.Equal(t, errs[1], errs[0])
		require.Equal(t, general, fast)
	case granted < 0:
		w.refusals++
		require.Equal(t, before, fast, "a refusal of the fast path writes nothing")
		w.sameRefusal(t, granted, answers[1], errs[1], fast, general, twice)
	default:
		w.grants++
		w.sameGrant(t, granted, answers[1], errs[1], before, fast, general, twice)
	}
	if w.oneIn(2) {
		w.copyTo(t, 1, 0)
	}
}

// sameRefusal checks a refusal. The general path gives all keys the time to live of the
// configuration, and forgets those that were answered long ago; and if this attempt was
// answered it says so. Only it knows the end of a window, of a value with an end of its own:
// the fast path tells when the oldest member runs out. And only it looks for each wait whether the limiter
// lives that long (the fast path does for those over 64 s), and sees that a request that came twice was granted.
func (w *twins) sameRefusal(t *testing.T, wait int64, answer any, err string, fast, general state, twice bool) {
	t.Helper()
	if strings.HasPrefix(err, "LATE") {
		require.Equal(t, "0", fast[1].Text)
	} else {
		require.Empty(t, err)
		figures := answer.([]any)
		if figures[2] != int64(0) {
			require.True(t, twice)
			return // who looks for what it was granted may find what leaked
		}
		require.Greater(t, len(figures), 7)
		for _, other := range figures[7:] {
			dies := -wait <= 64_000 && other == fast[0].left.Milliseconds()
			require.True(t, -wait == other || fast[1].left >= 0 || dies, "%v", other)
		}
	}
	for _, s := range []*state{&fast, &general} {
		delete(s[0].Fields, "answered")
		for i := 1; i < len(s); i++ {
			s[i].left = 0
		}
	}
	require.Equal(t, general, fast)
}

// sameGrant checks a grant. The general path reclaims what has run out and re-dates what is of
// the future; the fast path leaves that to a later call. Permits that leaked, or are there
// twice, come to rest when the set is empty, so that there the later call may count less or
// more. A new set lives as long as the configuration says, the old one keeps its own time. A
// late copy of a request whose own member has run out takes nothing by the fast path, which
// finds it there. For a request that came twice the fast path may write nothing: no times to live, and it forgets
// none of those that were answered long ago.
func (w *twins) sameGrant(t *testing.T, granted int64, answer any, err string, before, fast, general state, twice bool) {
	t.Helper()
	if twice && reflect.DeepEqual(before, fast) {
		delete(fast[0].Fields, "answered")
		delete(general[0].Fields, "answered")
		for i := range fast {
			fast[i].left = general[i].left
		}
	}
	require.Empty(t, err)
	require.Equal(t, granted, answer.([]any)[2])
	now := float64(time.Now().UnixMilli())
	// Another may have given the limiter another rate.
	rate, convErr := strconv.ParseInt(before[0].Fields["rate"], 10, 64)
	require.NoError(t, convErr)
	interval, convErr := strconv.ParseInt(before[0].Fields["interval"], 10, 64)
	require.NoError(t, convErr)

	total, out := before.value(t), int64(0)
	for _, row := range before[3].Members {
		permits := limitertest.PermitsIn(t, row.Member.(string))
		total += permits
		if row.Score <= now-float64(interval) {
			if row.Member == w.last[0] {
				return
			}
			out += permits
		}
	}
	had, has := general.value(t), fast.value(t)
	switch window := before[1].left >= 0; {
	case out == 0 || window && has == had:
		require.Equal(t, had, has)
	case total < rate:
		require.LessOrEqual(t, has+out, had)
	case total > rate:
		require.GreaterOrEqual(t, has+out, had)
	default:
		require.Equal(t, had, has+out)
	}

	var rows []redis.Z
	for _, row := range fast[3].Members {
		if row.Score > now-float64(interval) {
			rows = append(rows, redis.Z{Score: min(row.Score, now), Member: row.Member})
		}
	}
	slices.SortFunc(rows, byScore)
	require.Equal(t, general[3].Members, rows)

	if out > 0 && len(rows) == 1 && fast[0].left < 0 {
		fast[3].left = general[3].left
	}
	for i := range fast {
		require.Equal(t, general[i].left, fast[i].left, "time to live of key %d", i+1)
	}
	for _, i := range []int{0, 2, 4} {
		require.Equal(t, general[i], fast[i], "key %d", i+1)
	}
}

// state is what five keys hold, and how long they live.
type state [5]struct {
	redistest.Value

	left time.Duration
}

func (s state) value(t *testing.T) int64 {
	t.Helper()
	value, err := strconv.ParseInt(s[1].Text, 10, 64)
	require.NoError(t, err)
	return value
}

func (w *twins) look(t *testing.T, which int) (s state) {
	t.Helper()
	for i, key := range w.keys[which] {
		s[i].Value, s[i].left = redistest.Read(t, w.rdb, key), w.rdb.PTTL(t.Context(), key).Val()
	}
	return s
}

func (w *twins) copyTo(t *testing.T, from, to int) {
	t.Helper()
	require.NoError(t, w.rdb.Del(t.Context(), w.keys[to]...).Err())
	for i, key := range w.keys[from] {
		require.NoError(t, w.rdb.Copy(t.Context(), key, w.keys[to][i], 0, true).Err())
		// miniredis copies the time to live that the key was given.
		if left := w.rdb.PTTL(t.Context(), key).Val(); left > 0 {
			require.NoError(t, w.rdb.PExpire(t.Context(), w.keys[to][i], left).Err())
		}
	}
}

// said returns the text of an error, without what a server says about the script.
func said(err error) string {
	if err == nil {
		return ""
	}
	if _, ok := errors.AsType[redis.Error](err); !ok {
		return "no answer: " + err.Error()
	}
	text, _, _ := strings.Cut(err.Error(), " script: ")
	if code, _, _ := strings.Cut(text, " "); code == "ERR" || code == "WRONGTYPE" {
		return code
	}
	return text
}

func byScore(a, b redis.Z) int {
	return cmp.Or(cmp.Compare(a.Score, b.Score), strings.Compare(a.Member.(string), b.Member.(string)))
}
