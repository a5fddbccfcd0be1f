package admin

import (
	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/holders"
)

// users tells who has a limiter's permits in use.
type users struct {
	InUse    int64           `json:"inUse"`
	Complete bool            `json:"complete"` // nobody was left out
	Clients  []holders.Share `json:"clients"`
}

func (c *call) listClients(l *rratelimiter.RateLimiter) error {
	cfg, err := l.Config(c.r.Context())
	if err != nil {
		return err
	}
	e, about := engine.OfHandle(l)
	found, err := holders.Of(c.r.Context(), e, about, cfg.Type == rratelimiter.PerClient)
	if err != nil {
		return err
	}
	answer := users{Complete: found.Whole, Clients: found.Shares}
	for _, s := range found.Shares {
		answer.InUse += s.Permits
	}
	return c.ok(answer)
}
