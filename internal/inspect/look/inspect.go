package look

import (
	"context"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/clients"
	"github.com/rratelimiter/rratelimiter/internal/inspect/holders"
	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

// maxInspected is how many clients are read at most.
const maxInspected = 100

// Inspection is everything that Redis holds of one limiter. Rate, interval, type and keep-alive
// time are nil if they can't be read.
type Inspection struct {
	Name        string   `json:"name"`
	Exists      bool     `json:"exists"`
	State       Health   `json:"state,omitempty"`
	Rate        *int64   `json:"rate"`
	IntervalMS  *int64   `json:"interval_ms"`
	Type        *string  `json:"type"`
	Origin      Origin   `json:"origin,omitempty"`
	Ends        *Ends    `json:"ends,omitempty"` // of a rate that was set for a while
	KeepAliveMS *int64   `json:"keep_alive_ms"`
	TTLMS       *int64   `json:"ttl_ms"`
	Clients     int      `json:"clients"` // that have keys of their own, and were looked for
	States      []State  `json:"states"`
	NamesError  string   `json:"names_error,omitempty"` // why no client is called by its name
	Anomalies   Findings `json:"anomalies"`
	Broken      string   `json:"broken,omitempty"` // why it does not work; "" if it does

	// Foreign reports whether the limiter's own key holds something else: see [Foreign].
	Foreign bool `json:"-"`

	// NowMS is the server's time when it was read.
	NowMS int64 `json:"-"`

	// Trips are the round trips that it took.
	Trips []Trip `json:"-"`
}

// Finder returns the ids of the clients that have permits of their own.
type Finder func(ctx context.Context) ([]string, error)

// Inspect reads a limiter and judges it. If each client has permits of its own,
// find says which clients to read.
func Inspect(ctx context.Context, rdb nodes.Client, name string, find Finder) (*Inspection, error) {
	found, err := inspect(ctx, rdb, name, find)
	if err != nil {
		return nil, err
	}
	found.Broken = found.Anomalies.Broken().Text
	found.State = found.health()
	return found, nil
}

func inspect(ctx context.Context, rdb nodes.Client, name string, find Finder) (*Inspection, error) {
	k := redisson.KeysOf(name, "")
	shared, err := readSnapshot(ctx, rdb, k.Config, k.Value, k.Permits)
	if err != nil {
		return nil, err
	}
	sharedState := shared.value.exists() || shared.permits.exists()
	found := &Inspection{
		Name: name, Exists: shared.config.exists() || sharedState,
		TTLMS: millis(shared.config.ttl), States: []State{}, Anomalies: Findings{}, NowMS: shared.nowMS, Trips: []Trip{shared.trip},
	}
	if !found.Exists {
		return found, nil
	}
	if found.Foreign = Foreign(shared.config.kind, shared.fields); found.Foreign && !sharedState {
		found.Anomalies.notOurs(shared.config)
		return found, nil
	}
	var cfg *Fields
	parsed, err := ParseFields(shared.fields)
	if err == nil {
		parsed = parsed.At(shared.nowMS)
		cfg = &parsed
		typeName := parsed.TypeName()
		found.Rate, found.IntervalMS, found.Type, found.KeepAliveMS = &parsed.Rate, &parsed.IntervalMS, &typeName, &parsed.KeepAliveMS
		found.Origin, found.Ends = parsed.Origin, parsed.End()
	}
	found.Anomalies.checkConfig(shared, err)
	if cfg != nil && parsed.PerClient() {
		if sharedState {
			found.Anomalies.add("keys_of_other_type", "keys %s, %s are left from when all clients shared the permits",
				words.Printable(k.Value), words.Printable(k.Permits))
		}
		return found, found.inspectClients(ctx, rdb, find, cfg)
	}
	st := newState(shared, cfg, nil)
	found.Anomalies.checkState(shared, &st, cfg)
	found.States = append(found.States, st)
	return found, nil
}

// PerClient reports whether each client has permits of its own; false if that can't be
// read.
func (f *Inspection) PerClient() bool {
	return f.Type != nil && *f.Type == rratelimiter.PerClient.String()
}

// inspectClients adds the states of the clients.
func (f *Inspection) inspectClients(ctx context.Context, rdb nodes.Client, find Finder, cfg *Fields) error {
	ids, err := find(ctx)
	if err != nil {
		return err
	}
	f.Clients = len(ids)
	for _, id := range ids[:min(len(ids), maxInspected)] {
		k := redisson.KeysOf(f.Name, id)
		snap, err := readSnapshot(ctx, rdb, k.Config, k.ClientValue, k.ClientPermits)
		if err != nil {
			return err
		}
		f.Trips = append(f.Trips, snap.trip)
		st := newState(snap, cfg, &id)
		f.Anomalies.checkState(snap, &st, cfg)
		f.States = append(f.States, st)
	}
	return nil
}

// TellClients adds the names of the permits' owners and of the clients. If the names can't be
// read, the rest stays.
func (f *Inspection) TellClients(ctx context.Context, rdb nodes.Client) {
	if len(f.States) == 0 {
		return
	}
	names, err := ReadNames(ctx, rdb, f.NowMS)
	f.Tell(names, err)
}

// Tell is TellClients with the names, or the error of reading them.
func (f *Inspection) Tell(names holders.Names, err error) {
	if err != nil {
		f.NamesError = fmt.Sprintf("key %s can't be read: %v", clients.Key, err)
	}
	for i := range f.States {
		f.States[i].tell(names)
	}
}

// ReadNames reads the names of Clients that are known at a time in epoch ms.
func ReadNames(ctx context.Context, rdb nodes.Client, nowMS int64) (names holders.Names, err error) {
	err = nodes.On(ctx, rdb, clients.Key, func(ctx context.Context, node nodes.Client) (err error) {
		names, err = holders.Read(ctx, node, nowMS)
		return err
	})
	return names, err
}

// OneClient finds the client with that id, or all if it is "", by walking the keys.
func OneClient(rdb nodes.Client, name, id string) Finder {
	return func(ctx context.Context) ([]string, error) {
		if id != "" {
			return []string{id}, nil
		}
		return FindClients(ctx, rdb, name)
	}
}

// millis returns a time to live in milliseconds, nil for none.
func millis(ttl time.Duration) *int64 {
	if ttl < 0 {
		return nil
	}
	ms := ttl.Milliseconds()
	return &ms
}
