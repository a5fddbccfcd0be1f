package demo

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// thresholds is the key of the thresholds of sliding logs that services have in
// common.
const thresholds = "rate:limit:config"

// Scenarios returns the demos of the other limiters.
func Scenarios() []Scenario { return scenarios }

var scenarios = []Scenario{
	{
		Name: "fixed-window", Short: "120 calls at 100 a minute, and twice the limit around a window's edge", newPlan: windowPlan,
		Long: `See a fixed window at work: of 120 calls at 100 a minute 100 pass and 20 do not.
Then the burst that fixed windows let through: the end of one window and the
beginning of the next pass the limit twice within seconds.`,
	},
	{
		Name: "sliding-log", Short: "3 calls a minute and user, and a threshold raised in the middle", newPlan: logPlan,
		Long: `See a sliding log at work: three users, each with 3 calls a minute. In the middle
an operator raises the threshold of one of them in Redis.`,
	},
	{
		Name: "token-bucket", Short: "a bucket of 10 tokens, and requests that cost different numbers of them", newPlan: bucketPlan,
		Long: `See a token bucket at work: 10 tokens, one more each second, and requests that
cost different numbers of them; beside it the same bucket with 5 tokens to
borrow.`,
	},
	{
		Name: "counter", Short: "10 calls a second for an address, 500 in 30 seconds for a user", newPlan: counterPlan,
		Long: `See two counters at work, each with 20 calls a second: one lets 10 a second pass
for an address and an interface, the other 500 in 30 seconds for a user and an
interface.`,
	},
}

func newWindowLane(client *rratelimiter.Client, name, key string, cfg fixedwindow.Config) *lane {
	return &lane{name: name, key: key, limiter: fixedwindow.New(client, cfg), window: cfg.Window, rule: keptByWindow}
}

func windowPlan(rdb *redis.Client) *plan {
	user := newWindowLane(newClient(rdb), "user1", "api:limit:user1", fixedwindow.Config{Limit: 100, Window: time.Minute})
	p := &plan{
		rule: "fixed window, 100 permits every 1m", row: 5 * time.Second, mark: 3, speed: 60, lanes: []*lane{user},
		kept: "never more than 100 in one window, by the windows that the limiter made",
		advice: "around the edge of two windows up to twice the limit can pass, as here from 1:55 on; " +
			"if that matters,\nuse a sliding log or a token bucket: rrl demo sliding-log, rrl demo token-bucket",
	}
	p.note(0, "120 calls, 4 a second", nil)
	p.calls(0, 250*time.Millisecond, 120, user)
	p.note(time.Minute, "the window has ended; one call begins the next", nil)
	p.calls(time.Minute, 0, 1, user)
	p.note(115*time.Second, "99 calls before its end, 120 after", nil)
	p.calls(115*time.Second, 50*time.Millisecond, 99, user)
	p.calls(120*time.Second, 40*time.Millisecond, 120, user)
	return p
}

func logPlan(rdb *redis.Client) *plan {
	cfg := slidinglog.Config{Limit: 3, Window: time.Minute, Thresholds: thresholds}
	log := slidinglog.New(newClient(rdb), cfg)
	p := &plan{
		rule: "sliding log, 3 permits in any 1m for each user", row: 10 * time.Second, mark: 1, speed: 60,
		kept:   "never over the limit in any minute, nor over the threshold",
		advice: "a new threshold takes effect at the next decision: rrl threshold KEY N, or HSET by anyone",
	}
	for _, name := range []string{"ann", "bob", "cem"} {
		key := "limit:" + name + ":/hello"
		p.lanes = append(p.lanes, &lane{name: name, key: key, limiter: log, window: cfg.Window, rule: keptByLog(cfg.Window)})
	}
	ann, bob, cem := p.lanes[0], p.lanes[1], p.lanes[2]
	p.note(0, "ann calls every 5s, bob every 10s, cem every 25s", nil)
	p.calls(0, 5*time.Second, 48, ann)
	p.calls(0, 10*time.Second, 24, bob)
	p.calls(0, 25*time.Second, 10, cem)
	p.note(110*time.Second, "HSET "+thresholds+" "+ann.key+" 6", func(ctx context.Context) error {
		return rdb.HSet(ctx, thresholds, ann.key, 6).Err()
	})
	return p
}

func bucketPlan(rdb *redis.Client) *plan {
	client, cfg := newClient(rdb), tokenbucket.Config{Capacity: 10, Refill: 1, Interval: time.Second}
	newLane := func(name, key string, cfg tokenbucket.Config) *lane {
		limiter := tokenbucket.New(client, cfg)
		return &lane{name: name, key: key, limiter: limiter, window: limiter.Window(), rule: keptByBucket(cfg.Refill, cfg.Interval)}
	}
	strict := newLane("10 tokens", "jobs:ann", cfg)
	cfg.Borrow = 5
	lender := newLane("10 tokens, 5 to borrow", "jobs:bob", cfg)
	p := &plan{
		rule: "token bucket, 10 tokens, 1 more every 1s", row: time.Second, mark: 1, speed: 6, left: true,
		lanes:  []*lane{strict, lender},
		kept:   "never more than the bucket held and what was refilled meanwhile",
		advice: "a full bucket passes at once; after that, one token a second",
	}
	for second, costs := range map[int][]int64{
		0: {5, 3}, 1: {4}, 2: {4}, 3: {1}, 4: {1}, 5: {6}, 6: {1}, 7: {1}, 8: {3}, 9: {3}, 20: {10}, 21: {2}, 22: {2}, 23: {4}, 24: {1},
	} {
		for _, cost := range costs {
			at := time.Duration(second) * time.Second
			p.steps = append(p.steps, step{at: at, lane: strict, permits: cost}, step{at: at, lane: lender, permits: cost})
		}
	}
	p.note(0, "requests for 1 to 6 tokens", nil)
	p.note(10*time.Second, "nothing for 10s: the buckets fill up", nil)
	p.note(20*time.Second, "10 tokens at once, and more", nil)
	return p
}

func counterPlan(rdb *redis.Client) *plan {
	client := newClient(rdb)
	address := newWindowLane(client, "10/1s by address", "count:10.0.0.7:/orders", fixedwindow.Config{Limit: 10, Window: time.Second})
	user := newWindowLane(client, "500/30s by user", "count:ann:/orders", fixedwindow.Config{Limit: 500, Window: 30 * time.Second})
	p := &plan{
		rule: "counters, 10 permits every 1s and 500 permits every 30s", row: time.Second, mark: 1, speed: 10,
		lanes:  []*lane{address, user},
		kept:   "never more than the limit in one window, by the windows that the limiter made",
		advice: "a counter is a fixed window: see rrl demo fixed-window for what passes around an edge",
	}
	p.note(0, "20 calls a second", nil)
	p.calls(0, 50*time.Millisecond, 700, address, user)
	return p
}
