package look

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
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

// EachPage walks the keys of a server of rdb, in small steps, and calls page with the
// limiters that each has, of those whose names match the pattern, "" for all.
func EachPage(ctx context.Context, rdb, node nodes.Client, pattern string, page func(keys int, found []*Short)) error {
	reader := node
	if nodes.IsCluster(rdb) {
		reader = rdb // it follows keys that are being moved
	}
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
func ReadShort(ctx context.Context, rdb nodes.Client, names []string) (found []*Short, err error) {
	ttls := make([]*redis.DurationCmd, 0, len(names))
	all, err := ReadHashes(ctx, rdb, names, func(pipe redis.Pipeliner, name string) { ttls = append(ttls, pipe.PTTL(ctx, name)) })
	if err != nil {
		return nil, err
	}
	for i, l := range all {
		if l != nil {
			l.TTL = ttls[i].Val()
			found = append(found, l)
		}
	}
	return found, tell(ctx, rdb, found)
}

// ReadHashes returns what the hashes say of each limiter, nil for those that are none. In
// the same round trip go the commands that also adds for each, if any.
func ReadHashes(ctx context.Context, rdb nodes.Client, names []string, also ...func(pipe redis.Pipeliner, name string)) ([]*Short, error) {
	if len(names) == 0 {
		return nil, nil
	}
	pipe := rdb.Pipeline()
	answers := make([]*redis.SliceCmd, len(names))
	for i, name := range names {
		answers[i] = pipe.HMGet(ctx, name, allFields...)
		for _, add := range also {
			add(pipe, name)
		}
	}
	// A key may have become another type since SCAN saw it.
	if _, err := pipe.Exec(ctx); err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
		return nil, err
	}
	all := make([]*Short, len(names))
	var now time.Time
	for i, name := range names {
		f, broken, is := Judge(answers[i].Val())
		var err error
		if !f.lasts() && now.IsZero() {
			now, err = rdb.Time(ctx).Result()
		}
		switch {
		case err != nil:
			return nil, err
		case !is:
		case broken != "":
			all[i] = &Short{Name: name, State: IsBroken, Broken: broken, NoRate: true}
		default:
			all[i] = &Short{Name: name, Fields: f.At(now.UnixMilli())}
		}
	}
	return all, nil
}

// tell reads of each limiter the value, the newest member and, if its hash has a time to
// live, those of its keys. Limiters that seem used up it reads in full: members that have
// run out come back with the next request.
func tell(ctx context.Context, rdb nodes.Client, limiters []*Short) error {
	pipe := rdb.Pipeline()
	now := pipe.Time(ctx)
	var all []*told
	for _, l := range limiters {
		if l.NoRate || l.PerClient() {
			continue
		}
		k := redisson.KeysOf(l.Name, "")
		e := &entry{Fields: l.Fields}
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
		t.ttls.check(t.pair, &t.limiter.Fields, t.limiter.TTL)
		if t.pair.alone != nil && t.ttls == nil {
			t.ttls = readTTLs(ctx, pipe, t.pair)
			continue
		}
		if free, known := t.entry.free(); known && free == 0 {
			reads[t] = readPair(ctx, pipe, t.pair, nowMS-t.limiter.IntervalMS, newest)
		}
	}
	if pipe.Len() > 0 {
		cmds, err = pipe.Exec(ctx)
		if err := firstNotHarmless(cmds, err); err != nil {
			return err
		}
	}
	for _, t := range all {
		if t.pair.alone != nil {
			t.ttls.check(t.pair, &t.limiter.Fields, t.limiter.TTL)
		}
		if rd := reads[t]; rd != nil {
			rd.judge(t.limiter.Fields, nowMS)
			t.pair.free, t.pair.known = rd.free, rd.known
		}
		found := t.entry.limiter(time.Now())
		t.limiter.State, t.limiter.Broken, t.limiter.InUse = found.State, found.Broken, found.InUse
	}
	return nil
}

// told is the set of commands with which tell reads about a limiter.
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

// check notes keys of the pair that stay when the hash has expired, and values that do not end. t may be nil.
func (t *ttls) check(p *pair, f *Fields, hash time.Duration) {
	var found Findings
	if t != nil {
		p.stays = f.PerClient() || !endsFirst(t.value.Val(), script.Millis(f.IntervalMS), hash)
		p.forget(f.Rate)
		found.checkTTL(p.value, t.value.Val(), hash)
		found.checkTTL(p.set, t.set.Val(), hash)
	}
	p.noTTL = found.Broken()
}
