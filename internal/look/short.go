package look

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

// Short is a limiter whose hash was read.
type Short struct {
	Fields

	Name string
	TTL  time.Duration // of the hash, as PTTL answers

	// State is "" if each client has permits of its own: to find those takes a walk of
	// all keys.
	State  Health
	Broken string // why it is broken, as far as was read
	NoRate bool   // the hash is no configuration, and Fields are empty
	InUse  int64  // permits, as of the last call; 0 if each client has its own
}

// EachPage walks a server's keys, in small steps, and calls page with the limiters that
// each has, of those whose names match the pattern, "" for all. reader reads them.
func EachPage(ctx context.Context, node *redis.Client, reader redis.UniversalClient, pattern string, page func(keys int, found []*Short)) error {
	var cursor uint64
	for {
		names, next, err := node.ScanType(ctx, cursor, pattern, pageKeys, "hash").Result()
		if err != nil {
			return err
		}
		found, err := ReadShort(ctx, reader, names)
		if err != nil {
			return err
		}
		page(pageKeys, found)
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// ReadShort returns those of the hashes that are limiters.
func ReadShort(ctx context.Context, rdb redis.UniversalClient, names []string) (found []*Short, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	pipe := rdb.Pipeline()
	answers := make([]*redis.SliceCmd, len(names))
	ttls := make([]*redis.DurationCmd, len(names))
	for i, name := range names {
		answers[i] = pipe.HMGet(ctx, name, FieldNames...)
		ttls[i] = pipe.PTTL(ctx, name)
	}
	// A key may have become another type since SCAN saw it.
	if _, err := pipe.Exec(ctx); err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
		return nil, err
	}
	for i, name := range names {
		f, broken, is := Judge(answers[i].Val())
		if !is {
			continue
		}
		l := &Short{Fields: f, Name: name, TTL: ttls[i].Val(), Broken: broken, NoRate: broken != ""}
		if l.NoRate {
			l.Fields, l.State = Fields{}, IsBroken
		}
		found = append(found, l)
	}
	return found, Tell(ctx, rdb, found)
}

// Tell reads of each limiter the value, the newest member and, if its hash has a time to
// live, those of its keys. Limiters that seem used up it reads in full: members that have
// run out come back with the next request.
func Tell(ctx context.Context, rdb redis.UniversalClient, limiters []*Short) error {
	pipe := rdb.Pipeline()
	now := pipe.Time(ctx)
	var all []*told
	for _, l := range limiters {
		if l.NoRate || l.PerClient() {
			continue
		}
		k := redisson.KeysOf(l.Name, "")
		e := &entry{rate: l.Rate, intervalMS: l.IntervalMS}
		t := &told{limiter: l, glanced: glanced{entry: e, pair: &pair{value: k.Value, set: k.Permits}}}
		e.pairs = []*pair{t.pair}
		t.read(ctx, pipe)
		if l.TTL >= 0 {
			t.ttls = readTTLs(ctx, pipe, t.pair)
		}
		all = append(all, t)
	}
	if len(all) == 0 {
		return nil
	}
	cmds, err := pipe.Exec(ctx)
	if err := firstNotHarmless(cmds, err); err != nil {
		return err
	}
	nowMS := now.Val().UnixMilli()
	reads := map[*told]*pairRead{}
	pipe = rdb.Pipeline()
	for _, t := range all {
		t.judge(nowMS)
		t.ttls.check(t.pair, t.limiter.TTL)
		if free, known := t.entry.free(); known && free == 0 {
			reads[t] = readPair(ctx, pipe, t.pair, nowMS-t.limiter.IntervalMS)
		}
	}
	if len(reads) > 0 {
		cmds, err = pipe.Exec(ctx)
		if err := firstNotHarmless(cmds, err); err != nil {
			return err
		}
	}
	for _, t := range all {
		if rd := reads[t]; rd != nil {
			rd.judge(t.limiter.Rate, t.limiter.IntervalMS, nowMS)
			t.pair.free, t.pair.known = rd.free, rd.known
		}
		found := t.entry.limiter(time.Now())
		t.limiter.State, t.limiter.Broken, t.limiter.InUse = found.State, found.Broken, found.InUse
	}
	return nil
}

// told is what Tell reads about a limiter.
type told struct {
	glanced

	limiter *Short
	ttls    *ttls
}

// ttls are the times to live of a pair's keys.
type ttls struct{ value, set *redis.DurationCmd }

func readTTLs(ctx context.Context, pipe redis.Pipeliner, p *pair) *ttls {
	return &ttls{pipe.PTTL(ctx, p.value), pipe.PTTL(ctx, p.set)}
}

// check notes keys of the pair that stay when the hash has expired. t may be nil.
func (t *ttls) check(p *pair, hash time.Duration) {
	var found Findings
	if t != nil {
		found.checkTTL(p.value, t.value.Val(), hash)
		found.checkTTL(p.set, t.set.Val(), hash)
	}
	p.noTTL = found.Broken()
}
