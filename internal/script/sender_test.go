package script_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// flights counts the commands of each round trip, and holds them back.
type flights struct {
	mu    sync.Mutex
	sizes []int
	hold  chan struct{} // closed to let go; nil for none
	fails error         // of the pipeline itself
}

func (f *flights) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *flights) take(cmds []redis.Cmder) {
	n := 0
	for _, cmd := range cmds {
		if strings.HasPrefix(cmd.Name(), "eval") {
			n++
		}
	}
	if n == 0 {
		return
	}
	f.mu.Lock()
	f.sizes = append(f.sizes, n)
	f.mu.Unlock()
	if f.hold != nil {
		<-f.hold
	}
}

func (f *flights) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		f.take([]redis.Cmder{cmd})
		return next(ctx, cmd)
	}
}

func (f *flights) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		f.take(cmds)
		if f.fails != nil {
			return f.fails
		}
		return next(ctx, cmds)
	}
}

func TestCommandsThatMeetGoTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		require.NoError(t, rdb.ScriptLoad(t.Context(), incr.Source).Err())
		f := &flights{hold: make(chan struct{})}
		rdb.AddHook(f)
		sender := script.NewSender(rdb)
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				reply, err := script.Once(t.Context(), sender, incr, script.KeysOf(fmt.Sprint("key", i)))
				assert.NoError(t, err)
				assert.EqualValues(t, 1, reply)
			})
			synctest.Wait()
		}
		assert.Equal(t, []int{1, 1}, f.sizes, "who finds the way free goes at once")
		close(f.hold)
		wg.Wait()
		assert.Len(t, f.sizes, 4)
		assert.Equal(t, 1000, f.sizes[0]+f.sizes[1]+f.sizes[2]+f.sizes[3])
		assert.LessOrEqual(t, max(f.sizes[2], f.sizes[3]), 512)
	})
}

func TestOneAfterTheOtherGoAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		require.NoError(t, rdb.ScriptLoad(t.Context(), incr.Source).Err())
		f := &flights{}
		rdb.AddHook(f)
		sender := script.NewSender(rdb)
		for i := range int64(5) {
			reply, err := script.Once(t.Context(), sender, incr, script.KeysOf("key"))
			require.NoError(t, err)
			assert.Equal(t, i+1, reply)
		}
		assert.Equal(t, []int{1, 1, 1, 1, 1}, f.sizes)
	})
}

// A pipeline that fails before it is sent, as by somebody's hook, leaves no
// command without an error.
func TestAPipelineThatFailsByItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		require.NoError(t, rdb.ScriptLoad(t.Context(), incr.Source).Err())
		f := &flights{hold: make(chan struct{}), fails: errors.New("not today")}
		rdb.AddHook(f)
		sender := script.NewSender(rdb)
		var wg sync.WaitGroup
		failed := make([]error, 10)
		for i := range failed {
			wg.Go(func() { _, failed[i] = script.Once(t.Context(), sender, incr, script.KeysOf(fmt.Sprint("key", i))) })
			synctest.Wait()
		}
		close(f.hold)
		wg.Wait()
		alone := 0 // the first two, and one whom nobody was left to go with
		for _, size := range f.sizes {
			if size == 1 {
				alone++
			}
		}
		assert.LessOrEqual(t, alone, 3)
		for _, err := range failed {
			if err == nil {
				alone--
				continue
			}
			require.ErrorIs(t, err, script.ErrLost)
			assert.ErrorContains(t, err, "not today")
		}
		assert.Zero(t, alone)
	})
}

// Of a pipeline whose answers were lost nothing runs twice.
func TestAPipelineIsNotRepeated(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	direct := server.Client(t, nil)
	require.NoError(t, direct.ScriptLoad(t.Context(), incr.Source).Err())
	proxy := redistest.StartProxy(t, server.Addr())
	calls := 0
	proxy.OnCommand(func(c redistest.Command) redistest.Action {
		if c.Name() != "evalsha" {
			return redistest.Pass
		}
		calls++
		switch calls % 7 {
		case 3:
			return redistest.DropAnswer
		case 5:
			return redistest.Cut
		}
		return redistest.Pass.After(200 * time.Microsecond)
	})
	sender := script.NewSender(proxy.Client(t, nil))
	var wg sync.WaitGroup
	var mu sync.Mutex
	answered, lost := map[int64]bool{}, int64(0)
	for range 32 {
		wg.Go(func() {
			for range 20 {
				reply, err := script.Once(context.Background(), sender, incr, script.KeysOf("key"))
				mu.Lock()
				if err == nil {
					n, _ := reply.(int64)
					assert.False(t, answered[n], "answered twice")
					answered[n] = true
				} else {
					assert.ErrorIs(t, err, script.ErrLost)
					lost++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	proxy.Settle(t)
	ran, err := direct.Get(t.Context(), "key").Int64()
	require.NoError(t, err)
	assert.EqualValues(t, 640, int64(len(answered))+lost)
	assert.GreaterOrEqual(t, ran, int64(len(answered)))
	assert.LessOrEqual(t, ran, int64(640), "each ran once at most")
}

// many answers each part of a joint call with its number, 0 for those that are
// told to wait, or fails as a whole.
var many = newScript(`
if ARGV[3] == 'fail' then return redis.error_reply(ARGV[2] .. " told") end
local answers = {}
for i = 1, (#ARGV - 1) / 2 do answers[i] = tonumber(ARGV[2 * i + 1]) end
return answers`)

// echo is what many stands for.
var echo = newScript("return {ARGV[1]}")

// joined makes calls while two are under way. Those two go alone; the next two
// share the others, or one of them takes all and the other goes alone.
func joined(t *testing.T, rdb *redis.Client, hold chan struct{}, calls []*script.Joint) (replies []any, failed []error) {
	t.Helper()
	f := &flights{hold: hold}
	rdb.AddHook(f)
	sender := script.NewSender(rdb)
	replies, failed = make([]any, len(calls)), make([]error, len(calls))
	var wg sync.WaitGroup
	for i, joint := range calls {
		wg.Go(func() {
			call := script.Call{
				Script: echo, Keys: script.KeysOf(fmt.Sprint("key", i)), Repeat: true, Joint: joint,
			}
			replies[i], failed[i] = call.Run(t.Context(), sender, func(all []any, age time.Duration) []any {
				return append(all, fmt.Sprint(i, age >= 0))
			})
		})
		synctest.Wait()
	}
	close(hold)
	wg.Wait()
	return replies, failed
}

func TestJointCalls(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		word string // the first argument of each call
		last any    // the second of the last
		want func(i int) any
	}{
		"answered": {"", 100, func(i int) any {
			switch {
			case i < 2:
				return []any{fmt.Sprint(i, false)} // went alone
			case i == 5:
				return []any{"5 false"} // undecided, and made by itself
			}
			return int64(100 + i)
		}},
		"keys in different slots": {"CROSSSLOT", "fail", func(i int) any { return []any{fmt.Sprint(i, false)} }},
		"refused unrun":           {"LOADING", "fail", func(i int) any { return []any{fmt.Sprint(i, false)} }},
		"an error from within":    {"OOM", "fail", func(i int) any { return []any{fmt.Sprint(i, i >= 2)} }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rdb, _ := redistest.Mini(t)
				var calls []*script.Joint
				for i := range 80 {
					second := any(100 + i)
					if i == 5 {
						second = 0
					}
					if tc.last == "fail" {
						second = "fail"
					}
					calls = append(calls, &script.Joint{Script: many, Args: [2]any{tc.word, second}, Early: true})
				}
				replies, failed := joined(t, rdb, make(chan struct{}), calls)
				for i := range calls {
					require.NoError(t, failed[i])
					if i != 2 && i != 3 {
						assert.Equal(t, tc.want(i), replies[i], i)
					}
				}
			})
		})
	}
}

func TestEarlyJointCallsComeFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		order := newScript(`local all = {}
			for i = 1, (#ARGV - 1) / 2 do
				all[i] = (i <= ARGV[1] + 0) == (ARGV[2 * i] % 2 == 1) and 1000 + ARGV[2 * i] or 0
			end
			return all`)
		var calls []*script.Joint
		for i := range 10 {
			calls = append(calls, &script.Joint{Script: order, Args: [2]any{i, ""}, Early: i%2 == 1})
		}
		replies, failed := joined(t, rdb, make(chan struct{}), calls)
		for i := range calls {
			require.NoError(t, failed[i])
			if i > 3 {
				assert.EqualValues(t, 1000+i, replies[i])
			}
		}
	})
}
