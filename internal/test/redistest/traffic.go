package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// A Hook is a redis.Hook that is called with each command, or with all of a pipeline, which next sends. A nil Hook changes nothing.
type Hook func(ctx context.Context, cmds []redis.Cmder, next func() error) error

// BeforeCommands returns a Hook that calls f before commands are sent.
func BeforeCommands(f func(cmds ...redis.Cmder)) Hook {
	return func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		f(cmds...)
		return next()
	}
}

// DialHook changes nothing.
func (Hook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook calls the Hook with one command.
func (h Hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	if h == nil {
		return next
	}
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h(ctx, []redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

// ProcessPipelineHook calls the Hook with the commands of a pipeline.
func (h Hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	if h == nil {
		return next
	}
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return h(ctx, cmds, func() error { return next(ctx, cmds) })
	}
}

// Fail sets the error of all commands and returns it.
func Fail(cmds []redis.Cmder, err error) error {
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
	return err
}

// FailWhile returns a Hook that answers commands with an error, and sends none, while down.
func FailWhile(down *atomic.Bool, err error) Hook {
	return func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		if down.Load() {
			return Fail(cmds, err)
		}
		return next()
	}
}

// Calls reports whether cmd calls the script with that SHA1.
func Calls(cmd redis.Cmder, sha string) bool {
	return cmd.Name() == "evalsha" && cmd.Args()[1] == sha
}

// Trips decides what becomes of a client's round trips with scripts, and counts them: its Send is a [Hook]. All others pass.
type Trips struct {
	Hold  chan struct{}                 // each waits until it is closed; nil: none waits
	Fails func(trip, scripts int) error // what a trip, counted from 1, meets in place of the server; nil: nothing
	Stuck atomic.Bool                   // no answer comes while one is waited for
	Loses atomic.Int32                  // so many do not reach the server

	mu      sync.Mutex
	takes   time.Duration
	answers func(cmds []redis.Cmder, failed error) error
	sizes   []int
	now     int // under way
	most    int
}

// Send is the Hook.
func (f *Trips) Send(_ context.Context, cmds []redis.Cmder, next func() error) error {
	scripts := 0
	for _, cmd := range cmds {
		if strings.HasPrefix(cmd.Name(), "eval") {
			scripts++
		}
	}
	if scripts == 0 {
		return next()
	}
	var trip int
	var takes time.Duration
	f.locked(func() {
		f.sizes = append(f.sizes, scripts)
		f.now++
		f.most, trip, takes = max(f.most, f.now), len(f.sizes), f.takes
	})
	defer f.locked(func() { f.now-- })
	if f.Stuck.Load() {
		time.Sleep(3 * time.Second) // as long as go-redis waits by default
		return Fail(cmds, context.DeadlineExceeded)
	}
	if f.Hold != nil {
		<-f.Hold
	}
	time.Sleep(takes)
	if f.Loses.Add(-1) >= 0 {
		return os.ErrDeadlineExceeded
	}
	if f.Fails != nil {
		if err := f.Fails(trip, scripts); err != nil {
			return err
		}
	}
	err := next()
	var answers func(cmds []redis.Cmder, failed error) error
	if f.locked(func() { answers = f.answers }); answers != nil {
		err = answers(cmds, err)
	}
	return err
}

func (f *Trips) locked(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// Take says how long trips take from now on.
func (f *Trips) Take(d time.Duration) { f.locked(func() { f.takes = d }) }

// Answer lets answers say what comes back from now on, in place of what did.
func (f *Trips) Answer(answers func(cmds []redis.Cmder, failed error) error) {
	f.locked(func() { f.answers = answers })
}

// Forget starts the count again.
func (f *Trips) Forget() { f.locked(func() { f.sizes, f.most = nil, f.now }) }

// Sizes returns how many scripts each trip had.
func (f *Trips) Sizes() (all []int) {
	f.locked(func() { all = slices.Clone(f.sizes) })
	return all
}

// Most returns how many trips were under way at the same time.
func (f *Trips) Most() (most int) {
	f.locked(func() { most = f.most })
	return most
}

// AnswerError is an error that Redis answered.
type AnswerError string

func (a AnswerError) Error() string { return string(a) }

// RedisError says that it is one.
func (AnswerError) RedisError() {}

// Ran is a command that a server ran, as MONITOR shows it.
type Ran struct {
	At       time.Time // the server's, to the microsecond
	InScript bool      // a script called it
	Args     []string  // the name in lower case, then its arguments
}

// Monitor calls each for every command that the server at addr runs, one at a time and
// in order. The function it returns ends that, once each has seen all that came before.
func Monitor(t testing.TB, addr string, each func(Ran)) (stop func()) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, "MONITOR\r\n")
	require.NoError(t, err)
	lines := bufio.NewReader(conn)
	said, err := lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "+OK\r\n", said)
	end := Name(t) + " ends"
	ended := make(chan error, 1)
	go func() {
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				ended <- err
				return
			}
			ran, err := ParseMonitor(line)
			switch {
			case err != nil:
				ended <- err
				return
			case len(ran.Args) == 2 && ran.Args[1] == end:
				ended <- nil
				return
			}
			each(ran)
		}
	}()
	return func() {
		t.Helper()
		rdb := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: patience})
		defer func() { _ = rdb.Close() }()
		require.NoError(t, rdb.Echo(t.Context(), end).Err())
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
		require.NoError(t, <-ended)
	}
}

// ScriptCalls watches the scripts of the server at addr. The function it returns ends
// that and returns the commands of each script call, as [Ran.Args].
func ScriptCalls(t testing.TB, addr string) (stop func() [][][]string) {
	t.Helper()
	calls := [][][]string{nil}
	end := Monitor(t, addr, func(ran Ran) {
		if last := len(calls) - 1; ran.InScript {
			calls[last] = append(calls[last], ran.Args)
		} else if calls[last] != nil {
			calls = append(calls, nil)
		}
	})
	return func() [][][]string {
		t.Helper()
		end()
		return calls
	}
}

// BoundScripts watches the scripts of the server at addr. The function it returns ends that, and checks that no script call ran
// more commands, asked for more rows of sorted sets or wrote more.
func BoundScripts(t testing.TB, addr string, commands, asked, written int) (check func(t testing.TB)) {
	t.Helper()
	stop := ScriptCalls(t, addr)
	return func(t testing.TB) {
		t.Helper()
		all := 0
		for _, call := range stop() {
			rows, wrote := 0, 0
			for _, args := range call {
				if args[0] == "zadd" || args[0] == "zrem" {
					wrote += Rows(args)
				} else {
					rows += Rows(args)
				}
			}
			all += len(call)
			require.LessOrEqual(t, len(call), commands, "commands of one script call")
			require.LessOrEqual(t, rows, asked, "rows that one script call asked for")
			require.LessOrEqual(t, wrote, written, "rows that one script call wrote")
		}
		require.Positive(t, all)
	}
}

// Rows returns how many rows of a sorted set a command may touch.
func Rows(args []string) int {
	switch args[0] {
	case "zadd":
		return (len(args) - 2) / 2
	case "zrem", "zmscore":
		return len(args) - 2
	case "zrange", "zrevrange", "zremrangebyrank":
		from, fromErr := strconv.Atoi(args[2])
		to, toErr := strconv.Atoi(args[3])
		if fromErr == nil && toErr == nil && (from < 0) == (to < 0) && to >= from {
			return to - from + 1
		}
	case "zrangebyscore", "zrevrangebyscore":
		if i := slices.IndexFunc(args, func(arg string) bool { return strings.EqualFold(arg, "limit") }); i > 0 {
			if n, err := strconv.Atoi(args[i+2]); err == nil && n >= 0 {
				return n
			}
		}
	case "time", "zcount", "zcard", "zscore", "exists", "type", "pttl", "pexpire", "pexpireat", "persist", "unlink", "rename",
		"get", "set", "incrby", "decrby", "hget", "hmget", "hset", "hdel":
		return 0
	}
	return math.MaxInt32
}

// A line of MONITOR begins with the time, and the database and the client, or "lua", in brackets. The quoted arguments follow.
var monitored = regexp.MustCompile(`^\+(\d+)\.(\d+) \[\d+ (.*?)\] `)

// ParseMonitor reads a line of MONITOR.
func ParseMonitor(line string) (Ran, error) {
	parts := monitored.FindStringSubmatch(line)
	if parts == nil {
		return Ran{}, fmt.Errorf("no line of MONITOR: %q", line)
	}
	s, secondsErr := strconv.ParseInt(parts[1], 10, 64)
	us, microsErr := strconv.ParseInt(parts[2], 10, 64)
	err := errors.Join(secondsErr, microsErr)
	ran := Ran{At: time.Unix(s, us*1000), InScript: parts[3] == "lua"}
	for rest := strings.TrimSpace(line[len(parts[0]):]); rest != "" && err == nil; {
		var quoted, arg string
		if quoted, err = strconv.QuotedPrefix(rest); err == nil {
			arg, err = strconv.Unquote(quoted)
		}
		ran.Args = append(ran.Args, arg)
		rest = strings.TrimSpace(rest[len(quoted):])
	}
	if len(ran.Args) > 0 {
		ran.Args[0] = strings.ToLower(ran.Args[0])
	}
	return ran, err
}
