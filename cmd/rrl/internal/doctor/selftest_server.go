package doctor

import (
	"cmp"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

func (t *selfTest) scripts(ctx context.Context) error {
	key := t.key("")
	const kinds = `return {7, 'text', {-1, ARGV[1]}, redis.call('GET', KEYS[1]), redis.status_reply('OK'), string.format('%.0f', 2 ^ 53)}`
	if err := t.says(ctx, "answers", kinds, key, "[7 text [-1 argument] <nil> OK 9007199254740992]", "argument"); err != nil {
		return err
	}
	_, err := t.eval(ctx, `return redis.error_reply('MINE is an error')`, key)
	return same("an error of a script's", err, "MINE is an error")
}

// shaOf returns a script that no server knows, and its SHA.
func (t *selfTest) shaOf(script string) (text, sha string) {
	text = script + " -- " + t.name
	sum := sha1.Sum([]byte(text))
	return text, hex.EncodeToString(sum[:])
}

func unknown(err error) error {
	switch {
	case err == nil:
		return errors.New("an unknown script was run")
	case !redis.HasErrorPrefix(err, "NOSCRIPT"):
		return fmt.Errorf("an unknown script is not NOSCRIPT: %w", err)
	}
	return nil
}

func (t *selfTest) evalsha(ctx context.Context) error {
	key := t.key("")
	text, sha := t.shaOf("return 'known'")
	if err := unknown(t.rdb.EvalSha(ctx, sha, []string{key}).Err()); err != nil {
		return err
	}
	if err := t.rdb.Eval(ctx, text, []string{key}).Err(); err != nil {
		return err
	}
	got, err := t.rdb.EvalSha(ctx, sha, []string{key}).Result()
	return errors.Join(err, same("a known script", got, "known"))
}

func (t *selfTest) pipelines(ctx context.Context) error {
	const calls = 50
	key := t.key("")
	text, sha := t.shaOf(`redis.call('PEXPIRE', KEYS[1], 60000) return redis.call('INCRBY', KEYS[1], 1)`)
	_, other := t.shaOf("return 'other'")
	if err := t.rdb.Eval(ctx, text, []string{key}).Err(); err != nil {
		return err
	}
	pipe := t.rdb.Pipeline()
	var got []*redis.Cmd
	for i := range calls {
		if i == calls/2 {
			got = append(got, pipe.EvalSha(ctx, other, []string{key}))
		}
		got = append(got, pipe.EvalSha(ctx, sha, []string{key}))
	}
	_, _ = pipe.Exec(ctx) // each call tells for itself
	next := 2
	for i, cmd := range got {
		if i == calls/2 {
			if err := unknown(cmd.Err()); err != nil {
				return err
			}
			continue
		}
		n, err := cmd.Int()
		if err := errors.Join(err, same("calls of a pipeline", n, next)); err != nil {
			return err
		}
		next++
	}
	return nil
}

func (t *selfTest) time(ctx context.Context) error {
	const script = `local now = redis.call('TIME') redis.call('SET', KEYS[1], now[1], 'PX', 60000) return {tonumber(now[1]), tonumber(now[2])}`
	key := t.key("")
	ask := func() (time.Time, error) {
		now, err := t.rdb.Eval(ctx, script, []string{key}).Int64Slice()
		if err != nil || len(now) != 2 || now[1] < 0 || now[1] >= 1e6 {
			return time.Time{}, fmt.Errorf("TIME in a script that writes: %w", cmp.Or(err, fmt.Errorf("%v", now)))
		}
		return time.Unix(now[0], now[1]*1000), nil
	}
	const span = 100 * time.Millisecond
	began := time.Now()
	first, err := ask()
	if err != nil {
		return err
	}
	pause(ctx, span)
	second, err := ask()
	if err != nil {
		return err
	}
	if passed := second.Sub(first); passed < span/2 || passed > time.Since(began)+span {
		return fmt.Errorf("TIME in scripts went on by %v in %v", passed, time.Since(began))
	}
	return nil
}

func (t *selfTest) integers(ctx context.Context) error {
	key := t.key("")
	const script = `redis.call('SET', KEYS[1], ARGV[1], 'PX', 60000) redis.call('INCRBY', KEYS[1], 1) redis.call('DECRBY', KEYS[1], 3) return redis.call('GET', KEYS[1])`
	if err := t.says(ctx, "an integer beyond 2^53", script, key, "9007199254740997", "9007199254740999"); err != nil {
		return err
	}
	if _, err := t.eval(ctx, `redis.call('SET', KEYS[1], '9223372036854775807', 'PX', 60000) return redis.call('INCRBY', KEYS[1], 1)`, key); err == nil {
		return errors.New("an integer beyond 2^63 was not refused")
	}
	l, _, done := t.limiter(ctx, "")
	defer done()
	if err := l.SetRate(ctx, kept(10, time.Minute)); err != nil {
		return err
	}
	value := redisson.KeysOf(l.Name(), "").Value
	if err := t.rdb.Set(ctx, value, "9007199254740993", testLife).Err(); err != nil {
		return err
	}
	return corrupt(ctx, "a limiter's value beyond 2^53", l)
}

func (t *selfTest) bytes(ctx context.Context) error {
	var every [256]byte
	for i := range every {
		every[i] = byte(i)
	}
	const script = `redis.call('ZADD', KEYS[1], 1, ARGV[1]) redis.call('PEXPIRE', KEYS[1], 60000)
return {redis.call('ZRANGE', KEYS[1], 0, 0)[1], redis.call('ZSCORE', KEYS[1], ARGV[1]), #ARGV[1]}`
	return t.says(ctx, "a member of all bytes", script, t.key(""), fmt.Sprint([]any{string(every[:]), "1", 256}), string(every[:]))
}

func (t *selfTest) sortedSets(ctx context.Context) error {
	const script = `
local key, answer, unpack = KEYS[1], {}, unpack or table.unpack
local function say(...) answer[#answer + 1] = table.concat({...}, ' ') end
redis.call('ZADD', key, '1700000000123', 'b', '1700000000123', 'a', '5', 'z', '1700000000124', 'c')
redis.call('PEXPIRE', key, 60000)
say(redis.call('ZADD', key, 'NX', 9, 'z'), redis.call('ZADD', key, 'NX', '1700000000125', 'd'), redis.call('ZSCORE', key, 'z'))
say(unpack(redis.call('ZRANGE', key, '0', '-1', 'WITHSCORES')))
say(unpack(redis.call('ZRANGE', key, '-1', '-1')))
say(unpack(redis.call('ZRANGEBYSCORE', key, '-inf', '(1700000000124', 'LIMIT', 0, 2)))
say(redis.call('ZCOUNT', key, '(1700000000123', '+inf'), redis.call('ZCARD', key))
say(redis.call('ZREMRANGEBYRANK', key, 0, 1), redis.call('ZREM', key, 'c'), redis.call('ZREM', key, 'c'))
say(unpack(redis.call('ZRANGE', key, 0, -1)))
redis.call('UNLINK', key)
say(redis.call('EXISTS', key))
return answer`
	return t.says(ctx, "a sorted set", script, t.key(""),
		"[0 1 5 z 5 a 1700000000123 b 1700000000123 c 1700000000124 d 1700000000125 d z a 2 5 2 1 0 b d 0]")
}

func (t *selfTest) timesToLive(ctx context.Context) error {
	key := t.key("")
	const script = `
local key, answer = KEYS[1], {redis.call('PTTL', KEYS[1])}
redis.call('SET', key, '1', 'PX', 60000)
redis.call('INCRBY', key, 1)
answer[2] = redis.call('PTTL', key) > 50000
redis.call('SET', key, '1')
answer[3] = redis.call('PTTL', key)
answer[4] = redis.call('PEXPIREAT', key, (redis.call('TIME')[1] + 60) .. '000')
answer[5] = redis.call('PTTL', key) > 50000
answer[6] = redis.call('PERSIST', key)
answer[7] = redis.call('PTTL', key)
return answer`
	if err := t.says(ctx, "times to live", script, key, "[-2 1 -1 1 1 1 -1]"); err != nil {
		return err
	}
	const left = `return redis.call('EXISTS', KEYS[1])`
	const expire = `redis.call('SET', KEYS[1], '0') return redis.call('PEXPIRE', KEYS[1], ARGV[1])`
	return t.inTime(ctx, 200*time.Millisecond, func(life time.Duration) error {
		if err := t.says(ctx, "PEXPIRE of a key", expire, key, "1", life.Milliseconds()); err != nil {
			return err
		}
		pause(ctx, life/4)
		if err := t.says(ctx, fmt.Sprintf("a key that lives %v, after %v", life, life/4), left, key, "1"); err != nil {
			return err
		}
		pause(ctx, life)
		return t.says(ctx, fmt.Sprintf("a key that lived %v, after %v", life, life*5/4), left, key, "0")
	})
}

func (t *selfTest) slowScript(ctx context.Context) error {
	key := t.key("")
	const script = `
redis.call('SET', KEYS[1], '0', 'PX', 60000)
local odd, even = 0, 0
for i = 1, tonumber(ARGV[1]) do
	if i % 2 == 1 then odd = odd + 1 else even = even + 1 end
end
return {redis.call('GET', KEYS[1]), odd - even}`
	count := func(steps int64) error {
		return t.says(ctx, "a script that counts for a while", script, key, "[0 0]", steps)
	}
	// A slow server takes fewer steps: it must not get near the time after which it is BUSY. From
	// Redis 7.2 on the script can't see to that: TIME stands while it runs.
	const few = 1e6
	start := time.Now()
	if err := count(few); err != nil {
		return err
	}
	most := min(10*few, int64(few*500*time.Millisecond/max(time.Since(start), 1))&^1)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				_ = t.rdb.Incr(ctx, key)
			}
		}
	}()
	err := count(most)
	close(stop)
	<-done
	return err
}

func (t *selfTest) wait(ctx context.Context) error {
	key := t.key("")
	node, err := nodes.Of(ctx, t.rdb, key)
	if err != nil {
		return err
	}
	pipe := node.Pipeline()
	pipe.Set(ctx, key, 1, testLife)
	wait := pipe.Do(ctx, "wait", 1, 500)
	_, _ = pipe.Exec(ctx)
	n, err := wait.Int()
	if err != nil {
		return fmt.Errorf("WAIT: %w", err)
	}
	text, err := node.Info(ctx, "replication").Result()
	if fields := parseInfo(text); err == nil && fields["connected_slaves"] != "" && int64(n) > fields.number("connected_slaves") {
		return fmt.Errorf("WAIT counts %d replicas, INFO %s", n, fields["connected_slaves"])
	}
	if n == 0 {
		t.note = "WAIT works, and no replica confirmed a write within 500ms: with WithReplicas each grant fails"
	}
	return nil
}

func (t *selfTest) slots(ctx context.Context) error {
	if !nodes.IsCluster(t.rdb) {
		t.note = "not a cluster: there are none"
		return nil
	}
	keys := redisson.KeysOf(t.name, "client").List()
	first, err := t.rdb.ClusterKeySlot(ctx, keys[0]).Result()
	if err != nil {
		return fmt.Errorf("CLUSTER KEYSLOT: %w", err)
	}
	for _, key := range keys {
		slot, err := t.rdb.ClusterKeySlot(ctx, key).Result()
		if err := errors.Join(err, same("the slot of "+key, slot, first)); err != nil {
			return err
		}
	}
	err = t.rdb.Eval(ctx, "return #KEYS", []string{t.name, t.name + "-other"}).Err()
	switch {
	case err == nil:
		return errors.New("a script with keys of two slots was run")
	case !strings.Contains(strings.ToLower(err.Error()), "slot"):
		return fmt.Errorf("a script with keys of two slots is not CROSSSLOT: %w", err)
	}
	return nil
}
