package admin

import (
	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/inspect/holders"
)

// users lists the clients that have a limiter's permits in use.
type users struct {
	InUse    int64           `json:"inUse"`
	Complete bool            `json:"complete"` // no client was left out
	Clients  []holders.Share `json:"clients"`
}

func (c *call) listClients(l *rratelimiter.RateLimiter) error {
	found, err := holders.Of(c.r.Context(), l)
	if err != nil {
		return err
	}
	answer := users{Complete: found.Whole, Clients: found.Shares}
	for _, s := range found.Shares {
		answer.InUse += s.Permits
	}
	return c.ok(answer)
}
