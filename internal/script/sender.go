package script

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

const (
	// maxFlights is how many round trips of one lane are under way at most: with
	// two, one is on the wire while the answers of the other are read.
	maxFlights = 2

	// maxTogether is how many commands go in one pipeline, so that the first
	// answer does not wait for too many others.
	maxTogether = 512
)

// Sender sends commands. One that finds its lane free goes at once, by itself;
// those that come while round trips are under way go together, in one pipeline.
// On a cluster and on a Ring each master has a lane, so that a slow one delays
// only what goes to it.
type Sender struct {
	rdb    Redis
	master func(ctx context.Context, key string) (*redis.Client, error) // nil where there is one
	only   lane                                                         // where there is one

	mu    sync.Mutex
	lanes map[*redis.Client]*lane // those in use

	apart atomic.Bool // the server does not take keys of several limiters in one call
}

// lane is what goes to one master.
type lane struct {
	mu      sync.Mutex
	flights int
	waiting []*passenger
	users   int // guarded by the Sender's mutex
}

// passenger is a command that waits for a pipeline.
type passenger struct {
	ahead command // goes before it; without a Cmd there is none
	cmd   command
	keys  *Keys
	joint *Joint    // nil where it goes by itself
	ready chan bool // true: it is to send all that wait; false: it has its answer
}

// NewSender returns a Sender of commands to rdb.
func NewSender(rdb Redis) *Sender {
	s := &Sender{rdb: rdb}
	switch rdb := rdb.(type) {
	case interface {
		MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	}:
		s.master = rdb.MasterForKey
		s.apart.Store(true)
	case interface {
		GetShardClientForKey(key string) (*redis.Client, error)
	}:
		s.master = func(_ context.Context, key string) (*redis.Client, error) { return rdb.GetShardClientForKey(key) }
	}
	if s.master != nil {
		s.lanes = make(map[*redis.Client]*lane)
	}
	return s
}

// Sharded tells whether keys are spread over servers that know nothing of each
// other, so that none says which keys it should not have.
func (s *Sender) Sharded() bool {
	_, ring := s.rdb.(interface {
		GetShardClientForKey(key string) (*redis.Client, error)
	})
	return ring
}

// Together tells whether keys are surely on one server, so that one script may
// take them all.
func (s *Sender) Together(keys ...string) bool {
	switch rdb := s.rdb.(type) {
	case interface {
		GetShardClientForKey(key string) (*redis.Client, error)
	}:
		first, err := rdb.GetShardClientForKey(keys[0])
		return err == nil && !slices.ContainsFunc(keys, func(key string) bool {
			shard, err := rdb.GetShardClientForKey(key)
			return err != nil || shard != first
		})
	default:
		return s.master == nil || !slices.ContainsFunc(keys, func(key string) bool { return hashTag(key) != hashTag(keys[0]) })
	}
}

// hashTag returns the part of a key that a cluster finds its slot by.
func hashTag(key string) string {
	if _, rest, found := strings.Cut(key, "{"); found {
		if tag, _, closed := strings.Cut(rest, "}"); closed && tag != "" {
			return tag
		}
	}
	return key
}

// process sends a command, behind the one ahead of it if there is one, and
// returns when it has been answered. The error is the command's own; with a joint
// it may be errUndecided.
func (s *Sender) process(ctx context.Context, keys *Keys, ahead, cmd command, joint *Joint) error {
	l := &s.only
	if s.master != nil {
		master, err := s.master(ctx, keys.names[0])
		if err != nil {
			s.alone(ctx, ahead, cmd) // which knows how to find out anew
			return cmd.Err()
		}
		l = s.enter(master)
		defer s.leave(master, l)
	}

	l.mu.Lock()
	if l.flights < maxFlights {
		l.flights++
		l.mu.Unlock()
		defer l.land()
		s.alone(ctx, ahead, cmd)
		return cmd.Err()
	}
	p := &passenger{ahead, cmd, keys, joint, make(chan bool, 1)}
	l.waiting = append(l.waiting, p)
	l.mu.Unlock()
	if lead := <-p.ready; lead {
		s.fly(ctx, l, p)
	}
	return cmd.Err()
}

// land ends a flight. The first of those that wait takes its place, and takes
// the others along.
func (l *lane) land() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		l.flights--
		return
	}
	l.waiting[0].ready <- true
	l.waiting = slices.Delete(l.waiting, 0, 1)
}

// fly sends the command of p and all that wait.
func (s *Sender) fly(ctx context.Context, l *lane, p *passenger) {
	defer l.land()
	l.mu.Lock()
	n := min(len(l.waiting), maxTogether-1)
	others := slices.Clone(l.waiting[:n])
	l.waiting = slices.Delete(l.waiting, 0, n)
	l.mu.Unlock()
	if n == 0 {
		s.alone(ctx, p.ahead, p.cmd)
		return
	}
	defer func() {
		// A hook of the client's may have panicked.
		for _, o := range others {
			if o.cmd.Err() == nil && o.cmd.Val() == nil {
				o.cmd.SetErr(errUnanswered)
			}
			o.ready <- false
		}
	}()
	s.together(ctx, append([]*passenger{p}, others...))
}

// errUnanswered is for a command of a pipeline that nobody gave an answer or an
// error.
var errUnanswered = errors.New("the pipeline gave the command no answer")

// together sends the commands of all in one pipeline; calls that can be made
// jointly are.
func (s *Sender) together(ctx context.Context, all []*passenger) {
	apart, groups := all, []group(nil)
	if !s.apart.Load() {
		apart, groups = join(all)
	}
	cmds := make([]command, 0, len(apart)+len(groups))
	for _, g := range groups {
		cmds = append(cmds, g.command(ctx))
	}
	for _, p := range apart {
		if p.ahead.Cmd != nil {
			cmds = append(cmds, p.ahead)
		}
		cmds = append(cmds, p.cmd)
	}
	s.pipe(ctx, cmds)
	for i, g := range groups {
		s.tell(ctx, g, cmds[i])
	}
}

// alone sends one command, behind the one ahead of it if there is one.
func (s *Sender) alone(ctx context.Context, ahead, cmd command) {
	if ahead.Cmd == nil {
		_ = s.rdb.Process(ctx, cmd)
		return
	}
	s.pipe(ctx, []command{ahead, cmd})
}

// pipe sends commands in one pipeline. Each has an answer or an error then.
func (s *Sender) pipe(ctx context.Context, cmds []command) {
	pipe := s.rdb.Pipeline()
	for _, cmd := range cmds {
		_ = pipe.Process(ctx, cmd)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		for _, cmd := range cmds {
			if cmd.Err() == nil && cmd.Val() == nil {
				cmd.SetErr(errors.Join(errUnanswered, err))
			}
		}
	}
}

func (s *Sender) enter(master *redis.Client) *lane {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[master]
	if l == nil {
		l = &lane{}
		s.lanes[master] = l
	}
	l.users++
	return l
}

func (s *Sender) leave(master *redis.Client, l *lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.users--
	if l.users == 0 {
		delete(s.lanes, master)
	}
}
