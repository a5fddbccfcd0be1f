// Package look reads limiters off the servers, by plain commands that change
// nothing: a [Reader] all of them, in small steps; a [Watcher] one, again and again;
// [Inspect] one with all that Redis holds of it and what is wrong with it.
package look

import "time"

// Limiter is one limiter as it was read last.
type Limiter struct {
	Name       string `json:"name"`
	State      Health `json:"state,omitempty"`
	Type       string `json:"type"`
	Rate       int64  `json:"rate"`
	IntervalMS int64  `json:"interval_ms"`
	Origin     Origin `json:"origin,omitempty"`
	// Free is nil if unknown. If each client has permits of its
	// own, it is the figure of the client with the fewest.
	Free  *int64 `json:"free"`
	InUse int64  `json:"in_use"`
	// PerSecond is how many permits were granted in the last second or so; if only
	// a glance was taken, on average those in use.
	PerSecond float64  `json:"granted_per_second"`
	Clients   int      `json:"clients"` // with permits of their own
	Callers   []Caller `json:"callers"` // by permits in use, most first
	AgeMS     int64    `json:"age_ms"`  // since it was read
	// Broken is why it does not work, as far as was read; "" if it does. If the
	// hash is no configuration, rate and interval are 0 and the type is "".
	Broken string `json:"broken,omitempty"`
	// BrokenKind is the kind of the Anomaly in Broken.
	BrokenKind string `json:"-"`

	lately bool // it was used up a moment ago
}

// Use is the part of the rate that is in use.
func (l *Limiter) Use() float64 {
	if l.Free == nil || l.Rate == 0 {
		return 0
	}
	return float64(l.Rate-*l.Free) / float64(l.Rate)
}

// Caller is who took permits that are in use.
type Caller struct {
	Who     string  `json:"who"`
	Permits int64   `json:"permits"`
	Share   float64 `json:"share"` // of the permits in use that were looked at
}

// Snapshot is one sample of all limiters.
type Snapshot struct {
	At       time.Time `json:"time"`
	Known    int       `json:"known"`     // limiters seen so far
	InUse    int       `json:"in_use"`    // of these, with permits in use
	Used     int       `json:"exhausted"` // of these, with no permit left
	Broken   int       `json:"broken"`    // of these, as far as they were read
	Left     bool      `json:"more"`      // more limiters than are kept
	Matching int       `json:"matching"`  // of these, the ones that match the view's filter
	Offset   int       `json:"offset"`    // of these, left out before the first
	Complete bool      `json:"complete"`  // all keys were walked at least once
	Walked   float64   `json:"walked"`    // part of the keys that this round has walked
	RoundMS  int64     `json:"round_ms"`  // how long the last round took
	Limiters []Limiter `json:"limiters"`
	Cost     Cost      `json:"cost"`
	Err      error     `json:"-"` // why this sample is old
}

// Cost is what looking costs the server.
type Cost struct {
	Commands float64 `json:"commands_per_second"`
	// ServerMicros is the server's time a second; nil if it does not report it.
	ServerMicros *float64 `json:"server_us_per_second"`
	// RoundTrip is the time that asking took: the mean of the last second's.
	RoundTripMicros float64 `json:"round_trip_us"`
}
