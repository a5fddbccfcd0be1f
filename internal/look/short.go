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
}

// Tell reads of each limiter the value, the newest member and, if its hash has a time to
// live, those of its keys. Limiters that seem used up it reads in full: members that have
// run out come back with the next request.
func Tell(ctx context.Context, rdb redis.UniversalClient, limiters []*Short) error {
	pipe := rdb.Pipeline()
	now := pipe.Time(ctx)
	var all []*told
	for _, l := range limiters {
		if l.PerClient() {
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
		t.limiter.State, t.limiter.Broken = found.State, found.Broken
	}
	return nil
}

// told is what Tell reads of a limiter.
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
