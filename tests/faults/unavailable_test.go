package faults_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// answered is an error that Redis answered.
type answered string

func (a answered) Error() string { return string(a) }

func (answered) RedisError() {}

// outages are errors that say that Redis did not decide, by whether it may have done
// what it was asked.
var outages = map[bool][]error{
	false: {
		answered("LOADING Redis is loading the dataset in memory"),
		answered("CLUSTERDOWN The cluster is down"),
		answered("CLUSTERDOWN Hash slot not served"),
		answered("READONLY You can't write against a read only replica."),
		answered("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
		answered("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk."),
		answered("NOREPLICAS Not enough good replicas to write."),
		answered("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."),
		answered("OOM command not allowed when used memory > 'maxmemory'."),
		answered("OOM command not allowed when used memory > 'maxmemory'. script: 5f, on @user_script:3."),
		answered("ERR Error running script (call to f_1): @user_script:3: @user_script: 3: -OOM command not allowed when used memory > 'maxmemory'."),
		answered("TRYAGAIN Multiple keys request during rehashing of slot"),
		answered("MOVED 3999 127.0.0.1:6381"),
		answered("ASK 3999 127.0.0.1:6381"),
		answered("ERR max number of clients reached"),
		redis.ErrPoolTimeout,
		redis.ErrPoolExhausted,
		&net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)},
		&net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "redis", IsNotFound: true}},
		errors.New("redis: all sentinels specified in configuration are unreachable"),
		fmt.Errorf("redis: all sentinels specified in configuration are unreachable: %w", io.EOF),
		errors.New("redis: all ring shards are down"),
		errors.New("redis: cluster has no nodes"),
	},
	true: {
		io.EOF,
		io.ErrUnexpectedEOF,
		&net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded},
		&net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)},
		&net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.EPIPE)},
		net.ErrClosed,
	},
}

// mistakes are answers that are no outage.
var mistakes = []error{
	answered("NOAUTH Authentication required."),
	answered("WRONGPASS invalid username-password pair or user is disabled."),
	answered("NOPERM this user has no permissions to run the 'evalsha' command"),
	answered("ERR unknown command 'evalsha'"),
	answered("ERR Error running script (call to f_1): @user_script:1: user_script:1: attempt to index a nil value"),
	answered("WRONGTYPE Operation against a key holding the wrong kind of value"),
	answered("CROSSSLOT Keys in request don't hash to the same slot"),
	redis.ErrClosed,
}

func TestWhatIsAnOutage(t *testing.T) {
	t.Parallel()
	eachQuestion(t, nil, func(t *testing.T, q *question) {
		var fault atomic.Pointer[error] // by which all commands fail
		q.rdb.AddHook(redistest.Hook(func(cmds []redis.Cmder, next func() error) error {
			if err := fault.Load(); err != nil {
				return redistest.Fail(cmds, *err)
			}
			return next()
		}))
		limitertest.MustAcquire(t, q.limiter("{key}"), 1)
		require.NoError(t, q.ask(t.Context(), "{key}"))
		fails := func(err error) error {
			fault.Store(&err)
			defer fault.Store(nil)
			start := time.Now()
			err = q.ask(t.Context(), "{key}")
			require.LessOrEqual(t, time.Since(start), 3*time.Second)
			return err
		}
		for ran, errs := range outages {
			for _, cause := range errs {
				err := fails(cause)
				require.ErrorIs(t, err, rratelimiter.ErrUnavailable)
				assert.Equal(t, ran && !isRead(q.name), errors.Is(err, rratelimiter.ErrUnknownOutcome), "%v", err)
				assert.ErrorIs(t, err, cause)
			}
		}
		for _, cause := range mistakes {
			err := fails(cause)
			require.Error(t, err)
			require.NotErrorIs(t, err, rratelimiter.ErrUnavailable)
			assert.NotErrorIs(t, err, rratelimiter.ErrUnknownOutcome)
		}
	})
}

func isRead(name string) bool {
	return limitertest.Reads[name] || strings.HasSuffix(name, ", Threshold")
}

// What a limiter or an argument is the cause of is no outage.
func TestMistakesAreNoOutages(t *testing.T) {
	t.Parallel()
	redistest.Virtual(t, func(t *testing.T, rdb *redis.Client) {
		l := limitertest.NewHandle(t, rdb)
		for name, call := range limitertest.Operations {
			err := call(t.Context(), l)
			require.NotErrorIs(t, err, rratelimiter.ErrUnavailable, name)
			require.NotErrorIs(t, err, rratelimiter.ErrUnknownOutcome, name)
		}
		l = limitertest.NewLimiter(t, rdb, limitertest.Every(2, time.Hour))
		for _, permits := range []int64{-1, 0, 3, 1 << 40} {
			_, err := l.TryAcquire(t.Context(), permits, time.Second)
			require.Error(t, err)
			require.NotErrorIs(t, err, rratelimiter.ErrUnavailable)
		}
	})
}
