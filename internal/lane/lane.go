// Package lane is where callers gather: each master has a lane. It sends flights of script calls, and
// each flight takes all that has gathered.
//
// If less is under way than the network needs, a flight leaves at once; otherwise requests gather
// until a flight lands. How many are enough follows from the shortest round trip: two flights if the
// server is near, as many as fill the pipe if it is far.
package lane

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/observe"
	"github.com/rratelimiter/rratelimiter/internal/outage"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Source is where the requests for one key gather.
type Source interface {
	// NextCall returns the next call of what has gathered, nil if there is nothing to send now. If
	// more is true, NextCall is called again. A flight waits meanwhile, so the call's owner completes it later.
	NextCall(l *Lane, now time.Time) (c *Call, more bool)
}

// Call is a script call that goes with a flight.
type Call struct {
	script.Call
	Owner    Owner
	Requests int       // how many requests it decides
	Last     time.Time // the end of its caller's own time; zero: none

	// Ctx is the context of the one caller whose request the call decides, for the Redis client's hooks; otherwise nil.
	Ctx context.Context

	Wave  *Wave // of its first flight, on which callers may wait; it ends when all owners have answered theirs
	Short error // why the grant of the last attempt does not count
	Rider *Call // goes along with the call's first flight, if its owner's Prepare sets the Script, and so does its own Rider

	// Late, if not nil, is called once the call is over if Do has returned false, perhaps before it does: with the
	// call, or with nil if that was not under way when its caller left.
	Late func(c *Call)

	self   [1]*Call
	flight *flight   // the last that it was sent with
	due    time.Time // when it is sent again
}

// Owner waits for a call.
type Owner interface {
	// Prepare completes a call whose Script is not set yet, right before its first attempt. The lock is not held.
	Prepare(c *Call)

	// OnReply is called when the call is done. It returns true if it has prepared the call to be
	// sent again.
	OnReply(c *Call) (again bool)

	// Progressed is called when a call of several steps was answered and goes on. The lock is not held.
	Progressed()
}

const (
	minFlights, maxFlights = 2, 64

	// tripShare is the part of a round trip that one flight is worth: what a
	// server and this process need for a small one.
	tripShare = 50 * time.Microsecond

	// minWindow is how many calls may be under way at least while the server answers in time: what it has answered
	// lately says little while little is asked.
	minWindow = 256

	// minRoom is how many calls a flight takes at least, if the server answers.
	minRoom = 16

	// maxTogether is how many calls one flight takes, so that the first answer
	// does not wait for too many others.
	maxTogether = 512

	// maxReady is how many of them may be ready-made, so that these delay the decisions beside them by a
	// millisecond or two at most.
	maxReady = 128

	// maxIdle is from how many lanes on those without work are forgotten. A master that is asked now and then keeps
	// its lane, which knows whether it answers, and how soon.
	maxIdle = 1024

	// unknownPool is the pool size assumed if the client doesn't expose one.
	unknownPool = 20
)

// Lanes are the lanes to one Redis.
type Lanes struct {
	Conn     *script.Conn
	Observer *observe.Observer // receives what happens to flights

	only     *Lane // if there is one master
	replicas Replicas

	mu  sync.Mutex // guards changes of what follows; the lanes' locks are taken after it
	all atomic.Pointer[map[script.Master]*Lane]

	work  atomic.Int64  // how much is under way that Close waits for: see closed
	over  chan struct{} // closed when nothing is any more
	ended sync.Once     // closes over

	apart atomic.Bool                // the server refuses keys of several limiters in one call
	timer atomic.Pointer[time.Timer] // for the next caller that waits by itself
}

// New returns the Lanes to conn.
func New(conn *script.Conn, observer *observe.Observer) *Lanes {
	s := &Lanes{Conn: conn, Observer: observer, over: make(chan struct{})}
	s.all.Store(&map[script.Master]*Lane{})
	s.only = newLane(s, nil)
	s.apart.Store(conn.Cluster())
	return s
}

// To returns the lane to the master of a key. It may wait to find out which master that is. If there are many, those without
// work are forgotten when another comes; one that a caller still has sends all the same.
func (l *Lanes) To(ctx context.Context, key string) *Lane { return l.to(l.Conn.Master(ctx, key)) }

// Lock locks the lane that To returns.
func (l *Lanes) Lock(ctx context.Context, key string) *Lane {
	lane := l.To(ctx, key)
	lane.Lock()
	return lane
}

// Breaker returns the breaker of a key's master, without waiting to find out which master that is. It takes no lock if the
// lane is known.
func (l *Lanes) Breaker(ctx context.Context, key string) *outage.Breaker {
	return &l.to(l.Conn.KnownMaster(ctx, key)).Breaker
}

// to returns the lane to a master.
func (l *Lanes) to(master script.Master) *Lane {
	if master == nil {
		return l.only
	}
	if lane := (*l.all.Load())[master]; lane != nil {
		return lane
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	before := *l.all.Load()
	if lane := before[master]; lane != nil {
		return lane
	}
	all := map[script.Master]*Lane{master: newLane(l, master)}
	for known, lane := range before {
		if len(before) < maxIdle || !lane.idle() {
			all[known] = lane
		}
	}
	l.all.Store(&all)
	return all[master]
}

// lanes returns all lanes.
func (l *Lanes) lanes() []*Lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append(slices.Collect(maps.Values(*l.all.Load())), l.only)
}

// Lane sends everything for one master.
type Lane struct {
	Breaker outage.Breaker // for callers who have a policy for outages

	lanes    *Lanes
	conn     *script.Conn
	master   script.Master // nil if there is only one server
	most     int           // flights, however long the round trip
	replicas Replicas

	// The next flight may leave beside a late one if fewer than this are stuck. Some of the pool's connections
	// are kept for flights given up, at the pace of attempts, so that a long silence does not use up all.
	spare int

	mu       sync.Mutex // guards what follows
	ready    []Source   // have something to send
	taken    []Source   // room for those of them that a flight asks
	asking   bool       // one does, without the lock; it also takes what comes meanwhile
	wave     *Wave      // of the next flight, or of that; nil while no one waits on it
	calls    []*Call    // ready-made calls to be sent: commands, and what is made again
	once     []*Call    // those of them that go by themselves
	onceLast bool       // the last flight was of these
	ended    int        // about how many calls to be sent have no caller any more
	delayed  []*Call    // to be sent again later

	flights    int       // how many of the places for flights are taken
	load       int       // calls of the flights in them
	window     int       // how many of these more may join: what the server answers in a fraction of a call's time
	landed     int       // calls, since the lane was made
	underWay   []*flight // sent and neither landed nor given up
	stuck      int       // flights that are late or were given up, for which go-redis still waits
	silent     bool      // the server has not answered lately: one call at a time shows whether it does
	lastAnswer time.Time // of the server
	newest     time.Time // when the last flight was sent that it has answered
	trips      outage.Trips
	shortest   atomic.Int64 // of these
	near       atomic.Bool  // they are short
	behind     time.Time    // when replicas last did not confirm in time; zero: they keep up

	sweeper *time.Timer // runs sweep
	sweepAt time.Time   // when; zero: no more

	parked chan *flight // to goroutines that have just sent flights
}

func newLane(s *Lanes, master script.Master) *Lane {
	pool := s.Conn.PoolSize
	if pool == 0 {
		pool = unknownPool
	}
	most := max(1, min(maxFlights, pool/2))
	l := &Lane{
		lanes: s, conn: s.Conn, master: master, most: most, replicas: s.replicas, parked: make(chan *flight), window: minWindow,
		spare: max(min(1, pool-1), 2*most-max(3, most/2)),
	}
	l.Breaker.Slack = s.replicas.Wait
	return l
}

// Lock locks the lane. Its lock is taken after those of Sources.
func (l *Lane) Lock() { l.mu.Lock() }

// Unlock unlocks it.
func (l *Lane) Unlock() { l.mu.Unlock() }

// pause lets others have the lock.
func (l *Lane) pause() {
	l.mu.Unlock()
	l.mu.Lock()
}

// idle reports whether the lane has nothing to do.
func (l *Lane) idle() bool {
	if !l.mu.TryLock() {
		return false
	}
	defer l.mu.Unlock()
	return l.flights+l.stuck+l.waits()+len(l.delayed) == 0
}

// Fresh is how old an answer of the server may be that a new caller can rely on: a few round trips.
func (l *Lane) Fresh() time.Duration {
	return max(4*time.Duration(l.shortest.Load()), 5*time.Millisecond)
}

// waits returns how many calls and sources wait to be sent.
func (l *Lane) waits() int { return len(l.ready) + len(l.calls) + len(l.once) }

// limit returns how many flights may be under way.
func (l *Lane) limit() int {
	if l.silent {
		if l.stuck >= 2*l.most {
			return 0
		}
		return 1
	}
	return min(l.most, max(minFlights, 1+int(l.trips.Shortest()/tripShare)))
}

// Ready makes a flight ask the source for its calls. Callers whose requests go with it may wait on its
// Wave, which is nil if the flight is not the next.
func (l *Lane) Ready(s Source) *Wave {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ready = append(l.ready, s)
	var wave *Wave
	if !l.silent && len(l.ready) <= maxTogether {
		if l.wave == nil || l.wave.over.Load() {
			l.wave = &Wave{done: make(chan struct{})}
		}
		wave = l.wave
	}
	l.start()
	return wave
}

// TryReserve reports whether a lone caller may send its call by SendOne right now.
func (l *Lane) TryReserve() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reserve()
}

func (l *Lane) reserve() bool {
	if l.flights > 0 || l.limit() == 0 || l.waits() > 0 {
		return false
	}
	l.flights++
	l.load++
	return true
}

// SendOne sends a call by itself, after TryReserve; the Redis client's hooks see ctx. If the connection ends
// reads in time, and the caller does not leave before, SendOne sends it on the caller's goroutine, and returns when the
// call is done or others go on with it. Otherwise it returns at once: go-redis would close the connection of a caller
// who leaves.
func (l *Lane) SendOne(ctx context.Context, c *Call, timed bool) {
	c.Ctx, c.self[0] = ctx, c
	f := &flight{calls: c.self[:], load: 1, alone: true, hasPlace: true}
	if timed || !l.conn.Inline || l.leaves(ctx, c) {
		l.dispatch(f)
		return
	}
	f.byOne = true
	panicked := l.sendFlight(ctx, f)
	if f.hasPlace {
		l.dispatch(nil)
	}
	if panicked != nil {
		panic(panicked)
	}
}

// leaves reports whether a call's caller may leave before an attempt is over.
func (l *Lane) leaves(ctx context.Context, c *Call) bool {
	deadline, has := ctx.Deadline()
	attempt := l.conn.Timeout
	if c.Repeat {
		attempt = l.conn.AttemptTimeout
	}
	return has && time.Until(deadline) < attempt
}

// start lets one more flight leave, if it may and has something to take.
func (l *Lane) start() {
	if l.flights < l.limit() && l.hasWork() {
		l.flights++
		l.dispatch(nil)
	}
}

// setSilent records whether the server is silent.
func (l *Lane) setSilent(silent bool) {
	if l.silent == silent {
		return
	}
	l.silent = silent
	kind := limit.ServerAnswers
	if silent {
		kind = limit.ServerSilent
		l.wave.End()
		l.watch()
	}
	l.lanes.Observer.Happened(limit.Event{Kind: kind})
}

// waiting reports whether the next flight may leave and has something to take.
func (l *Lane) waiting() bool { return l.flights <= l.limit() && l.hasWork() }

// hasWork reports whether there is something to take that no flight is taking.
func (l *Lane) hasWork() bool { return !l.asking && l.waits() > 0 && l.load < l.window }
