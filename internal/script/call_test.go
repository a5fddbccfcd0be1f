package script_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// callTime is how long a call may take: its caller, which waits no longer than the question's
// time, then gets its result.
const callTime = script.DefaultTimeout - script.DefaultTimeout/32

// patientBackoff is the longest time between attempts that are refused by servers
// that change places, or are few.
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
		reply, err := newConn(s.rdb).Run(t.Context(), &call)
		require.NoError(t, err)
		assert.Equal(t, []any{"first", "token5"}, reply)
		assert.Equal(t, []any{int64(1), int64(2), int64(3), int64(4), int64(5)}, rest)
	})
	virtual(t, nil, func(t *testing.T, s *scene) {
		enough := errors.New("enough")
		call := script.Call{
			Script: pages, Keys: script.KeysOf("key"), Args: script.Paged{"first"},
			Continued: func(string, []any) (more bool, err error) { return false, enough },
		}
		_, err := newConn(s.rdb).Run(t.Context(), &call)
		require.ErrorIs(t, err, enough)
		assert.Len(t, s.Sizes(), 2)
	})
}

// begun returns a call that has begun, and its Conn, whose server nothing is sent to.
func begun() (*script.Conn, *script.Call) {
	conn, call := script.NewConn(&reloads{}, script.DefaultTimeout), &script.Call{Repeat: true}
	call.Begin(conn)
	return conn, call
}

// A step's time begins with the answer before it: it may have to wait until it is sent.
func TestCall_ContinuedIsOverdueThoughNotSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn, call := begun()
		time.Sleep(time.Second)
		done, _ := call.Ended(conn, []any{"again", "token"}, nil)
		assert.False(t, done)
		time.Sleep(script.DefaultTimeout / 2)
		assert.False(t, call.Overdue(conn, time.Now()))
		time.Sleep(script.DefaultTimeout / 2)
		assert.True(t, call.Overdue(conn, time.Now()))
	})
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
		rdb := &reloads{}
		conn := script.NewConn(rdb, script.DefaultTimeout)
		call := script.Call{Repeat: true}
		call.Begin(conn)
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
		{"a", "b", false},
		{"a", "a", true},
		{"{t}a", "b{t}", true},
		{"{t}a{u}", "{t}b", true},
		{"{}a", "{}b", false},
		{"{a", "{b", false},
		{"a}", "b}", false},
		{"{{a}}x", "{{a}}y", true},
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

// Steps that are answered restart a call's time, but a caller whose permits may be taken gets to know in time.
func TestCall_InDoubtEndsWithinTwiceItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn, call := begun()
		done, _ := call.Ended(conn, nil, io.EOF)
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
