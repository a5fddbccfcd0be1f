package chaos_test

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
)

// mood is what a round's faults may do, and so how much can be checked.
type mood string

const (
	gentle   mood = "gentle"   // nothing is lost and little late: all is exact
	dropping mood = "dropping" // requests and answers get lost, and are repeated in time
	lossy    mood = "lossy"    // calls get lost, but no data
	losing   mood = "losing"   // data gets lost
	stepping mood = "stepping" // calls get lost, and the server's clock is set
)

// A plan is what a round is to be, all of it drawn from the seed and its number.
type plan struct {
	seed     uint64
	number   int
	arenas   []string // that it may be on
	releases []string // of Redisson that it may have
	servers  string   // which it is on
	beside   bool     // it is to be measured beside another one of the same calls
	redisson string   // the release that programs have which take part; empty where none do
	mood     mood
	length   time.Duration
	limiters []*limiter
	clients  []clientPlan
	weather  []*weather    // what becomes of single commands
	stormy   float64       // how many of them
	faults   []*fault      // of servers and clients
	pause    time.Duration // between faults, at most
	hook     func(*goCrew) redis.Hook
	reduced  reduction // what it does without
}

// drawer returns the draw of one part of a round.
func drawer(seed uint64, number int, of ...any) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, number, of)
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

func (p *plan) draw(of ...any) *rand.Rand { return drawer(p.seed, p.number, of...) }

func newPlan(seed uint64, number int, arenas []string) *plan {
	p := &plan{seed: seed, number: number, arenas: arenas}
	draw := p.draw("plan")
	p.servers = arenas[draw.IntN(len(arenas))]
	moods := []mood{gentle, gentle, dropping, dropping, lossy, lossy, lossy, losing, losing}
	switch p.servers {
	case single:
		moods = append(moods, stepping, stepping)
	case cluster: // slots move in both, and servers change places
		moods = append(moods, lossy, lossy, losing, losing, losing, losing, losing)
	case sentinel: // masters are replaced in it alone
		moods = append(moods, slices.Repeat([]mood{losing}, 9)...)
	}
	p.mood = moods[draw.IntN(len(moods))]
	p.length = time.Duration(1500+draw.IntN(2000)) * time.Millisecond
	if p.servers == sentinel && p.mood == losing {
		p.length *= 2 // Sentinels take some seconds to replace a master
	}
	p.drawLimiters(draw)
	for i := range 2 + draw.IntN(3) {
		c := drawClient(draw, fmt.Sprintf("c%d", i+1))
		if p.mood == dropping {
			c.callTimeout += time.Second // for several attempts
		}
		p.clients = append(p.clients, c)
	}
	p.drawProcesses()
	p.drawFaults(draw)
	return p
}

// allows tells whether a fault from that mood on may happen in this one.
func (m mood) allows(from mood) bool {
	worse := []mood{gentle, dropping, lossy}
	first, own := slices.Index(worse, from), slices.Index(worse, m)
	return m == from || first >= 0 && (own < 0 || own > first)
}

func drawClient(draw *rand.Rand, name string) clientPlan {
	kinds := sorted(redisOptions)
	return clientPlan{
		name:        name,
		redis:       kinds[draw.IntN(len(kinds))],
		callTimeout: time.Duration(300+draw.IntN(900)) * time.Millisecond,
		callers:     2 + draw.IntN(5),
		pause:       time.Duration([]int{1, 5, 15}[draw.IntN(3)]) * time.Millisecond,
	}
}

// drawLimiters draws some limiters of several kinds. Braces keep the keys of each, and
// those of a family, in one slot.
func (p *plan) drawLimiters(draw *rand.Rand) {
	for i := range 3 + draw.IntN(3) {
		name := fmt.Sprintf("{r%d:%d}", p.number, i)
		switch draw.IntN(10) {
		case 0, 1, 2:
			p.limiters = append(p.limiters, drawRate(draw, name, overall))
		case 3:
			p.limiters = append(p.limiters, drawRate(draw, name, perClient))
		case 4, 5:
			p.limiters = append(p.limiters, drawFamily(draw, name)...)
		case 6:
			l := drawLimiter(draw, name+"keyed:a", keyed)
			l.prefix, l.config.KeepAlive = name+"keyed:", l.config.Interval
			p.limiters = append(p.limiters, l)
		case 7:
			p.limiters = append(p.limiters, drawLimiter(draw, name, window))
		case 8:
			l := drawLimiter(draw, name, log)
			if draw.IntN(2) == 0 {
				l.threshold = fmt.Sprintf("thresholds:{r%d}", p.number)
			}
			p.limiters = append(p.limiters, l)
		case 9:
			l := drawLimiter(draw, name, bucket)
			l.refill, l.borrow = 1+draw.Int64N(l.config.Rate), draw.Int64N(3)
			l.config.Interval = max(l.config.Interval, time.Second).Truncate(time.Second)
			p.limiters = append(p.limiters, l)
		}
	}
	for _, l := range p.limiters {
		// A lease goes on after another Client's Reset, of permits that are free again.
		l.resets = draw.IntN(4) == 0 && l.lease == 0
	}
}

func drawLimiter(draw *rand.Rand, name string, k kind) *limiter {
	l := &limiter{name: name, kind: k}
	l.config = rratelimiter.PerHour(5 + draw.Int64N(100))
	if draw.IntN(2) > 0 {
		l.config.Interval = time.Duration(300+draw.IntN(1200)) * time.Millisecond
		l.config.Rate = 3 + draw.Int64N(40)
	}
	return l
}

func drawRate(draw *rand.Rand, name string, k kind) *limiter {
	l := drawLimiter(draw, name, k)
	if k == perClient {
		l.config.Type = rratelimiter.PerClient
	}
	l.byDefault = draw.IntN(2) == 0
	switch draw.IntN(8) {
	case 0, 1:
		l.lease = l.config.Interval / 20
		if l.counted() {
			l.lease = time.Duration(50+draw.IntN(2000)) * time.Millisecond
		}
		l.config.Rate *= 40 // a lease is a small part of what is free
	case 2:
		l.refusals = true
	case 3:
		l.wild = true
	case 4:
		l.config.KeepAlive = l.config.Interval + time.Duration(draw.IntN(500))*time.Millisecond
	}
	return l
}

// drawFamily draws limiters that are asked one by one, and together.
func drawFamily(draw *rand.Rand, name string) []*limiter {
	var all []*limiter
	var names []string
	for i := range 2 + draw.IntN(2) {
		l := drawLimiter(draw, fmt.Sprintf("%s%d", name, i), overall)
		l.byDefault = draw.IntN(2) == 0
		all, names = append(all, l), append(names, l.name)
	}
	for i, l := range all {
		l.family = slices.Concat([]string{l.name}, names[:i], names[i+1:])
	}
	return all
}

// drawFaults draws which faults there may be, of those that the mood and the servers allow.
func (p *plan) drawFaults(draw *rand.Rand) {
	for _, w := range weathers {
		if p.mood.allows(w.mood) && draw.IntN(2) == 0 {
			p.weather = append(p.weather, w)
		}
	}
	p.stormy = []float64{0.01, 0.03, 0.1}[draw.IntN(3)]
	for _, f := range faults {
		if f.allowed(p) && (draw.IntN(2) == 0 || f.mood == p.mood || slices.Contains(topologyFaults, f)) {
			p.faults = append(p.faults, f)
		}
	}
	p.pause = time.Duration(50+draw.IntN(400)) * time.Millisecond
}
