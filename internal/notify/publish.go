package notify

import (
	"context"
	"sync"
	"time"
)

// maxChanged is how many channels wait to be published to. Beyond that notices are lost.
const maxChanged = 1024

// publisher sends notices, those of many calls by one pipeline: one for a limiter is as
// good as several. The lock of its Notices guards it.
type publisher struct {
	changed map[string]struct{} // channels that are still to be published to
	sending bool                // a goroutine publishes
	last    time.Time           // when publishing ends, once stopped
}

// Announce tells others that the limiter of that channel was changed. It does not wait
// for that.
func (n *Notices) Announce(channel string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() != nil || len(n.changed) >= maxChanged {
		return
	}
	if n.changed == nil {
		n.changed = make(map[string]struct{})
	}
	n.changed[channel] = struct{}{}
	if !n.sending && n.host.Begin() == nil {
		n.sending = true
		go n.publish()
	}
}

// publish sends until nothing is left. While a server is silent one pipeline waits for it
// at most, and the notices of others gather.
func (n *Notices) publish() {
	end := sync.OnceFunc(n.host.End)
	defer end()
	for {
		channels, timeout := n.nextPublish()
		if channels == nil {
			return
		}
		late := time.AfterFunc(timeout, end)
		n.send(channels, timeout)
		late.Stop()
	}
}

// nextPublish returns what to publish now, and within what time; nil if there is nothing.
func (n *Notices) nextPublish() (channels map[string]struct{}, timeout time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	timeout = n.timeout
	if !n.last.IsZero() {
		timeout = min(timeout, time.Until(n.last))
	}
	if len(n.changed) == 0 || timeout <= 0 {
		n.sending = false
		return nil, 0
	}
	channels, n.changed = n.changed, nil
	return channels, timeout
}

// send publishes in one pipeline. A hook of the Redis client that panics costs the notices.
func (n *Notices) send(channels map[string]struct{}, timeout time.Duration) {
	defer func() { _ = recover() }()
	rdb := n.redis()
	if rdb == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	pipe := rdb.Pipeline()
	for channel := range channels {
		pipe.Publish(ctx, channel, n.host.ID)
	}
	_, _ = pipe.Exec(ctx)
}
