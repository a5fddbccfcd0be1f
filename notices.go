package rratelimiter

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

// Notices tell other Clients that a limiter was changed. They only spare waiting:
// what a refusal cache promises holds without them.

type subscriber interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
}

type publisher interface {
	Publish(ctx context.Context, channel string, message any) *redis.IntCmd
}

// sharder is a redis.Ring. Its notices all go by one shard, the same in every
// program, so that one connection is enough.
type sharder interface {
	GetShardClientForKey(key string) (*redis.Client, error)
}

const (
	noticeShard = "rratelimiter:notices"

	// sweepEvery is how often channels are let go of that no refusal needs.
	sweepEvery = time.Second

	// quietFor is how long a subscription may be silent before its server is asked
	// whether it is there.
	quietFor = 30 * time.Second

	minResubscribe = 50 * time.Millisecond
	maxResubscribe = 5 * time.Second
)

func canNotice(rdb Redis) bool {
	_, subscribes := rdb.(subscriber)
	_, publishes := rdb.(publisher)
	return subscribes && publishes
}

// channelOf returns the channel for notices of the limiter with that value key.
func channelOf(valueKey string) string { return strings.TrimSuffix(valueKey, "value") + "changed" }

// notices is a Client's subscription.
type notices struct {
	client *Client
	ctx    context.Context // ends with the Client
	stop   context.CancelFunc

	mu       sync.Mutex
	running  bool
	channels map[string]*listener
	fresh    []string      // channels that are still to be subscribed to
	swept    time.Time     // when channels were last let go of
	poke     chan struct{} // there are some
}

// listener is a limiter of which refusals are remembered.
type listener struct {
	key   string
	until time.Time // of the last
}

func newNotices(c *Client) *notices {
	n := &notices{client: c, channels: make(map[string]*listener), poke: make(chan struct{}, 1)}
	n.ctx, n.stop = context.WithCancel(context.Background())
	return n
}

// listen has notices of the limiter end its refusals, until then at least.
func (n *notices) listen(channel, key string, until time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.channels[channel]; l != nil {
		if until.After(l.until) {
			l.until = until
		}
		return
	}
	if !n.running {
		if n.client.engine.Begin() != nil {
			return
		}
		n.running = true
		go n.run()
	}
	n.channels[channel] = &listener{key, until}
	n.fresh = append(n.fresh, channel)
	select {
	case n.poke <- struct{}{}:
	default:
	}
}

// run keeps the subscription up until nobody needs it.
func (n *notices) run() {
	defer n.client.engine.End()
	backoff := minResubscribe
	for {
		started := time.Now()
		if !n.session() {
			return
		}
		if time.Since(started) > maxResubscribe {
			backoff = minResubscribe
		}
		timer := time.NewTimer(backoff)
		select {
		case <-timer.C:
		case <-n.ctx.Done():
			timer.Stop()
		}
		backoff = min(2*backoff, maxResubscribe)
	}
}

// session subscribes by one connection. It tells false when there is no more to
// do, and true where the connection was lost.
func (n *notices) session() bool {
	add, drop, more := n.next(true)
	rdb := n.redis()
	if !more || rdb == nil {
		return more
	}
	pubsub := rdb.Subscribe(n.ctx)
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		n.receive(pubsub)
	}()
	defer func() {
		_ = pubsub.Close()
		<-lost
	}()
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for more {
		if len(drop) > 0 && pubsub.Unsubscribe(n.ctx, drop...) != nil {
			return true
		}
		if len(add) > 0 && pubsub.Subscribe(n.ctx, add...) != nil {
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

// redis returns what to subscribe to, nil where there is nothing at the moment.
func (n *notices) redis() subscriber {
	if ring, ok := n.client.rdb.(sharder); ok {
		shard, err := ring.GetShardClientForKey(noticeShard)
		if err != nil {
			return nil
		}
		return shard
	}
	rdb, _ := n.client.rdb.(subscriber)
	return rdb
}

// next returns the channels to subscribe to, all or those that are new, and those
// to let go of. more is false where nobody needs notices any longer.
func (n *notices) next(all bool) (add, drop []string, more bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now := time.Now(); all || now.Sub(n.swept) >= sweepEvery {
		n.swept = now
		for channel, l := range n.channels {
			if now.Sub(l.until) > sweepEvery {
				delete(n.channels, channel)
				drop = append(drop, channel)
			}
		}
	}
	if len(n.channels) == 0 || n.ctx.Err() != nil {
		clear(n.channels)
		n.running, n.fresh = false, nil
		return nil, nil, false
	}
	for _, channel := range n.fresh {
		if !all && n.channels[channel] != nil {
			add = append(add, channel)
		}
	}
	n.fresh = nil
	if all {
		add, drop = slices.Collect(maps.Keys(n.channels)), nil
	}
	return add, drop, true
}

// receive ends refusals as notices come in, until the connection is lost.
func (n *notices) receive(pubsub *redis.PubSub) {
	asked := false
	for {
		message, err := pubsub.ReceiveTimeout(n.ctx, quietFor)
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() && !asked {
			asked = true
			if pubsub.Ping(n.ctx) == nil {
				continue
			}
		}
		if err != nil {
			return
		}
		asked = false
		if m, ok := message.(*redis.Message); ok && m.Payload != string(n.client.ids.Origin()) {
			n.hear(m.Channel)
		}
	}
}

func (n *notices) hear(channel string) {
	n.mu.Lock()
	l := n.channels[channel]
	n.mu.Unlock()
	if l != nil {
		n.client.engine.Noticed(l.key)
	}
}

// listen has notices of the limiter end what the handle remembers.
func (l *RateLimiter) listen() {
	f := l.refused
	if f == nil || f.channel == "" {
		return
	}
	if a := f.tries.Load(); a != nil {
		l.client.notices.listen(f.channel, l.config(), a.sent.Add(a.lasts))
	}
}

// announce tells other Clients that the limiter of that channel was changed.
func (c *Client) announce(channel string) {
	if c.engine.Begin() != nil {
		return
	}
	go func() {
		defer c.engine.End()
		var to publisher
		if ring, ok := c.rdb.(sharder); ok {
			if shard, err := ring.GetShardClientForKey(noticeShard); err == nil {
				to = shard
			}
		} else {
			to, _ = c.rdb.(publisher)
		}
		if to != nil {
			_ = to.Publish(context.Background(), channel, c.ids.Origin()).Err()
		}
	}()
}
