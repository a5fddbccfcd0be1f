// Package keys names the Redis keys of a limiter, as Redisson names them.
package keys

import "strings"

// Set holds the five keys of a limiter, as one client sees it.
type Set struct {
	Config        string // hash: rate, interval, type, keepAliveTime
	Value         string // string: free permits, shared by all clients
	ClientValue   string // the same for one client, where the type is PER_CLIENT
	Permits       string // sorted set: permits in use, shared by all clients
	ClientPermits string // the same for one client
}

// For returns the keys of the limiter called name, for the client called
// clientID. A name that has a brace anywhere is taken to bring its own hash
// tag, so it is not wrapped in one; that is Redisson's rule, and it puts the
// keys of names like "a{b" in different slots of a cluster.
func For(name, clientID string) Set {
	tagged := name
	if !strings.Contains(name, "{") {
		tagged = "{" + name + "}"
	}
	value, permits := tagged+":value", tagged+":permits"
	return Set{
		Config:        name,
		Value:         value,
		ClientValue:   value + ":" + clientID,
		Permits:       permits,
		ClientPermits: permits + ":" + clientID,
	}
}

// List returns the keys in the order in which scripts take them.
func (s Set) List() []string {
	return []string{s.Config, s.Value, s.ClientValue, s.Permits, s.ClientPermits}
}
