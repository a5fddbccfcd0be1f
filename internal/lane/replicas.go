package lane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Replicas says how many replicas must have a grant before it counts, and how long a
// flight waits for them. The zero value waits for none.
type Replicas struct {
	Count int
	Wait  time.Duration
}

// AwaitReplicas has each flight wait for replicas. It is called before the first one.
func (l *Lanes) AwaitReplicas(r Replicas) {
	l.replicas = r
	l.only = newLane(l, nil)
}

// await returns the command that ends a flight: it waits until the replicas have what
// was written by the connection before. There is no Cmd where nobody waits for them.
func (r Replicas) await(ctx context.Context) script.Command {
	if r.Count == 0 {
		return script.Command{}
	}
	return script.NewCommand(ctx, []any{"wait", r.Count, r.Wait.Milliseconds()}, 0)
}

// confirmed returns why it is not known that the replicas have what was granted; nil
// where it is.
func (r Replicas) confirmed(wait script.Command) error {
	if err := wait.Err(); err != nil {
		return fmt.Errorf("%w: WAIT failed: %v", errNotReplicated, err) //nolint:errorlint // it must not pass for an answer to the call
	}
	if have, isCount := wait.Val().(int64); !isCount || have < int64(r.Count) {
		return fmt.Errorf("%w: %v of the %d replicas that WithReplicas asks for confirmed within %v", errNotReplicated, wait.Val(), r.Count, r.Wait)
	}
	return nil
}

var (
	errNotReplicated = fmt.Errorf("%w: nothing was taken, and the permits that were go back; ask again, and see that replicas are connected",
		limit.ErrNotReplicated)

	// errRepeated is for grants that WAIT can't speak of: it knows what its connection
	// has written, and a second repeat finds the grant and writes nothing.
	errRepeated = fmt.Errorf("%w: answers were lost too often to tell", errNotReplicated)
)

// Unreplicated returns why what the call was granted does not count; nil where it does.
func (c *Call) Unreplicated() error { return c.short }

// confirm tells the calls of a flight whether replicas have what they were granted.
func (l *Lane) confirm(f *flight) {
	if f.wait.Cmd == nil {
		return
	}
	short := l.replicas.confirmed(f.wait)
	if err := f.wait.Err(); err == nil || script.IsAnswer(err) {
		l.keepUp(short)
	}
	for _, c := range f.calls {
		if c.short = short; short == nil && c.Doubts() > 1 {
			c.short = errRepeated
		}
	}
}

// keptUp is how long replicas must have confirmed all before they are said to keep up.
const keptUp = time.Second

// keepUp takes note of whether the replicas confirm in time.
func (l *Lane) keepUp(short error) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	e := limit.Event{Kind: limit.ReplicasBehind, Err: short}
	switch before := l.behind; {
	case short != nil:
		if l.behind = now; !before.IsZero() {
			return
		}
	case before.IsZero() || now.Sub(before) < keptUp:
		return
	default:
		l.behind = time.Time{}
		e.Kind = limit.ReplicasKeepUp
	}
	l.lanes.observer.Happened(e)
}

// send sends the commands of a flight. One that waits for replicas goes to the master
// of its lane by one connection, past a cluster's client, which would send a command
// without a key to any node.
func (l *Lane) send(ctx context.Context, f *flight) {
	if l.replicas.Count > 0 {
		l.conn.SendTo(ctx, l.master, f.cmds...)
	} else {
		l.conn.Send(ctx, f.cmds...)
	}
}

// laneFor returns the lane by which a call goes on that was not answered: where flights
// go past a cluster's client, nobody else learns that the key is elsewhere now.
func (l *Lane) laneFor(c *Call, err error) *Lane {
	if l.replicas.Count == 0 || err == nil || l.conn.Single() {
		return l
	}
	if redis.HasErrorPrefix(err, "MOVED") || errors.Is(err, script.ErrNoMaster) {
		l.conn.Reload(context.Background())
	}
	return l.lanes.Of(context.Background(), c.Keys.Names()[0])
}
