package observe

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/rratelimiter/rratelimiter/limit"
)

// maxPrefixes is how many prefixes are known: more are not checked.
const maxPrefixes = 1000

// Prefixes are how the names of a Client's limiters of keys begin, with the first rate of each.
type Prefixes struct {
	mu    sync.Mutex
	rates map[string]limit.Rate
	told  map[string]bool // reported for two rates
}

// Note records a prefix, and reports if its keys may be those of another one, or have another rate.
func (p *Prefixes) Note(o *Observer, prefix string, rate limit.Rate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rates == nil {
		p.rates, p.told = make(map[string]limit.Rate), make(map[string]bool)
	}
	found, known := p.rates[prefix]
	if known && found != rate && !p.told[prefix] {
		p.told[prefix] = true
		o.mistaken(limit.Event{Kind: limit.RateDiffers, Limiter: prefix, Found: found, Want: rate})
	}
	if known || len(p.rates) == maxPrefixes {
		return
	}
	for other := range p.rates {
		if strings.HasPrefix(prefix, other) || strings.HasPrefix(other, prefix) {
			o.mistaken(limit.Event{Kind: limit.PrefixesMeet, Limiter: prefix, Err: fmt.Errorf(
				"limiters of keys begin with %q and with %q: a key of one can be a key of the other; "+
					"choose prefixes so that neither begins with the other", other, prefix)})
			break
		}
	}
	p.rates[prefix] = rate
}

// mistaken logs a mistake in the code, with slog's default logger if there is no other.
func (o *Observer) mistaken(e limit.Event) {
	o.Happened(e)
	if o == nil || o.log == nil {
		New(nil, slog.Default()).Happened(e)
	}
}
