package notify

import (
	"context"
	"time"
)

const (
	// maxChanged is how many channels wait to be published to. Beyond that notices are
	// lost.
	maxChanged = 1024

	// maxStuck is how many publishes that were given up go-redis may still wait for
	// before no more are sent.
	maxStuck = 2
)

// publisher sends notices, those of many calls by one pipeline: one for a limiter is as
// good as several. The lock of its Notices guards it.
type publisher struct {
	changed map[string]struct{} // channels that are still to be published to
	sending bool                // a goroutine publishes, and is not given up
	stuck   int                 // publishes that were given up, and that go-redis waits for
	last    time.Time           // when publishing ends, once stopped
}

// publish is one pipeline on its way.
type publish struct {
	channels map[string]struct{}
	over     bool // it has come back or was given up
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
	n.startPublishing()
}

// startPublishing has a goroutine publish, unless one does or the server is silent. n.mu is held.
func (n *Notices) startPublishing() {
	if n.sending || n.stuck >= maxStuck || len(n.changed) == 0 || n.host.Begin() != nil {
		return
	}
	n.sending = true
	go n.publish()
}

func (n *Notices) publish() {
	for {
		p, timeout := n.nextPublish()
		if p == nil {
			n.host.End()
			return
		}
		late := time.AfterFunc(timeout, func() { n.giveUp(p) })
		n.send(p, timeout)
		late.Stop()
		if n.published(p) {
			return
		}
	}
}

// nextPublish returns what to publish now, and within what time; nil if there is nothing.
func (n *Notices) nextPublish() (p *publish, timeout time.Duration) {
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
	p = &publish{channels: n.changed}
	n.changed = nil
	return p, timeout
}

// send publishes in one pipeline. A hook of the Redis client that panics costs the notices.
func (n *Notices) send(p *publish, timeout time.Duration) {
	defer func() { _ = recover() }()
	rdb := n.redis()
	if rdb == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	pipe := rdb.Pipeline()
	for channel := range p.channels {
		pipe.Publish(ctx, channel, n.host.ID)
	}
	_, _ = pipe.Exec(ctx)
}

// giveUp counts a publish out that is not answered, and lets another goroutine go on.
func (n *Notices) giveUp(p *publish) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.over {
		return
	}
	p.over = true
	n.stuck++
	n.sending = false
	n.startPublishing()
	n.host.End()
}

// published notes that go-redis has come back, and reports whether the publish was given
// up before.
func (n *Notices) published(p *publish) (late bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !p.over {
		p.over = true
		return false
	}
	n.stuck--
	n.startPublishing()
	return true
}
