package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/rratelimitertest"
)

const acme, other = "acme.example", "other.example"

type arrival struct {
	host, id string
	at       time.Time
}

// world is the partners of a test, and what programs know together.
type world struct {
	*rratelimitertest.Env

	t        *testing.T
	partners map[string]partner
	rate     atomic.Int64 // of each tenant, a second

	mu      sync.Mutex
	arrived []arrival
	ended   map[string]error // by the job's ID
	stopped map[string]time.Time
	draw    *rand.Rand
}

// RoundTrip takes up to jitter on its way. A partner that is stopped answers 429.
func (w *world) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	way := time.Duration(w.draw.Int64N(int64(jitter)))
	w.mu.Unlock()
	time.Sleep(way)
	w.mu.Lock()
	defer w.mu.Unlock()
	resp := &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Header: http.Header{}, Request: r}
	if left := time.Until(w.stopped[r.URL.Host]); left > 0 {
		resp.StatusCode = http.StatusTooManyRequests
		resp.Header.Set("Retry-After", fmt.Sprint(int((left+time.Second-1)/time.Second)))
	}
	w.arrived = append(w.arrived, arrival{r.URL.Host, r.Header.Get("Idempotency-Key"), time.Now()})
	return resp, nil
}

type program struct {
	*dispatcher

	world  *world
	killed atomic.Bool
	cancel context.CancelFunc
	done   chan error
}

func (w *world) start() *program {
	w.t.Helper()
	opts := *w.Redis.Options()
	p := &program{world: w, done: make(chan error, 1)}
	rdb := redis.NewClient(&opts)
	rdb.AddHook(redistest.FailWhile(&p.killed, errKilled))
	w.t.Cleanup(func() { _ = rdb.Close() })
	var err error
	p.dispatcher, err = newDispatcher(config{
		rdb: rdb, base: p, partners: w.partners,
		rateOf: func(string) rratelimiter.Config { return rratelimiter.PerSecond(w.rate.Load()) },
		ended: func(_ string, j job, err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ended[j.ID] = err
		},
	})
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(w.t.Context())
	p.cancel = cancel
	go func() { p.done <- p.run(ctx) }()
	return p
}

func (p *program) stop() {
	p.cancel()
	assert.NoError(p.world.t, <-p.done)
}

var errKilled = errors.New("killed")

// kill is kill -9: nothing that the program says arrives any more.
func (p *program) kill() {
	p.killed.Store(true)
	p.cancel()
	p.world.t.Log("killed:", <-p.done)
}

func (p *program) RoundTrip(r *http.Request) (*http.Response, error) {
	if p.killed.Load() {
		return nil, errKilled
	}
	return p.world.RoundTrip(r)
}

// submitJob submits a job that must be sent within so much time.
func (p *program) submitJob(host, tenant string, n int, within time.Duration) (id string, eta time.Duration, err error) {
	id = fmt.Sprintf("%s %s %d %v", host, tenant, n, within)
	eta, err = p.submit(p.world.t.Context(), host, job{ID: id, Tenant: tenant, Path: "/", Deadline: time.Now().Add(within)})
	return id, eta, err
}

// flood submits jobs of a tenant that have time.
func (p *program) flood(host, tenant string, jobs int) {
	p.world.t.Helper()
	for n := range jobs {
		_, _, err := p.submitJob(host, tenant, n, time.Hour)
		require.NoError(p.world.t, err)
	}
}

// at returns when calls have arrived at a partner, in order.
func (w *world) at(host string) (moments []time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.arrived {
		if a.host == host {
			moments = append(moments, a.at)
		}
	}
	slices.SortFunc(moments, time.Time.Compare)
	return moments
}

// densest returns the most calls that a partner has counted in any second.
func (w *world) densest(host string) (most int) {
	all := w.at(host)
	for i, first := range all {
		n := 0
		for _, at := range all[i:] {
			if at.Sub(first) < time.Second {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// sent returns how many jobs were sent, and that none failed.
func (w *world) sent() int {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, err := range w.ended {
		assert.NoError(w.t, err, id)
	}
	return len(w.ended)
}

// used returns how much of a partner's day is used.
func (w *world) used(host string) int64 {
	d := limitertest.Must(w.Client.RateLimiter("day:{"+host+"}").Peek(w.t.Context(), 0))(w.t)
	return d.Limit - d.Remaining
}

var dispatching = limitertest.Tests[*world]{
	// Two programs send what 50 tenants want: no partner counts more than it allows in any second though calls take different
	// times to arrive, each job is sent once, and a tenant who floods does not hold up others.
	"SharesPartnersAmongTenants": func(t *testing.T, w *world) {
		w.rate.Store(5)
		w.partners[acme] = partner{perSecond: 20, perDay: 1000}
		a, b := w.start(), w.start()
		a.flood(acme, "greedy", 40)
		time.Sleep(2 * time.Second)
		for i := range 49 {
			for _, host := range []string{acme, other} {
				_, eta, err := b.submitJob(host, fmt.Sprint("tenant {}: ", i), 0, time.Minute)
				require.NoError(t, err)
				assert.Less(t, eta, 15*time.Second)
			}
		}
		time.Sleep(5 * time.Second)
		w.mu.Lock()
		for i := range 49 {
			assert.Contains(t, w.ended, fmt.Sprintf("%s tenant {}: %d 0 1m0s", acme, i), "within 5 s: 49 at 15 a second")
		}
		w.mu.Unlock()
		time.Sleep(10 * time.Second)
		a.stop()
		b.stop()
		assert.Equal(t, 40+2*49, w.sent())
		assert.Len(t, w.at(acme), 40+49, "each once")
		assert.Len(t, w.at(other), 49)
		assert.InDelta(t, 18, w.densest(acme), 2)
		assert.InDelta(t, 9, w.densest(other), 1)
		assert.EqualValues(t, 40+49, w.used(acme))
	},

	// Jobs that can't be sent in time are rejected at once: because of those before them, or because the day's limit is used up.
	// One that is in time when it comes, but not in the end, is not sent.
	"RejectsWhatComesTooLate": func(t *testing.T, w *world) {
		w.partners[acme] = partner{perSecond: 10, perDay: 40}
		p, accepted := w.start(), 0
		for n := range 60 {
			_, eta, err := p.submitJob(acme, "ann", n, 2500*time.Millisecond)
			if err != nil {
				require.ErrorIs(t, err, errLate)
				assert.Greater(t, eta, 2500*time.Millisecond)
				continue
			}
			accepted++
		}
		assert.InDelta(t, 30, accepted, 3)
		time.Sleep(5 * time.Second)
		assert.Equal(t, accepted, w.sent())
		p.flood(acme, "ann", 40-accepted)
		time.Sleep(10 * time.Second)
		_, eta, err := p.submitJob(acme, "ann", 101, 20*time.Hour)
		require.ErrorIs(t, err, errLate)
		assert.InDelta(t, 24*time.Hour, eta, float64(time.Minute))
		assert.Equal(t, 40, w.sent())

		w.partners[acme], w.partners[other] = partner{perSecond: 1, perDay: 1000}, partner{perSecond: 1, perDay: 1000}
		late, _, err := p.submitJob(other, "bob", 0, 3*time.Second)
		require.NoError(t, err)
		for n := range 20 {
			text := job{ID: fmt.Sprint("urgent ", n), Tenant: "bob", Path: "/", Deadline: time.Now().Add(time.Minute), Urgent: true}
			require.NoError(t, limitertest.Second(p.submit(t.Context(), other, text)))
		}
		time.Sleep(30 * time.Second)
		w.mu.Lock()
		require.ErrorIs(t, w.ended[late], errLate, "urgent ones went first")
		assert.Len(t, w.ended, 40+21)
		w.mu.Unlock()
		_, _, err = p.submitJob("nobody.example", "ann", 0, time.Hour)
		require.ErrorContains(t, err, "no partner")
		p.stop()
	},

	// A 429 stops all programs' calls of one partner within a second, those of no other, and costs no tenant anything.
	"PartnerPauses": func(t *testing.T, w *world) {
		a, b := w.start(), w.start()
		for _, host := range []string{acme, other} {
			a.flood(host, "ann", 30)
		}
		time.Sleep(1500 * time.Millisecond)
		w.mu.Lock()
		w.stopped[acme] = time.Now().Add(30 * time.Second)
		w.mu.Unlock()
		time.Sleep(2 * time.Second)
		before := len(w.at(acme))
		_, eta, err := b.submitJob(acme, "bob", 0, time.Hour)
		require.NoError(t, err)
		assert.Greater(t, eta, 25*time.Second)
		time.Sleep(25 * time.Second)
		assert.Len(t, w.at(acme), before)
		assert.Len(t, w.at(other), 30)
		restarted := w.start()
		time.Sleep(20 * time.Second)
		for _, p := range []*program{a, b, restarted} {
			p.stop()
		}
		assert.Equal(t, 61, w.sent())
		assert.EqualValues(t, 31, w.used(acme), "what was refused is not of the day")
		assert.LessOrEqual(t, w.densest(acme), 10)
	},

	// If a program is killed, others send its jobs within seconds, and permits that it had reserved come back.
	"ProgramIsKilled": func(t *testing.T, w *world) {
		w.partners[acme] = partner{perSecond: 10, perDay: 50}
		a, b := w.start(), w.start()
		a.flood(acme, "ann", 40)
		time.Sleep(2500 * time.Millisecond)
		a.kill()
		time.Sleep(hold + 6*time.Second)
		assert.Equal(t, 40, w.sent())
		ids := map[string]int{}
		for _, call := range w.arrived {
			ids[call.id]++
		}
		assert.Len(t, ids, 40)
		assert.LessOrEqual(t, len(w.arrived)-len(ids), 10, "those that were under way come twice, with the same Idempotency-Key")
		assert.LessOrEqual(t, w.used(acme), int64(len(w.arrived)))
		assert.GreaterOrEqual(t, w.used(acme), int64(40))
		b.stop()
	},
}

func TestDispatcher(t *testing.T) {
	t.Parallel()
	limitertest.Bubbles(t, dispatching, func(t *testing.T, test func(t *testing.T, w *world)) {
		w := &world{
			Env: rratelimitertest.New(t), t: t, ended: map[string]error{}, stopped: map[string]time.Time{}, draw: rand.New(rand.NewPCG(1, 2)),
			partners: map[string]partner{acme: {perSecond: 10, perDay: 1000}, other: {perSecond: 10, perDay: 1000}},
		}
		w.rate.Store(100)
		test(t, w)
	})
}
