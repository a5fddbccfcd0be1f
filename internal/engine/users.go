package engine

import (
	"context"

	"github.com/rratelimiter/rratelimiter/internal/clients"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// OfHandle returns the Engine of a RateLimiter of the root's and what it knows of it,
// for what looks into limiters beside the root. The root sets it.
var OfHandle func(limiter any) (*Engine, *Limiter)

// NoteName keeps noted in Redis what the Client is called, while it is used.
func (e *Engine) NoteName(c clients.Client) {
	e.book = clients.NewBook(e.lanes, c, clients.Host{Begin: e.Begin, End: e.End, Failed: func(err error) {
		e.observer.Happened(limit.Event{Kind: limit.NameNotNoted, Err: err})
	}})
}

// maxOwn is how many clients' own pairs are looked at.
const maxOwn = 100

// Users are those who have permits of a limiter in use.
type Users struct {
	Shares []clients.Share
	Whole  bool // nobody was left out
}

// Users tells who has permits of the limiter in use. Where each client has permits of
// its own, it knows those that have a name.
func (e *Engine) Users(ctx context.Context, l *Limiter, perClient bool) (Users, error) {
	names, err := e.names(ctx)
	if err != nil {
		return Users{}, err
	}
	if perClient {
		return e.ownUsers(ctx, l, names)
	}
	shares, whole, err := e.inUse(ctx, l.Keys, names)
	return Users{shares, whole}, err
}

// ownUsers is Users of a limiter of which each client has permits of its own.
func (e *Engine) ownUsers(ctx context.Context, l *Limiter, names clients.Names) (Users, error) {
	own := make(map[string]bool)
	users := Users{Shares: []clients.Share{}}
	for _, c := range names.All() {
		if len(own) == maxOwn {
			break
		}
		if own[c.ID] {
			continue
		}
		own[c.ID] = true
		shares, _, err := e.inUse(ctx, script.KeysOf(redisson.KeysOf(l.Config, c.ID).List()...), names)
		if err != nil {
			return Users{}, err
		}
		sum := clients.Share{Kind: clients.Named, Name: c.Name, Mark: c.Mark}
		for _, s := range shares {
			sum.Permits += s.Permits
		}
		if sum.Permits > 0 {
			users.Shares = append(users.Shares, sum)
		}
	}
	clients.Sort(users.Shares)
	return users, nil
}

func (e *Engine) names(ctx context.Context) (names clients.Names, err error) {
	_, err = e.call(ctx, script.KeysOf(clients.Key), false, func() (any, error) {
		names, err = clients.Known(ctx, e.lanes)
		return nil, err
	})
	return names, err
}

func (e *Engine) inUse(ctx context.Context, keys *script.Keys, names clients.Names) ([]clients.Share, bool, error) {
	return clients.InUse(names, func(c script.Call) (any, error) { return e.Read(ctx, &Limiter{Keys: keys}, c) })
}
