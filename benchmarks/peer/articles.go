package peer

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/benchmarks/load"
)

// The scripts that articles show and many services run, with their faults.
var (
	fixedWindow = redis.NewScript(`
local count = redis.call('GET', KEYS[1])
if not count then
  redis.call('SET', KEYS[1], 1, 'EX', ARGV[2])
  return 1
end
if tonumber(count) < tonumber(ARGV[1]) then
  redis.call('INCR', KEYS[1])
  return 1
end
return 0`)

	counter = redis.NewScript(`
local count = redis.call('INCR', KEYS[1])
if count == 1 then
  redis.call('EXPIRE', KEYS[1], ARGV[2])
end
if count > tonumber(ARGV[1]) then
  return -1
end
return count`)

	slidingLog = redis.NewScript(`
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, ARGV[3] - ARGV[2])
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then
  return 0
end
redis.call('ZADD', KEYS[1], ARGV[3], ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1`)

	tokenBucket = redis.NewScript(`
local capacity, seconds, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local tokens = tonumber(redis.call('GET', KEYS[1]) or capacity)
local last = tonumber(redis.call('GET', KEYS[2]) or now)
local periods = math.floor((now - last) / seconds)
if periods > 0 then
  tokens = math.min(capacity, tokens + periods * capacity)
  last = last + periods * seconds
end
if tokens < 1 then
  return -1
end
redis.call('SET', KEYS[1], tokens - 1, 'EX', seconds)
redis.call('SET', KEYS[2], last, 'EX', seconds)
return tokens - 1`)
)

var articles = []Kind{
	article("fixed window", "GET; SET EX or INCR, in one script", false, fixedWindow, seconds),
	article("counter", "INCR, EXPIRE at 1, in one script", false, counter, seconds),
	article("sliding log", "drop, count and add to a sorted set, in one script; times are the caller's", true, slidingLog,
		func(name string, rule Rule) ([]string, func() []any) {
			var last atomic.Int64
			return []string{name}, func() []any {
				now := strconv.FormatInt(time.Now().UnixMilli(), 10)
				member := now + "-" + strconv.FormatInt(last.Add(1), 10)
				return []any{rule.Limit, rule.Interval.Milliseconds(), now, member}
			}
		}),
	article("token bucket", "two strings, in one script; refilled at whole intervals", false, tokenBucket,
		func(name string, rule Rule) ([]string, func() []any) {
			return []string{"{" + name + "}", "{" + name + "}_time"}, func() []any {
				return []any{rule.Limit, int64(rule.Interval.Seconds()), time.Now().Unix()}
			}
		}),
}

func seconds(name string, rule Rule) (keys []string, args func() []any) {
	return []string{name}, func() []any { return []any{rule.Limit, int64(rule.Interval.Seconds())} }
}

func article(name, setup string, isLog bool, script *redis.Script, of func(string, Rule) ([]string, func() []any)) Kind {
	return Kind{
		Name:     name,
		Setup:    setup,
		Log:      isLog,
		Commands: map[string]float64{"evalsha": 0, "eval": 0},
		Open: open(func(_ context.Context, rdb *redis.Client, names []string, rule Rule) (load.Take, error) {
			keys, args := make([][]string, len(names)), make([]func() []any, len(names))
			for i, name := range names {
				keys[i], args[i] = of(name, rule)
			}
			return func(ctx context.Context, i int) (bool, error) {
				n, err := script.Run(ctx, rdb, keys[i], args[i]()...).Int64()
				if err != nil {
					return false, fmt.Errorf("%s: %w", name, err)
				}
				// The token bucket answers with what is left, which may be 0.
				return n > 0 || n == 0 && script == tokenBucket, nil
			}, nil
		}),
	}
}
