// Package notify tells other programs by PUBLISH and SUBSCRIBE that a limiter was
// changed. Notices may be lost: they only spare waiting.
package notify

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// pubSub is what notices need of a Redis client.
type pubSub interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
	Publish(ctx context.Context, channel string, message any) *redis.IntCmd
	Pipeline() redis.Pipeliner
}

// sharder is a redis.Ring. Its notices all go by one shard, the same in every
// program, so that one connection is enough.
type sharder interface {
	GetShardClientForKey(key string) (*redis.Client, error)
}

const (
	noticeShard = "rratelimiter:notices"

	// sweepEvery is how often unneeded channels are unsubscribed.
	sweepEvery = time.Second

	// quietFor is how long a subscription may be silent before its server is asked
	// whether it is there.
	quietFor = 30 * time.Second

	// retryAfter is how long after a subscription was lost another one begins.
	retryAfter = time.Second
)

// Can reports whether a Redis client can send and get notices.
func Can(rdb any) bool {
	_, ok := rdb.(pubSub)
	return ok
}

// Channel returns the channel for notices of the limiter with that value key.
func Channel(valueKey string) string { return strings.TrimSuffix(valueKey, "value") + "changed" }

// Host receives notices.
type Host struct {
	ID    []byte                 // distinguishes its own notices from others
	Begin func() error           // counts background work in; an error says that there must be no more
	End   func()                 // counts it out
	Wants func(name string) bool // reports whether notices of that limiter are still of use
	Heard func(name string)      // another program changed the limiter of that name
}

// Notices is a Client's subscription.
type Notices struct {
	host    Host
	rdb     any
	timeout time.Duration   // of notices sent, and how long they hold up a Close
	ctx     context.Context // ends with Stop
	stop    context.CancelFunc

	mu sync.Mutex
	publisher
	running  bool
	channels map[string]*listener
	fresh    []string      // channels that are still to be subscribed to
	swept    time.Time     // when channels were last let go of
	poke     chan struct{} // there are some
}

// listener is a limiter whose notices are wanted.
type listener struct {
	name  string
	until time.Time
}

// New returns Notices by a Redis client, which has no subscription yet. What hangs
// counts as background work for the timeout at most.
func New(rdb any, timeout time.Duration, host Host) *Notices {
	n := &Notices{host: host, rdb: rdb, timeout: timeout, channels: make(map[string]*listener), poke: make(chan struct{}, 1)}
	n.ctx, n.stop = context.WithCancel(context.Background())
	return n
}

// Stop ends the subscription, and sends the notices still to be published.
func (n *Notices) Stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() == nil {
		n.last = time.Now().Add(n.timeout)
		n.stop()
	}
}

// redis returns the connection for notices, nil if there is none at the moment.
func (n *Notices) redis() pubSub {
	if ring, ok := n.rdb.(sharder); ok {
		if shard, err := ring.GetShardClientForKey(noticeShard); err == nil {
			return shard
		}
		return nil
	}
	rdb, _ := n.rdb.(pubSub)
	return rdb
}

// Listen has the host hear of changes of the limiter until then, as long as it wants to.
func (n *Notices) Listen(channel, name string, until time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.channels[channel]; l != nil {
		if until.After(l.until) {
			l.until = until
		}
		return
	}
	if !n.running {
		if n.host.Begin() != nil {
			return
		}
		n.running = true
		go n.run()
	}
	n.channels[channel] = &listener{name, until}
	n.fresh = append(n.fresh, channel)
	select {
	case n.poke <- struct{}{}:
	default:
	}
}

// run keeps the subscription up while it is needed. go-redis can't interrupt a read:
// after Stop the work counts for the timeout only.
func (n *Notices) run() {
	end := sync.OnceFunc(n.host.End)
	defer end()
	defer context.AfterFunc(n.ctx, func() { time.AfterFunc(n.timeout, end) })()
	for n.session() {
		select {
		case <-time.After(retryAfter):
		case <-n.ctx.Done():
		}
	}
}

// session subscribes by one connection. It returns false when there is no more to
// do, and true if the connection was lost.
func (n *Notices) session() bool {
	add, drop, more := n.next(true)
	rdb := n.redis()
	if !more || rdb == nil {
		return more
	}
	sub := rdb.Subscribe(n.ctx)
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		n.receive(sub)
	}()
	defer func() {
		_ = sub.Close()
		<-lost
	}()
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for more {
		if len(drop) > 0 && sub.Unsubscribe(n.ctx, drop...) != nil {
			return true
		}
		if len(add) > 0 && sub.Subscribe(n.ctx, add...) != nil {
			return true
		}
		select {
		case <-n.poke:
		case <-tick.C:
		case <-n.ctx.Done():
		case <-lost:
			return true
		}
		add, drop, more = n.next(false)
	}
	return false
}

// next returns the channels to subscribe to, all or those that are new, and those
// to unsubscribe. more is false once notices are no longer needed.
func (n *Notices) next(all bool) (add, drop []string, more bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now := time.Now(); all || now.Sub(n.swept) >= sweepEvery {
		n.swept = now
		for channel, l := range n.channels {
			if now.Sub(l.until) > sweepEvery || !n.host.Wants(l.name) {
				delete(n.channels, channel)
				drop = append(drop, channel)
			}
		}
	}
	fresh := n.fresh
	n.fresh = nil
	switch {
	case len(n.channels) == 0 || n.ctx.Err() != nil:
		clear(n.channels)
		n.running = false
		return nil, nil, false
	case all:
		return slices.Collect(maps.Keys(n.channels)), nil, true
	}
	add = slices.DeleteFunc(fresh, func(channel string) bool { return n.channels[channel] == nil })
	return add, drop, true
}

// receive passes on notices as they come in, until the connection is lost.
func (n *Notices) receive(sub *redis.PubSub) {
	asked := false
	for {
		message, err := sub.ReceiveTimeout(n.ctx, quietFor)
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() && !asked {
			asked = true
			if sub.Ping(n.ctx) == nil {
				continue
			}
		}
		if err != nil {
			return
		}
		asked = false
		if m, ok := message.(*redis.Message); ok && m.Payload != string(n.host.ID) {
			n.mu.Lock()
			l := n.channels[m.Channel]
			n.mu.Unlock()
			if l != nil {
				n.host.Heard(l.name)
			}
		}
	}
}
