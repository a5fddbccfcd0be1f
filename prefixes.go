package rratelimiter

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/rratelimiter/rratelimiter/internal/ask"
	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/limit"
)

// prefixes are how the names of a Client's limiters of keys begin, and the first rate
// of each.
type prefixes struct {
	mu    sync.Mutex
	rates map[string]Config
	told  map[string]bool // of two rates
}

// maxPrefixes is how many are known: of more, nothing is told.
const maxPrefixes = 1000

func init() {
	ask.Begins = func(limiter limit.Limiter, prefix string) {
		if k, ok := limiter.(*KeyedLimiter); ok {
			k.begins(prefix)
		}
	}
}

// begins notes that keys of k will begin with prefix, where middleware is to ask it.
func (k *KeyedLimiter) begins(prefix string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.known = true
	k.client.note(k.prefix+prefix, k.cfg)
}

// note takes note of a prefix, and tells where its keys may be those of another one, or
// have another rate.
func (c *Client) note(prefix string, cfg Config) {
	p := &c.prefixes
	p.mu.Lock()
	defer p.mu.Unlock()
	found, known := p.rates[prefix]
	switch {
	case known && found != cfg && !p.told[prefix]:
		p.told[prefix] = true
		c.warn(limit.Event{Kind: limit.RateDiffers, Limiter: prefix, Found: found.rate(), Want: cfg.rate()})
	case known || len(p.rates) >= maxPrefixes:
		return
	}
	for other := range p.rates {
		if other != prefix && (strings.HasPrefix(prefix, other) || strings.HasPrefix(other, prefix)) {
			c.warn(limit.Event{Kind: limit.PrefixesMeet, Limiter: prefix, Err: fmt.Errorf(
				"limiters of keys begin with %q and with %q: a key of one can be a key of the other; "+
					"choose prefixes of which neither continues the other", other, prefix)})
			break
		}
	}
	if !known {
		p.rates[prefix] = cfg
	}
}

// warn tells of a mistake in the code: slog's default log where the Client has none.
func (c *Client) warn(e limit.Event) {
	c.observer.Happened(e)
	if c.options.Logger == nil {
		observe.New(nil, slog.Default()).Happened(e)
	}
}
