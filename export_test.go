package rratelimiter

// Queued returns how many requests for the limiter wait to be sent or to be
// sent again, for tests that want them in one batch.
func (l *RateLimiter) Queued() int { return l.client.engine.Waiting(&l.facts) }

// Queues returns how many limiters the Client remembers.
func (c *Client) Queues() int { return c.engine.Groups() }
