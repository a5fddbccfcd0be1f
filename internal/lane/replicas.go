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

// Replicas sets how many replicas must have a grant before it counts, and how long a flight waits for
// them. The zero value waits for none.
type Replicas struct {
	Count int
	Wait  time.Duration
}

// AwaitReplicas makes each flight that decides wait for replicas. It is called before the first one.
func (l *Lanes) AwaitReplicas(r Replicas) {
	l.replicas = r
	l.only = newLane(l, nil)
}

var (
	errNotReplicated = fmt.Errorf("%w: the call does not count, and what it took goes back; ask again, and see that replicas are connected",
		limit.ErrNotReplicated)

	// errRepeated is for grants about which WAIT can say nothing: it knows what its connection has
	// written, and a second repeat finds the grant and writes nothing.
	errRepeated = fmt.Errorf("%w: answers were lost too often to know", errNotReplicated)
)

// confirm records in the calls of a flight whether replicas have their grants: its last command asks for that.
func (l *Lane) confirm(f *flight) {
	r := l.replicas
	var short error
	wait := f.cmds[len(f.cmds)-1]
	err := wait.Err()
	have, isCount := wait.Val().(int64)
	switch {
	case err != nil:
		short = fmt.Errorf("%w: WAIT failed: %v", errNotReplicated, err) //nolint:errorlint // it must not pass for an answer to the call
	case !isCount || have < int64(r.Count):
		short = fmt.Errorf("%w: %v of the %d replicas that WithReplicas asks for confirmed within %v", errNotReplicated, wait.Val(), r.Count, r.Wait)
	}
	if err == nil || script.IsAnswer(err) {
		l.keepUp(short)
	}
	for _, c := range f.calls {
		if c == nil {
			continue
		}
		if c.Short = short; short == nil && c.Doubts() > 1 {
			c.Short = errRepeated
		}
	}
}

// keptUp is how long replicas must have confirmed all before ReplicasKeepUp is reported.
const keptUp = time.Second

// keepUp records whether the replicas confirm in time.
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
	l.lanes.Observer.Happened(e)
}

// lockNext locks and returns the lane by which a call goes on. Flights that wait for replicas go past a cluster's
// client, so only this finds out that a key has moved.
func (l *Lane) lockNext(c *Call, err error) *Lane {
	if l.replicas.Count == 0 || err == nil {
		l.mu.Lock()
		return l
	}
	if redis.HasErrorPrefix(err, "MOVED") || errors.Is(err, script.ErrNoMaster) {
		l.conn.Reload()
	}
	return l.lanes.Lock(context.Background(), c.Keys.Names()[0])
}
