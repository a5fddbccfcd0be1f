package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
)

// job is a call of a partner for a tenant.
type job struct {
	ID       string // by which the partner sees that a call is repeated
	Tenant   string
	Path     string
	Deadline time.Time
	Urgent   bool
}

// rank is the job's place in the queue: those that are urgent come first, and then those with an early deadline.
func (j job) rank() (rank float64) {
	if j.Urgent {
		rank = -1e13
	}
	return rank + float64(j.Deadline.UnixMilli())
}

type config struct {
	rdb      *redis.Client
	base     http.RoundTripper
	partners map[string]partner                      // by host
	rateOf   func(tenant string) rratelimiter.Config // at each partner; it may change at any time
	ended    func(host string, j job, err error)     // learns what became of a job
}

type partner struct{ perSecond, perDay int64 } // what it allows

const (
	jitter   = 100 * time.Millisecond // by how much it differs how long a call is on its way
	sendTime = 4 * time.Second        // that a call may take
	hold     = 5 * time.Second        // after which a program that was sending a job is taken for dead
	tick     = 200 * time.Millisecond // between looks at a queue in which nothing can be sent
)

var errLate = errors.New("it can't be sent in time")

// dispatcher sends jobs to partners, together with all programs that use the same Redis. The jobs are there too: those of a
// partner in a sorted set by rank, and in another one while they are sent.
type dispatcher struct {
	config

	client               *rratelimiter.Client
	http                 *http.Client
	second, day, tenants *rratelimiter.KeyedLimiter
	paused               sync.Map // until when, by host
}

func newDispatcher(cfg config) (*dispatcher, error) {
	d := &dispatcher{config: cfg, client: rratelimiter.New(cfg.rdb)}
	of := func(key string) partner { return cfg.partners[strings.Trim(key, "{}")] }
	d.second = d.client.KeyedFunc("second:", func(key string) rratelimiter.Config {
		return rratelimiter.Config{Rate: of(key).perSecond, Interval: time.Second + jitter}
	})
	d.day = d.client.KeyedFunc("day:", func(key string) rratelimiter.Config { return rratelimiter.PerDay(of(key).perDay) })
	d.tenants = d.client.KeyedFunc("tenant:", func(key string) rratelimiter.Config {
		_, name, _ := strings.Cut(key, "}")
		name, _ = url.QueryUnescape(name)
		return cfg.rateOf(name)
	})
	transport := httplimit.NewTransport(cfg.base, httplimit.Local(math.MaxInt32, time.Second), // which limits nothing
		httplimit.WithPrefix("partner:"), httplimit.WithHashTag(), httplimit.WithWait(0), httplimit.WithSharedPause(d.client))
	d.http = &http.Client{Transport: transport, Timeout: sendTime}
	return d, errors.Join(d.client.Err(), transport.Err())
}

// All keys of a partner have one hash tag.
func queued(host string) string            { return "queued:{" + host + "}" }
func running(host string) string           { return "running:{" + host + "}" }
func tenantKey(host, tenant string) string { return "{" + host + "}" + url.QueryEscape(tenant) }

// submit queues a job, and returns in how long it will probably be sent. If that is too late, it returns errLate at once.
func (d *dispatcher) submit(ctx context.Context, host string, j job) (eta time.Duration, err error) {
	if eta, err = d.eta(ctx, host, j); err == nil && time.Until(j.Deadline) < eta {
		err = errLate
	}
	if err != nil {
		return eta, err
	}
	text, err := json.Marshal(j)
	return eta, errors.Join(err, d.rdb.ZAdd(ctx, queued(host), redis.Z{Score: j.rank(), Member: text}).Err())
}

// eta is in how long a job can be sent, behind those that come before it.
func (d *dispatcher) eta(ctx context.Context, host string, j job) (time.Duration, error) {
	p, key := d.partners[host], "{"+host+"}"
	if p == (partner{}) {
		return 0, errors.New("there is no partner " + host)
	}
	ahead, err := d.rdb.ZCount(ctx, queued(host), "-inf", strconv.FormatFloat(j.rank(), 'f', -1, 64)).Result()
	second, err1 := d.second.Peek(ctx, key, ahead%p.perSecond+1)
	day, err2 := d.day.Peek(ctx, key, min(ahead+1, p.perDay))
	tenant, err3 := d.tenants.Peek(ctx, tenantKey(host, j.Tenant), 1)
	pause, err4 := d.rdb.PTTL(ctx, "partner:"+key+":pause").Result()
	turns := time.Duration(ahead/p.perSecond) * (time.Second + jitter)
	return max(0, pause) + max(turns+second.RetryAfter, day.RetryAfter, tenant.RetryAfter), errors.Join(err, err1, err2, err3, err4)
}

// run sends jobs until ctx ends, and returns once those under way have been sent.
func (d *dispatcher) run(ctx context.Context) error {
	var work sync.WaitGroup
	for host := range d.partners {
		work.Go(func() {
			for ctx.Err() == nil {
				wait, err := d.next(ctx, host, &work)
				if err != nil && ctx.Err() == nil {
					slog.Error("jobs wait", "partner", host, "error", err)
				}
				select {
				case <-ctx.Done():
				case <-time.After(min(max(wait, time.Millisecond), time.Second)):
				}
			}
		})
	}
	work.Wait()
	return d.client.Close(context.WithoutCancel(ctx))
}

// next begins to send what the limits allow now, and returns in how long they may allow more. Jobs of tenants whose own
// limits are used up do not hold up others.
func (d *dispatcher) next(ctx context.Context, host string, work *sync.WaitGroup) (wait time.Duration, err error) {
	over := redis.ZRangeArgs{Key: running(host), Start: 0, Stop: time.Now().UnixMilli(), ByScore: true}
	left, err := d.rdb.ZRangeArgs(ctx, over).Result()
	for _, text := range left { // of a program that has died
		d.move(ctx, running(host), queued(host), text, jobOf(text).rank())
	}
	paused, _ := d.paused.Load(host)
	if until, _ := paused.(time.Time); time.Now().Before(until) || err != nil {
		return time.Second, err
	}
	limited := map[string]bool{}
	for from := int64(0); ; from += 100 {
		texts, err := d.rdb.ZRange(ctx, queued(host), from, from+99).Result()
		if err != nil || len(texts) == 0 {
			return tick, err
		}
		for _, text := range texts {
			j := jobOf(text)
			if time.Now().After(j.Deadline) {
				d.end(ctx, queued(host), host, text, errLate)
				continue
			} else if limited[j.Tenant] {
				continue
			}
			r, err := d.client.ReserveAll(ctx, 0, d.tenants.Claim(tenantKey(host, j.Tenant), 1, rratelimiter.Hold(hold)),
				d.second.Claim("{"+host+"}", 1), d.day.Claim("{"+host+"}", 1, rratelimiter.Hold(hold)))
			switch {
			case err != nil:
				return tick, err
			case !r.Decisions[1].Granted || !r.Decisions[2].Granted:
				return r.RetryAfter, nil
			case !r.Granted:
				limited[j.Tenant] = true
			case d.move(ctx, queued(host), running(host), text, float64(time.Now().Add(hold).UnixMilli())):
				work.Go(func() { d.send(context.WithoutCancel(ctx), host, text, j, r) })
			default: // another program has it
				_ = r.Cancel(ctx)
			}
		}
	}
}

// send sends a job that is this program's. What was not sent, or refused, is charged to no tenant.
func (d *dispatcher) send(ctx context.Context, host, text string, j job, r *rratelimiter.Reservations) {
	to := &url.URL{Scheme: "https", Host: host, Path: j.Path}
	req := &http.Request{Method: http.MethodPost, URL: to, Header: http.Header{"Idempotency-Key": {j.ID}}}
	resp, err := d.http.Do(req.WithContext(ctx))
	used := int64(1)
	if err == nil {
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusTooManyRequests {
			used, err = 0, errors.New(resp.Status)
		}
	}
	settle := func() error { return r.Settle(ctx, used, 1, used) }
	if notSent, paused := errors.AsType[*httplimit.NotSentError](err); paused {
		d.paused.Store(host, time.Now().Add(notSent.RetryAfter))
		settle = func() error { return r.Cancel(ctx) }
	}
	if err := settle(); err != nil {
		slog.Error("limits not settled", "partner", host, "error", err)
	}
	if err != nil {
		d.move(ctx, running(host), queued(host), text, j.rank())
		return
	}
	d.end(ctx, running(host), host, text, nil)
}

var moving = redis.NewScript(`return redis.call('ZREM', KEYS[1], ARGV[1]) == 1 and redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])`)

// move moves a job if it is there: of several programs, one does.
func (d *dispatcher) move(ctx context.Context, from, to, text string, rank float64) bool {
	moved, err := moving.Run(ctx, d.rdb, []string{from, to}, text, rank).Bool()
	return err == nil && moved
}

// end removes a job.
func (d *dispatcher) end(ctx context.Context, from, host, text string, err error) {
	if removed, _ := d.rdb.ZRem(ctx, from, text).Result(); removed == 1 {
		d.ended(host, jobOf(text), err)
	}
}

func jobOf(text string) (j job) {
	_ = json.Unmarshal([]byte(text), &j) // it was made by submit
	return j
}
