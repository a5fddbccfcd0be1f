package model

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/decide"
	"github.com/rratelimiter/rratelimiter/internal/door"
	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	calls "github.com/rratelimiter/rratelimiter/internal/test/op"
)

const ms = time.Millisecond

// names are the operations that are one call each.
var names = map[string]calls.Name{
	"tryAcquire": calls.Try, "withDefault": calls.Try, "acquireAll": calls.All, "take": calls.Take, "reserve": calls.Reserve, "peek": calls.Peek,
	"takeUpTo": calls.UpTo, "reset": calls.Reset, "release": calls.Release, "availablePermits": calls.Available,
	"trySetRate": calls.TrySet, "setRate": calls.Set, "setRateArgs": calls.Set, "updateRate": calls.Update, "getConfig": calls.Config,
	"expire": calls.Expire, "expireAt": calls.ExpireAt, "clearExpire": calls.ClearExpire, "ttl": calls.TTL, "exists": calls.Exists,
	"delete": calls.Delete, "rename": calls.Rename,
}

// Do has a Client's handle do an operation, now being base. Handles must be WithExact, since the model merges nothing.
func Do(ctx context.Context, client *rratelimiter.Client, l *rratelimiter.RateLimiter, op Op, base int64) Answer {
	if op.Do == "settle" {
		return op.says(calls.Answer{Err: op.Settle(ctx, l)})
	}
	return op.says(op.call(ctx, client, l, base))
}

func (op Op) call(ctx context.Context, client *rratelimiter.Client, l *rratelimiter.RateLimiter, base int64) calls.Answer {
	call := calls.Op{Name: names[op.Do], Permits: op.Permits, Keep: op.Keep, Hold: time.Duration(op.Hold) * ms, In: time.Duration(op.TTL) * ms}
	if op.Do == "expireAt" {
		call.In = time.Until(time.UnixMilli(base + op.At))
	}
	opts := []rratelimiter.LimiterOption{rratelimiter.WithExact()}
	if op.Rate != nil {
		call.Config = op.Rate.Public()
		opts = append(opts, rratelimiter.WithDefault(call.Config))
	}
	on := calls.Handle{RateLimiter: l, Client: client}
	switch op.Do {
	case "withDefault":
		on.RateLimiter = client.RateLimiter(l.Name(), opts...)
	case "rename":
		call.To = op.To[0]
	case "acquireAll":
		for i, name := range append([]string{l.Name()}, op.To...) {
			on.Claims = append(on.Claims, client.RateLimiter(name, opts...).Claim(op.PermitsOf(i)))
		}
	}
	return call.Do(ctx, on)
}

func (op Op) says(a calls.Answer) Answer {
	switch {
	case op.Do == "ttl" && errors.Is(a.Err, rratelimiter.ErrNotInitialized):
		return SayTTL(-2)
	case a.Err != nil:
		return Say(problem(a.Err))
	case op.Do == "ttl" && !a.OK:
		return SayTTL(-1)
	}
	said := []any{a.OK, a.Limit, a.Free}
	switch op.Do {
	case "takeUpTo":
		said = append([]any{a.Taken}, said...)
	case "take", "reserve", "peek":
	case "reset", "release", "settle", "setRate", "setRateArgs", "rename":
		return Say("done")
	case "availablePermits":
		return Say(a.Free)
	case "ttl":
		return SayTTL(a.Left.Milliseconds())
	case "getConfig":
		return Say(fmt.Sprint(a.Set.Type, a.Set.Rate, a.Set.Interval.Milliseconds(), a.Set.KeepAlive.Milliseconds()))
	default:
		return Say(a.OK)
	}
	return Say(said...).With(a.Wait.Milliseconds(), a.Reset.Milliseconds())
}

// Settle settles a row as if it were a reservation.
func (op Op) Settle(ctx context.Context, l *rratelimiter.RateLimiter) error {
	behind, _ := door.Behind[engine.Behind](l)
	member := redisson.WithPermits([]byte(op.Row.Member), op.Permits)
	at := time.Now().Add(-time.Duration(op.age()) * ms)
	var a decide.Answer
	hold := engine.Hold{Early: time.Duration(op.Early) * ms, At: at.UnixMilli()}
	behind.Engine.Reserved(&a, behind.Limiter, member, op.Permits, hold, at, at, false)
	return a.Settle(ctx, op.Used, func(error) {})
}

// age is how long ago the reserved row was granted.
func (op Op) age() int64 { return max(0, -op.Row.At-op.Early) }

// SayTTL returns the answer of a time to live in ms: -1 if there is none, -2 if there is no limiter.
func SayTTL(ms int64) Answer {
	if ms < 0 {
		return Say(ms)
	}
	return Say("ms").With(ms)
}

func problem(err error) string {
	for known, text := range map[error]string{
		rratelimiter.ErrInvalidPermits: Illegal, rratelimiter.ErrNotInitialized: NotInitialized,
		rratelimiter.ErrPermitsExceedRate: ExceedsRate, rratelimiter.ErrUnsupported: Unsupported,
	} {
		if errors.Is(err, known) {
			return text
		}
	}
	return "error: " + err.Error()
}

// look reads keys of one slot at one moment, and removes the given ones: the time, and for each a list of type, PTTL and content.
var look = redis.NewScript(`
local time = redis.call('TIME')
local all = {time[1] * 1000 + math.floor(time[2] / 1000)}
for _, key in ipairs(KEYS) do
	local kind, content = redis.call('TYPE', key).ok, {}
	if kind == 'string' then content = {redis.call('GET', key)} end
	if kind == 'hash' then content = redis.call('HGETALL', key) end
	if kind == 'zset' then content = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
	all[#all + 1] = {kind, redis.call('PTTL', key), content}
end
for _, key in ipairs(ARGV) do redis.call('UNLINK', key) end
return all`)

// A Key is what Redis holds under one key.
type Key struct {
	There   bool
	TTL     time.Duration // -1: none
	Content []string
}

func (k Key) String() string {
	if !k.There {
		return "none"
	}
	return fmt.Sprintf("%q, to live %v", k.Content, k.TTL)
}

// Look returns what Redis holds under keys of one slot at one moment, and when that was, and removes keys.
func Look(ctx context.Context, rdb redis.Scripter, keys []string, remove ...any) (now int64, all []Key, err error) {
	answer, err := look.Run(ctx, rdb, keys, remove...).Slice()
	if err != nil {
		return 0, nil, err
	}
	now, _ = answer[0].(int64)
	for _, one := range answer[1:] {
		parts, ok := one.([]any)
		if !ok || len(parts) != 3 {
			return 0, nil, fmt.Errorf("an answer is %v", one)
		}
		ttl, _ := parts[1].(int64)
		k := Key{There: parts[0] != "none", TTL: time.Duration(max(ttl, 0)) * time.Millisecond}
		if ttl < 0 {
			k.TTL = -1
		}
		content, _ := parts[2].([]any)
		for _, part := range content {
			k.Content = append(k.Content, fmt.Sprint(part))
		}
		all = append(all, k)
	}
	return now, all, nil
}

// Read returns what Redis holds of the limiter called name, for clients of these ids, and when that was.
func Read(ctx context.Context, rdb redis.Scripter, name string, ids ...string) (s *State, now int64, err error) {
	k := redisson.KeysOf(name, "")
	keys := []string{k.Config, k.Value, k.Permits}
	for _, id := range ids {
		k := redisson.KeysOf(name, id)
		keys = append(keys, k.ClientValue, k.ClientPermits)
	}
	now, all, err := Look(ctx, rdb, keys)
	if err != nil {
		return nil, 0, err
	}
	s = NewState(ids...)
	s.Config, s.ConfigEnd = all[0].fields(), all[0].end(now)
	for i, id := range append([]string{""}, ids...) {
		p, err := PairOf(all[1+2*i], all[2+2*i], now)
		// Calls that meet more rows than one script may touch do more than a Module knows.
		if err == nil && len(p.Rows) >= 200 {
			err = fmt.Errorf("%d rows", len(p.Rows))
		}
		if err != nil {
			return nil, 0, fmt.Errorf("pair of client %q: %w", id, err)
		}
		s.Pairs[id] = p
	}
	return s, now, nil
}

func (k Key) end(now int64) int64 {
	if k.TTL < 0 {
		return 0
	}
	return now + k.TTL.Milliseconds()
}

// fields returns those of a configuration that models know. The others are "answered", of a repeat that was long in coming,
// "released", of the last Releases, "lapsed", of what ended holds, and "default", which tells when a Client was made.
func (k Key) fields() map[string]string {
	var fields map[string]string
	for i := 0; i+1 < len(k.Content); i += 2 {
		if field := k.Content[i]; field != "answered" && field != "released" && field != "lapsed" && field != "default" {
			if fields == nil {
				fields = make(map[string]string)
			}
			fields[field] = k.Content[i+1]
		}
	}
	return fields
}

// PairOf returns what two keys hold.
func PairOf(value, permits Key, now int64) (p *Pair, err error) {
	p = &Pair{HasValue: value.There, ValueEnd: value.end(now), RowsEnd: permits.end(now)}
	if p.HasValue {
		if p.Value, err = value.Number(); err != nil {
			return nil, err
		}
	}
	for i := 0; i+1 < len(permits.Content); i += 2 {
		at, err := strconv.ParseInt(permits.Content[i+1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("score: %w", err)
		}
		r, err := RowOf(permits.Content[i], at)
		if err != nil {
			return nil, fmt.Errorf("member %q: %w", permits.Content[i], err)
		}
		p.Rows = append(p.Rows, r)
	}
	return p, nil
}

// Field returns a number of a hash.
func (k Key) Field(name string) (int64, error) {
	for i := 0; i+1 < len(k.Content); i += 2 {
		if k.Content[i] == name {
			return strconv.ParseInt(k.Content[i+1], 10, 64)
		}
	}
	return 0, fmt.Errorf("no field %s", name)
}

// Number returns the number that a string key holds.
func (k Key) Number() (int64, error) {
	n, err := strconv.ParseInt(k.Content[0], 10, 64)
	if err == nil && strconv.FormatInt(n, 10) != k.Content[0] {
		err = fmt.Errorf("the value's text is %q", k.Content[0])
	}
	return n, err
}
