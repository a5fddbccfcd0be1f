package script_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/lane"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// errHangs is a fault: no answer comes while one is waited for.
var errHangs = errors.New("hangs")

// scene is a client whose scripts meet faults.
type scene struct {
	*redistest.Trips

	rdb redistest.Client
}

// virtual runs test in a bubble. Scripts meet that fault, which gets the number of the attempt, from 1.
func virtual(t *testing.T, fault func(attempt int) error, test func(t *testing.T, s *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rdb, _ := redistest.Mini(t)
		s := &scene{&redistest.Trips{}, rdb}
		s.Fails = func(attempt, _ int) error {
			err := fault(attempt)
			if errors.Is(err, errHangs) {
				time.Sleep(3 * time.Second) // as long as go-redis waits by default
				err = context.DeadlineExceeded
			}
			return err
		}
		rdb.AddHook(redistest.Hook(s.Send))
		defer time.Sleep(time.Minute) // for what hangs
		test(t, s)
	})
}

// meets returns faults of one attempt after the other, of which the last goes on.
func meets(faults ...error) func(attempt int) error {
	return func(attempt int) error { return faults[min(attempt, len(faults))-1] }
}

// calls are the ways to call incr: what may run once only, what may be repeated, and what reads.
var calls = map[string]func(ctx context.Context, on *lane.Lanes) (any, error){
	"once": func(ctx context.Context, on *lane.Lanes) (any, error) {
		return on.Once(ctx, limitertest.Incr, script.KeysOf("key"))
	},
	"repeat": func(ctx context.Context, on *lane.Lanes) (any, error) {
		return repeatOn(ctx, on, time.Time{}, func(all []any, _ script.Attempt) []any { return all })
	},
	"read": func(ctx context.Context, on *lane.Lanes) (any, error) {
		return on.Read(ctx, limitertest.Incr, script.KeysOf("key"))
	},
}

func newConn(rdb script.Redis) *lane.Lanes {
	return lane.New(script.NewConn(rdb, redistest.Patience(script.DefaultTimeout)), nil)
}

func repeatOn(ctx context.Context, to *lane.Lanes, since time.Time, args script.ArgumentsFunc) (any, error) {
	call := script.Call{Script: limitertest.Incr, Keys: script.KeysOf("key"), Repeat: true, Args: args, Since: since}
	return to.Run(ctx, &call)
}

func closed(t *testing.T, rdb redistest.Client) redistest.Client {
	t.Helper()
	t.Cleanup(func() { assert.NoError(t, rdb.Close()) })
	return rdb
}

// go-redis repeats what it sends unless a command says NoRetry, and a pipeline
// if any of its commands does. If that ceases, scripts run twice.
func TestGoRedisRepeatsNothing(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	plain := server.Client(t, nil)
	require.NoError(t, plain.ScriptLoad(t.Context(), limitertest.Incr.Source).Err())
	pipelined := func(others ...string) func(rdb redistest.Client, key string) error {
		return func(rdb redistest.Client, key string) error {
			pipe := rdb.Pipeline()
			for _, other := range append(others, "") {
				require.NoError(t, pipe.Process(t.Context(), script.NewCommand(t.Context(), []any{"evalsha", limitertest.Incr.SHA, 1, key + other}, 3)))
			}
			_, err := pipe.Exec(t.Context())
			return err
		}
	}
	for name, send := range map[string]func(rdb redistest.Client, key string) error{
		"alone": func(rdb redistest.Client, key string) error {
			_, err := newConn(rdb).Once(t.Context(), limitertest.Incr, script.KeysOf(key))
			return err
		},
		"in a pipeline":           pipelined(),
		"in a pipeline of others": pipelined(":other"),
	} {
		for kind, dial := range map[string]func(*testing.T, *redistest.Proxy) redistest.Client{
			"Client": func(t *testing.T, p *redistest.Proxy) redistest.Client {
				return p.Client(t, &redistest.Options{MaxRetries: 5})
			},
			"Ring": func(t *testing.T, p *redistest.Proxy) redistest.Client {
				return closed(t, redistest.NewRing(map[string]string{"one": p.Addr()}, &redistest.Options{MaxRetries: 5}))
			},
			"ClusterClient": func(t *testing.T, p *redistest.Proxy) redistest.Client {
				slots := []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: p.Addr()}}}}
				return closed(t, redistest.NewCluster(slots, nil))
			},
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				proxy := redistest.StartProxy(t, server.Addr())
				rdb := dial(t, proxy)
				key := redistest.Name(t)
				var arrived atomic.Int32
				proxy.OnCommand(func(c redistest.Command) redistest.Action {
					if !c.Contains(key) || c.Name() != "evalsha" || strings.HasSuffix(c.Args[3], ":other") {
						return redistest.Pass
					}
					arrived.Add(1)
					return redistest.DropAnswer
				})
				require.Error(t, send(rdb, key))
				proxy.Settle(t)
				assert.EqualValues(t, 1, arrived.Load())
				assert.Equal(t, "1", plain.Get(t.Context(), key).Val(), "runs of the script")
			})
		}
	}
}

func TestRefusedUnrunIsRepeated(t *testing.T) {
	t.Parallel()
	dial := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	limitertest.Each(t, limitertest.Rows[error](
		redistest.AnswerError("LOADING Redis is loading the dataset in memory"),
		redistest.AnswerError("READONLY You can't write against a read only replica."),
		redistest.AnswerError("NOREPLICAS Not enough good replicas to write."),
		redistest.AnswerError("ERR max number of clients reached"),
		dial, fmt.Errorf("wrapped: %w", dial), redis.ErrPoolTimeout, redis.ErrPoolExhausted,
	), func(t *testing.T, refusal error) {
		virtual(t, meets(refusal, refusal, refusal, nil), func(t *testing.T, s *scene) {
			start := time.Now()
			assert.Equal(t, int64(1), limitertest.Must(calls["once"](t.Context(), newConn(s.rdb)))(t))
			assert.Len(t, s.Sizes(), 5, "three refusals, an unknown script and its run")
			assert.Positive(t, time.Since(start), "it waits between")
			assert.Less(t, time.Since(start), 2*time.Second)
		})
		virtual(t, meets(refusal), func(t *testing.T, s *scene) {
			start := time.Now()
			_, err := repeatOn(t.Context(), newConn(s.rdb), time.Time{}, func(all []any, a script.Attempt) []any {
				assert.Negative(t, a.Age)
				return all
			})
			require.ErrorIs(t, err, refusal)
			require.NotErrorIs(t, err, script.ErrLost)
			switch took := time.Since(start); script.Code(refusal) {
			case "LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN":
				assert.Greater(t, took, callTime-patientBackoff, "servers take their time to change places")
				assert.LessOrEqual(t, took, callTime)
				assert.Less(t, len(s.Sizes()), 100)
			default:
				assert.Len(t, s.Sizes(), 5, "it gives up")
			}
		})
	})
}

// The results of errors that Redis answered, of lost answers, and of answers that say that the script did not run.
func TestFaults(t *testing.T) {
	t.Parallel()
	type errs []error
	type row struct {
		call        string
		faults      errs // of one attempt after the other; the last goes on
		want, never errs // what the error is and is not; without want the script is answered
		least, most int  // attempts
	}
	refused, noPermission := redistest.AnswerError("READONLY You can't write against a read only replica."), redistest.AnswerError("NOPERM No permissions to access a key")
	rows := map[string]row{}
	for _, text := range []string{
		"NOTINIT no rate is set", "CORRUPT 1 rate is missing", "WRONGTYPE Operation against a key", "OOM command not allowed",
		"ERR unknown command", "NOAUTH Authentication required.", "NOPERM no permissions", "CROSSSLOT Keys in request",
		"ERR Error running script (call to f_1): @user_script:1: user_script:1: attempt to index a nil value",
	} {
		rows["read, "+text] = row{"read", errs{redistest.AnswerError(text)}, errs{redistest.AnswerError(text)}, errs{script.ErrLost}, 1, 1}
	}
	maps.Copy(rows, map[string]row{
		"once, EVAL is lost": {"once", errs{nil, io.EOF}, errs{script.ErrLost, io.EOF}, nil, 2, 2},
		// Once an attempt may have run, a refusal of the next says nothing of it.
		"repeat, lost and refused": {"repeat", errs{io.EOF, refused}, errs{script.ErrLost, refused}, nil, 6, 100},
		"read, lost and refused": {
			"read", errs{io.EOF, refused}, errs{refused, limit.ErrUnavailable}, errs{limit.ErrUnknownOutcome}, 6, 100,
		},
		"read, lost and an error": {
			"read", errs{io.EOF, noPermission}, errs{noPermission}, errs{limit.ErrUnavailable, limit.ErrUnknownOutcome}, 2, 2,
		},
	})
	for _, fault := range []error{
		io.EOF, context.DeadlineExceeded,
		&net.OpError{Op: "read", Err: io.ErrUnexpectedEOF}, &net.OpError{Op: "write", Err: io.ErrClosedPipe},
	} {
		text := fault.Error()
		rows["once, "+text] = row{"once", errs{fault}, errs{script.ErrLost, fault}, nil, 1, 1}
		rows["repeat, "+text] = row{"repeat", errs{fault}, errs{script.ErrLost, fault}, nil, 5, 5}
		// It makes no difference whether a read has run.
		rows["read, "+text] = row{
			"read", errs{fault}, errs{fault, limit.ErrUnavailable}, errs{script.ErrLost, limit.ErrUnknownOutcome}, 5, 5,
		}
		rows["read, twice "+text] = row{"read", errs{fault, fault, nil}, nil, nil, 4, 4}
	}
	limitertest.Each(t, rows, func(t *testing.T, tt row) {
		virtual(t, meets(tt.faults...), func(t *testing.T, s *scene) {
			reply, err := calls[tt.call](t.Context(), newConn(s.rdb))
			if tt.want == nil {
				require.NoError(t, err)
				assert.Equal(t, int64(1), reply)
			}
			if len(tt.faults) == 1 && script.IsAnswer(tt.faults[0]) {
				require.Equal(t, tt.faults[0], err, "as it is")
			}
			for _, want := range tt.want {
				require.ErrorIs(t, errors.Join(err, script.Outage(err)), want)
			}
			for _, never := range tt.never {
				require.NotErrorIs(t, errors.Join(err, script.Outage(err)), never)
			}
			assert.GreaterOrEqual(t, len(s.Sizes()), tt.least)
			assert.LessOrEqual(t, len(s.Sizes()), tt.most)
		})
	})
}

func TestContextEndsTheRepeating(t *testing.T) {
	t.Parallel()
	refused := redistest.AnswerError("LOADING Redis is loading the dataset in memory")
	for _, fault := range []error{refused, io.EOF} {
		var end context.CancelFunc
		virtual(t, func(int) error {
			time.AfterFunc(time.Millisecond, end)
			return fault
		}, func(t *testing.T, s *scene) {
			ctx, cancel := context.WithCancel(t.Context())
			end = cancel
			start := time.Now()
			_, err := calls["repeat"](ctx, newConn(s.rdb))
			require.ErrorIs(t, err, context.Canceled)
			assert.Equal(t, errors.Is(fault, io.EOF), errors.Is(err, limit.ErrUnknownOutcome))
			assert.Len(t, s.Sizes(), 1)
			assert.Equal(t, time.Millisecond, time.Since(start))
		})
	}
}

func TestCode(t *testing.T) {
	t.Parallel()
	const (
		hash    = "cf8b7f0b8b3d0bd05b6db0f0c5e8d76bbf0a6d80"
		running = "ERR Error running script (call to f_" + hash + "): @user_script:1: " // Redis 6
		behind  = " script: " + hash                                                    // Redis 7
		wrong   = "WRONGTYPE Operation against a key holding the wrong kind of value"
		full    = "OOM command not allowed when used memory > 'maxmemory'."
	)
	for text, want := range map[string]string{
		"NOTINIT no rate is set":                "NOTINIT",
		"CORRUPT 4 member has no layout":        "CORRUPT",
		"WRONGTYPE Operation against a key":     "WRONGTYPE",
		"OOM":                                   "OOM",
		"":                                      "",
		wrong + behind + ", on @user_script:1.": "WRONGTYPE",
		full + behind + ", on @user_script:1.":  "OOM",
		"ERR user_script:1: Script attempted to access nonexistent global variable 'x'" + behind: "ERR",
		"ERR READONLY You can't write against a read only replica.":                              "READONLY", // a proxy
		"ERR this is READONLY now": "ERR",
		running + wrong:            "WRONGTYPE",
		running + "-" + full:       "OOM",
		running + "-READONLY You can't write against a read only replica.":                  "READONLY",
		running + "@user_script: 1: -CLUSTERDOWN Hash slot not served":                      "CLUSTERDOWN",
		running + "user_script:1: attempt to perform arithmetic on a nil value (local 'x')": "ERR",
		// miniredis.
		"ERR Error compiling script (new function): :59: " + wrong +
			" stack traceback:  [G]: in function 'call'  :59: in main chunk  [G]: ?": "WRONGTYPE",
	} {
		assert.Equal(t, want, script.Code(redistest.AnswerError(text)), text)
	}
}

// callTime is how long a call may take: its caller, which waits no longer than the question's time, then gets its result.
const callTime = script.DefaultTimeout - script.DefaultTimeout/32

// patientBackoff is the longest time between attempts that are refused by servers that change places, or are few.
const patientBackoff = 128 * time.Millisecond

// No call goes unanswered for longer than its time, whatever the server does, and
// though the client of go-redis is one that can't interrupt a read.
func TestCall_EndsInTime(t *testing.T) {
	t.Parallel()
	refused := redistest.AnswerError("LOADING Redis is loading the dataset in memory")
	for name, wrap := range map[string]func(redistest.Client) script.Redis{
		"Client":  func(rdb redistest.Client) script.Redis { return rdb },
		"wrapped": func(rdb redistest.Client) script.Redis { return struct{ script.Redis }{rdb} },
	} {
		for _, fault := range []error{errHangs, refused} {
			// The rest of the call's time: all, or less if it has waited before.
			for _, within := range []time.Duration{callTime, time.Second, 200 * time.Millisecond} {
				t.Run(fmt.Sprint(name, " ", fault, " ", within), func(t *testing.T) {
					t.Parallel()
					virtual(t, meets(fault), func(t *testing.T, s *scene) {
						start := time.Now()
						_, err := repeatOn(t.Context(), newConn(wrap(s.rdb)), start.Add(within-callTime), func(all []any, _ script.Attempt) []any { return all })
						require.Error(t, err)
						hangs := errors.Is(fault, errHangs)
						assert.Equal(t, hangs, errors.Is(err, script.ErrLost))
						assert.LessOrEqual(t, time.Since(start), within)
						assert.Greater(t, time.Since(start), within-patientBackoff)
						if hangs {
							assert.LessOrEqual(t, len(s.Sizes()), 3, "an attempt has a third of the time")
						}
					})
				})
			}
		}
	}
}

// A script that must be called again has its time from then on, and its token in each attempt.
func TestCall_ContinuedHasNewTimeAndToken(t *testing.T) {
	t.Parallel()
	pages := limitertest.NewScript(`local n = redis.call('INCR', KEYS[1])
if n == 6 then return {ARGV[1], ARGV[2]} end
return {'again', 'token' .. n, n}`)
	virtual(t, func(attempt int) error {
		if attempt > 2 { // not for the first, nor for its EVAL
			time.Sleep(900 * time.Millisecond)
		}
		return nil
	}, func(t *testing.T, s *scene) {
		var rest []any
		call := script.Call{
			Script: pages, Keys: script.KeysOf("key"), Args: script.Paged{"first"},
			Continued: func(_ string, all []any) (more bool, err error) {
				rest = append(rest, all...)
				return true, nil
			},
		}
		assert.Equal(t, []any{"first", "token5"}, limitertest.Must(newConn(s.rdb).Run(t.Context(), &call))(t))
		assert.Equal(t, []any{int64(1), int64(2), int64(3), int64(4), int64(5)}, rest)
	})
	virtual(t, meets(nil), func(t *testing.T, s *scene) {
		enough := errors.New("enough")
		call := script.Call{
			Script: pages, Keys: script.KeysOf("key"), Args: script.Paged{"first"},
			Continued: func(string, []any) (more bool, err error) { return false, enough },
		}
		require.ErrorIs(t, limitertest.Second(newConn(s.rdb).Run(t.Context(), &call)), enough)
		assert.Len(t, s.Sizes(), 2)
	})
}

// begun returns a call that has begun, and its Conn to a server which nothing is sent to.
func begun() (*reloads, *script.Conn, *script.Call) {
	rdb, call := &reloads{}, &script.Call{Repeat: true}
	conn := script.NewConn(rdb, script.DefaultTimeout)
	call.Begin(conn)
	return rdb, conn, call
}

// reloads counts how often it is asked to find out again which master has which slot.
type reloads struct {
	script.Redis
	count int
}

func (r *reloads) ReloadState(context.Context) { r.count++ }

func TestCall_ReloadsClusterOfAServerThatIsGone(t *testing.T) {
	t.Parallel()
	for op, want := range map[string]int{"dial": 1, "read": 0} {
		rdb, conn, call := begun()
		done, _ := call.Ended(conn, nil, &net.OpError{Op: op, Err: io.EOF})
		assert.False(t, done)
		assert.Equal(t, want, rdb.count, op)
	}
}

func TestTogetherAndApart(t *testing.T) {
	t.Parallel()
	single := script.NewConn(redistest.NewClient("127.0.0.1:0", nil), script.DefaultTimeout)
	cluster, ring := script.NewConn(redistest.NewCluster(nil, nil), script.DefaultTimeout), script.NewConn(downRing{}, script.DefaultTimeout)
	for _, tc := range []struct {
		a, b string
		tag  bool // they have the same hash tag, or are the same
	}{
		{"a", "b", false}, {"a", "a", true}, {"{t}a", "b{t}", true}, {"{t}a{u}", "{t}b", true}, {"{}a", "{}b", false}, {"{a", "{b", false},
		{"a}", "b}", false}, {"{{a}}x", "{{a}}y", true},
	} {
		assert.True(t, single.Together(tc.a, tc.b))
		assert.Equal(t, tc.tag, cluster.Together(tc.a, tc.b), "%s %s", tc.a, tc.b)
		assert.Equal(t, tc.tag, ring.Together(tc.a, tc.b))
		assert.Equal(t, !tc.tag, ring.Apart(tc.a, tc.b), "no shard is known to have others")
		assert.False(t, cluster.Apart(tc.a, tc.b), "the cluster rejects them")
	}
}

// downRing has no shard that is up.
type downRing struct{ script.Redis }

func (downRing) GetShardClientForKey(string) (*redis.Client, error) { return nil, redis.ErrClosed }

// hungCluster never finds out which master has a key.
type hungCluster struct{ script.Redis }

func (hungCluster) MasterForKey(context.Context, string) (*redis.Client, error) {
	time.Sleep(time.Hour)
	return nil, redis.ErrClosed
}

// Callers with little time each wait together as long as one who has time.
func TestMaster_CallersWithLittleTimeWaitTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn := script.NewConn(hungCluster{}, script.DefaultTimeout)
		start := time.Now()
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			assert.Nil(t, conn.Master(ctx, "key"))
			cancel()
		}
		assert.LessOrEqual(t, time.Since(start), 200*time.Millisecond)
		time.Sleep(time.Hour)
	})
}

// A wrapper that embeds a client has its Options; of another nothing is known.
func TestNewConn_KnowsTheOptionsOfAWrapper(t *testing.T) {
	t.Parallel()
	one := redis.NewClient(&redis.Options{Addr: "127.0.0.1:0", PoolSize: 7, ContextTimeoutEnabled: true})
	many := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:0"}, PoolSize: 8})
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:0"}, PoolSize: 9})
	type facts struct {
		pool   int
		inline bool
	}
	for _, c := range []struct {
		rdb  script.Redis
		want facts
	}{
		{struct{ *redis.Client }{one}, facts{7, true}},
		{struct{ *redis.ClusterClient }{many}, facts{8, false}},
		{struct{ *redis.Ring }{ring}, facts{9, false}},
		{struct{ script.Redis }{one}, facts{}},
	} {
		conn := script.NewConn(c.rdb, script.DefaultTimeout)
		assert.Equal(t, c.want, facts{conn.PoolSize, conn.Inline}, "%T", c.rdb)
	}
}

// A step's time begins with the answer before it. But a caller whose permits may be taken gets to know in time.
func TestCall_EachStepHasTimeButInDoubtNoMoreThanTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, conn, call := begun()
		time.Sleep(time.Second)
		done, _ := call.Ended(conn, []any{"again", "token"}, nil)
		assert.False(t, done)
		time.Sleep(script.DefaultTimeout / 2)
		assert.False(t, call.Overdue(conn, time.Now()))
		time.Sleep(script.DefaultTimeout / 2)
		assert.True(t, call.Overdue(conn, time.Now()))
		_, conn, call = begun()
		done, _ = call.Ended(conn, nil, io.EOF)
		assert.False(t, done)
		for range 5 {
			assert.False(t, call.Overdue(conn, time.Now()))
			call.Begin(conn)
			time.Sleep(script.DefaultTimeout / 3)
			done, _ = call.Ended(conn, []any{"again", "token"}, nil)
			assert.False(t, done)
		}
		time.Sleep(script.DefaultTimeout / 3)
		assert.True(t, call.Overdue(conn, time.Now()))
	})
}
