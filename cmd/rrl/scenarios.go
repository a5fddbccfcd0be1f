package main

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/fixedwindow"
	"github.com/rratelimiter/rratelimiter/slidinglog"
	"github.com/rratelimiter/rratelimiter/tokenbucket"
)

// scenarios are the demos of the other limiters.
var scenarios = []scenario{
	{
		name: fixedWindow, short: "120 calls at 100 a minute, and twice the limit around a window's edge", build: windowStory,
		long: `See a fixed window at work: of 120 calls at 100 a minute 100 pass and 20 do not.
Then the burst that fixed windows let through: the end of one window and the
beginning of the next pass the limit twice within seconds.`,
	},
	{
		name: slidingLog, short: "3 calls a minute and user, and a threshold raised in the middle", build: logStory,
		long: `See a sliding log at work: three users, each with 3 calls a minute. In the middle
somebody raises the threshold of one of them in Redis.`,
	},
	{
		name: tokenBucket, short: "a bucket of 10 tokens, and requests that cost different numbers of them", build: bucketStory,
		long: `See a token bucket at work: 10 tokens, one more each second, and requests that
cost different numbers of them; beside it the same bucket with 5 tokens to
borrow.`,
	},
	{
		name: counter, short: "10 calls a second for an address, 500 in 30 seconds for a user", build: counterStory,
		long: `See two counters at work, each with 20 calls a second: one lets 10 a second pass
for an address and an interface, the other 500 in 30 seconds for a user and an
interface.`,
	},
}

func newWindowLane(rdb *redis.Client, name, key string, cfg fixedwindow.Config) *lane {
	return &lane{name: name, key: key, limiter: fixedwindow.New(rdb, cfg), window: cfg.Window, rule: keptByWindow}
}

func windowStory(rdb *redis.Client) *story {
	user := newWindowLane(rdb, "user1", "api:limit:user1", fixedwindow.Config{Limit: 100, Window: time.Minute})
	s := &story{
		rule: "fixed window, 100 permits every 1m", row: 5 * time.Second, mark: 3, speed: 60, lanes: []*lane{user},
		kept: "never more than 100 in one window, by the windows that the limiter made",
		advice: "around the edge of two windows up to twice the limit can pass, as here from 1:55 on; " +
			"where that matters\ntake a sliding log or a token bucket: rrl demo sliding-log, rrl demo token-bucket",
	}
	s.note(0, "120 calls, 4 a second", nil)
	s.calls(0, 250*time.Millisecond, 120, user)
	s.note(time.Minute, "the window has ended; one call begins the next", nil)
	s.calls(time.Minute, 0, 1, user)
	s.note(115*time.Second, "99 calls before its end, 120 after", nil)
	s.calls(115*time.Second, 50*time.Millisecond, 99, user)
	s.calls(120*time.Second, 40*time.Millisecond, 120, user)
	return s
}

func logStory(rdb *redis.Client) *story {
	cfg := slidinglog.Config{Limit: 3, Window: time.Minute, Thresholds: articlesHash}
	log := slidinglog.New(rdb, cfg)
	s := &story{
		rule: "sliding log, 3 permits in any 1m for each user", row: 10 * time.Second, mark: 1, speed: 60,
		kept:   "never over the limit in any minute, nor over the threshold",
		advice: "a threshold counts from the next call on: rrl threshold KEY N, or HSET by anyone",
	}
	for _, name := range []string{"ann", "bob", "cem"} {
		key := "limit:" + name + ":/hello"
		s.lanes = append(s.lanes, &lane{name: name, key: key, limiter: log, window: cfg.Window, rule: keptByLog(cfg.Window)})
	}
	ann, bob, cem := s.lanes[0], s.lanes[1], s.lanes[2]
	s.note(0, "ann calls every 5s, bob every 10s, cem every 25s", nil)
	s.calls(0, 5*time.Second, 48, ann)
	s.calls(0, 10*time.Second, 24, bob)
	s.calls(0, 25*time.Second, 10, cem)
	s.note(110*time.Second, "HSET "+articlesHash+" "+ann.key+" 6", func(ctx context.Context) error {
		return rdb.HSet(ctx, articlesHash, ann.key, 6).Err()
	})
	return s
}

func bucketStory(rdb *redis.Client) *story {
	cfg := tokenbucket.Config{Capacity: 10, Refill: 1, Interval: time.Second}
	newLane := func(name, key string, cfg tokenbucket.Config) *lane {
		limiter := tokenbucket.New(rdb, cfg)
		return &lane{name: name, key: key, limiter: limiter, window: limiter.Window(), rule: keptByBucket(cfg.Refill, cfg.Interval)}
	}
	strict := newLane("10 tokens", "jobs:ann", cfg)
	cfg.Borrow = 5
	lender := newLane("10 tokens, 5 to borrow", "jobs:bob", cfg)
	s := &story{
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
			s.steps = append(s.steps, step{at: at, lane: strict, permits: cost}, step{at: at, lane: lender, permits: cost})
		}
	}
	s.note(0, "requests for 1 to 6 tokens", nil)
	s.note(10*time.Second, "nothing for 10s: the buckets fill up", nil)
	s.note(20*time.Second, "10 tokens at once, and more", nil)
	return s
}

func counterStory(rdb *redis.Client) *story {
	address := newWindowLane(rdb, "10/1s by address", "count:10.0.0.7:/orders", fixedwindow.Config{Limit: 10, Window: time.Second})
	user := newWindowLane(rdb, "500/30s by user", "count:ann:/orders", fixedwindow.Config{Limit: 500, Window: 30 * time.Second})
	s := &story{
		rule: "counters, 10 permits every 1s and 500 permits every 30s", row: time.Second, mark: 1, speed: 10,
		lanes:  []*lane{address, user},
		kept:   "never more than the limit in one window, by the windows that the limiter made",
		advice: "a counter is a fixed window: see rrl demo fixed-window for what passes around an edge",
	}
	s.note(0, "20 calls a second", nil)
	s.calls(0, 50*time.Millisecond, 700, address, user)
	return s
}
