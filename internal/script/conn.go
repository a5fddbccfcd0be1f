package script

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/limit"
)

// Redis is the part of a go-redis client that this package uses.
type Redis interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
}

// Master is the part of a client of one server that this package uses. Two are equal if they are the same client.
//
// With go-redis v9.23 the compiler makes 1,500 functions in each package that names *redis.Client,
// be it through the fields and methods of types that it uses. So types here name interfaces.
type Master interface {
	Pipeline() redis.Pipeliner
}

// DefaultTimeout bounds how long a call may go unanswered, all its attempts included, unless the
// application sets another bound.
const DefaultTimeout = 3 * time.Second

// Conn sends commands to Redis, each within bounded time.
type Conn struct {
	Timeout        time.Duration // how long a call may go unanswered
	AttemptTimeout time.Duration // of an attempt that can be repeated: two more fit in a call's time
	ProbePace      time.Duration // how long a server may owe an answer before another command tests whether it answers at all
	PoolSize       int           // most connections to one server, 0 if unknown
	Inline         bool          // commands end in time on their caller's goroutine: go-redis passes deadlines on to the connection

	rdb     Redis
	master  func(ctx context.Context, key string) (Master, error) // nil if there is only one server
	sharded bool                                                  // by a Ring
	stays   bool                                                  // the client does not follow keys to other servers

	// callTime is after how long a call is overdue: before Timeout, so that a caller whose own time is no
	// shorter gets the error of the last attempt.
	callTime time.Duration

	proxied  atomic.Bool     // single commands go as pipelines too: see Command.SetErr
	known    atomic.Bool     // the client knows which master has which slot
	mu       sync.Mutex      // guards what follows
	learning <-chan struct{} // closed when callers need not wait for that; nil if it is not being asked
	failed   bool            // it did not find out when it was last asked
}

// NewConn returns a Conn on rdb whose calls are answered within timeout.
func NewConn(rdb Redis, timeout time.Duration) *Conn {
	c := &Conn{rdb: rdb, Timeout: timeout, AttemptTimeout: timeout / 3, ProbePace: timeout / 9, callTime: timeout - timeout/32}
	if c.readOptions() != nil {
		return c // it sends nothing
	}
	switch rdb := rdb.(type) {
	case interface {
		MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	}:
		c.master = func(ctx context.Context, key string) (Master, error) { return rdb.MasterForKey(ctx, key) }
	case interface {
		GetShardClientForKey(key string) (*redis.Client, error)
	}:
		c.master = func(_ context.Context, key string) (Master, error) { return rdb.GetShardClientForKey(key) }
		c.sharded = true
		c.known.Store(true)
	}
	return c
}

// CheckClient returns limit.ErrInvalidConfig if the client is nil, or wraps one that is.
func CheckClient(rdb Redis) error { return (&Conn{rdb: rdb}).readOptions() }

// readOptions reads the Options that go-redis' clients have, and wrappers of them.
func (c *Conn) readOptions() (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: New: the Redis client wraps one that is nil: %v", limit.ErrInvalidConfig, v)
		}
	}()
	if c.rdb == nil || reflect.ValueOf(c.rdb).Kind() == reflect.Pointer && reflect.ValueOf(c.rdb).IsNil() {
		return fmt.Errorf("%w: New: the Redis client is nil", limit.ErrInvalidConfig)
	}
	switch rdb := c.rdb.(type) {
	case interface{ Options() *redis.Options }:
		opt := rdb.Options()
		c.PoolSize, c.stays = opt.PoolSize, true
		c.Inline = opt.ContextTimeoutEnabled && opt.ReadTimeout >= 0 && opt.WriteTimeout >= 0
	case interface{ Options() *redis.ClusterOptions }:
		c.PoolSize = rdb.Options().PoolSize
	case interface{ Options() *redis.RingOptions }:
		c.PoolSize, c.stays = rdb.Options().PoolSize, true
	}
	return nil
}

// IsRing reports whether the client is a redis.Ring, or wraps one.
//
//go:noinline // a caller would name the type
func IsRing(rdb Redis) bool {
	_, is := rdb.(interface {
		GetShardClientForKey(key string) (*redis.Client, error)
	})
	return is
}

// Master returns the client of the master that has a key; nil if there is one server only, or if it is unknown. A new
// cluster client has to find out which master has which slot; the first callers wait for that, up to maxLearn.
func (c *Conn) Master(ctx context.Context, key string) Master {
	if c.master == nil {
		return nil
	}
	if !c.known.Load() {
		c.learn(ctx, key)
	}
	return c.KnownMaster(ctx, key)
}

// KnownMaster is Master without waiting.
func (c *Conn) KnownMaster(ctx context.Context, key string) Master {
	if c.master == nil || !c.known.Load() {
		return nil
	}
	master, err := c.master(ctx, key)
	if err != nil || master == (*redis.Client)(nil) {
		return nil // sending the command finds out again
	}
	return master
}

// maxLearn is how long callers wait at most, from the first of them on, for a new cluster client to
// find out which master has which slot: it asks one server after another, each for up to a read timeout.
const maxLearn = 100 * time.Millisecond

// learn makes the client find that out. Once that was slow or failed, it goes on in the background.
func (c *Conn) learn(ctx context.Context, key string) {
	c.mu.Lock()
	learning := c.learning
	if learning == nil {
		wait, end := context.WithTimeout(context.Background(), maxLearn)
		if c.failed {
			end()
		}
		learning, c.learning = wait.Done(), wait.Done()
		go func() {
			defer end()
			err := errPanicked
			defer func() {
				_ = recover() // a hook of the Redis client's may panic
				c.mu.Lock()
				defer c.mu.Unlock()
				c.known.Store(err == nil)
				c.failed, c.learning = err != nil, nil
			}()
			_, err = c.master(context.WithoutCancel(ctx), key)
		}()
	}
	c.mu.Unlock()
	select {
	case <-learning:
	case <-ctx.Done():
	}
}

// Cluster reports whether the servers are a cluster, which allows only keys of one slot in a script.
func (c *Conn) Cluster() bool { return c.master != nil && !c.sharded }

// Together reports whether two keys are surely on one server, so that one script may take both.
func (c *Conn) Together(a, b string) bool { return c.master == nil || HashTag(a) == HashTag(b) }

// Apart reports whether two keys are not known to be on one shard of a Ring: its shards know nothing of each other, so
// that none rejects keys of another. It calls the program's hash function.
func (c *Conn) Apart(a, b string) bool {
	if !c.sharded || c.Together(a, b) {
		return false
	}
	master := c.KnownMaster(context.Background(), a)
	return master == nil || master != c.KnownMaster(context.Background(), b)
}

// HashTag returns the part of a key that decides where a cluster keeps it.
func HashTag(key string) string {
	if _, rest, found := strings.Cut(key, "{"); found {
		if tag, _, closed := strings.Cut(rest, "}"); closed && tag != "" {
			return tag
		}
	}
	return key
}

// Send sends commands, several as one pipeline, and returns when each has its answer or an error. If
// the Conn is Inline, that is before ctx's deadline.
func (c *Conn) Send(ctx context.Context, cmds ...Command) {
	if len(cmds) > 1 || c.proxied.Load() {
		c.exec(ctx, c.rdb.Pipeline(), cmds)
	} else if c.rdb.Process(ctx, cmds[0]) != nil {
		c.refuseMoved(cmds)
		if _, proxied := errors.AsType[readOnly](cmds[0].Err()); proxied {
			c.proxied.Store(true)
		}
	}
}

// refuseMoved replaces answers that send the client to another node of a cluster, if it does not follow them.
func (c *Conn) refuseMoved(cmds []Command) {
	for _, cmd := range cmds {
		err := cmd.Err()
		if c.stays && err != nil && (redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK")) {
			cmd.SetErr(fmt.Errorf("%w: the server is a node of a cluster and does not have the keys, and the client knows only this node: "+
				"make the client by redis.NewClusterClient: %w", limit.ErrUnsupported, err))
		}
	}
}

// exec sends commands as a pipeline.
func (c *Conn) exec(ctx context.Context, pipe redis.Pipeliner, cmds []Command) {
	for _, cmd := range cmds {
		_ = pipe.Process(ctx, cmd)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		if IsAnswer(err) { // it is one to another command than those without an answer
			err = errors.New(err.Error())
		}
		for _, cmd := range cmds {
			if cmd.Err() == nil && cmd.Val() == nil {
				cmd.SetErr(errors.Join(errUnanswered, err))
			}
		}
		c.refuseMoved(cmds)
	}
}

// ErrNoMaster is for a command to one master if that master is unknown.
var ErrNoMaster = errors.New("the client knows no master for the keys")

// SendTo is Send by one connection to that master of a cluster or shard of a Ring; nil if there is one server only.
func (c *Conn) SendTo(ctx context.Context, master Master, cmds ...Command) {
	switch {
	case c.master == nil:
		c.Send(ctx, cmds...)
	case master == nil:
		for _, cmd := range cmds {
			cmd.SetErr(ErrNoMaster)
		}
	default:
		c.exec(ctx, master.Pipeline(), cmds)
	}
}

// errUnanswered is for a command of a pipeline without an answer or an error.
var errUnanswered = errors.New("the pipeline gave the command no answer")

var errPanicked = errors.New("a hook of the Redis client panicked")

// Panicked is the error for callers if a hook of the Redis client panicked on another goroutine than
// theirs. Such a call is not repeated.
func Panicked(value any) error { return fmt.Errorf("%w: %v", errPanicked, value) }

// Reload makes a cluster client find out again which master has which slot: by itself it would take
// up to a minute to notice that a master is gone.
func (c *Conn) Reload() {
	if cluster, ok := c.rdb.(interface{ ReloadState(ctx context.Context) }); ok {
		cluster.ReloadState(context.Background())
	}
}
