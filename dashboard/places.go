package dashboard

import (
	"errors"
	"net/http"

	"github.com/rratelimiter/rratelimiter/internal/httpjson"
)

// maxShare is how many of maxViewers may come from one address.
const maxShare = maxViewers / 2

// join takes a place among the viewers, of those for the address that the connection
// comes from. A proxy's word about its client is not believed.
func (c *call) join(v *viewer) (leave func(), err error) {
	v.from = addressOf(c.r.RemoteAddr)
	leave, err = c.poller.join(v)
	return leave, c.busy(err)
}

// errLostPlace ends the wait of a viewer that lost its place to another.
var errLostPlace = httpjson.Refuse(http.StatusServiceUnavailable, "others need the places: too many pages are open from this address")

// busy tells a refused viewer when to come back.
func (c *call) busy(err error) error {
	if r, ok := errors.AsType[*httpjson.Error](err); ok && r.Status == http.StatusServiceUnavailable {
		c.w.Header().Set("Retry-After", "10")
	}
	return err
}

// addressOf returns what counts as one address: of IPv6, the network that a household
// has.
func addressOf(remote string) string {
	_, ip := hostOf(remote)
	if ip.Is6() {
		network, _ := ip.Prefix(64)
		return network.String()
	}
	if ip.IsValid() {
		return ip.String()
	}
	return remote
}

// makeRoom makes a place for a viewer from an address. It is called with the lock held. Each
// address has its share: if all places are taken, the newest page of the address with the most
// makes room for one of an address with fewer.
func (p *poller) makeRoom(from string) error {
	held := make(map[string]int)
	newest := make(map[string]*viewer)
	most := from
	for v := range p.viewers {
		held[v.from]++
		if n := newest[v.from]; n == nil || n.number < v.number {
			newest[v.from] = v
		}
	}
	for address, n := range held {
		if n > held[most] {
			most = address
		}
	}
	switch {
	case held[from] >= maxShare:
		return httpjson.Refuse(http.StatusServiceUnavailable, "%d pages are open already from this address, no more are served", maxShare)
	case len(p.viewers) < maxViewers:
		return nil
	case held[most] <= held[from]+1:
		return httpjson.Refuse(http.StatusServiceUnavailable, "%d pages are open already, no more are served", maxViewers)
	}
	close(newest[most].ended)
	delete(p.viewers, newest[most])
	return nil
}
