package look

import (
	"context"
	"errors"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// pairRead is one pair read in full, as far as bounded commands go.
type pairRead struct {
	pair    *pair
	most    int // of last
	value   *redis.StringCmd
	card    *redis.IntCmd
	last    *redis.ZSliceCmd // the newest members
	expired *redis.ZSliceCmd // the oldest of those that have run out

	free    int64
	known   bool
	members []member
}

func readPair(ctx context.Context, pipe redis.Pipeliner, p *pair, runOutMS int64, most int) *pairRead {
	return &pairRead{
		pair:  p,
		most:  most,
		value: pipe.Get(ctx, p.value),
		card:  pipe.ZCard(ctx, p.set),
		last:  pipe.ZRangeWithScores(ctx, p.set, int64(-most), -1),
		expired: pipe.ZRangeByScoreWithScores(ctx, p.set, &redis.ZRangeBy{
			Min: "-inf", Max: strconv.FormatInt(runOutMS, 10), Count: newest,
		}),
	}
}

// judge works out how many permits a request would find.
func (rd *pairRead) judge(f Fields, nowMS int64) {
	rate, intervalMS := f.Rate, f.IntervalMS
	rd.members = parse(rd.last.Val())
	rd.free, rd.known = rate, true
	var found Findings
	readable := found.checkPair(rd.pair, rd.value, rd.last, rd.expired)
	value, err := rd.value.Int64()
	value = f.value(value)
	missing := errors.Is(rd.value.Err(), redis.Nil) || f.forgets()
	if n := rd.card.Val(); readable && !missing && len(found) == 0 && err == nil && n > 0 && n == int64(len(rd.members)) {
		var sum int64
		for _, m := range rd.members {
			sum += int64(m.Permits)
		}
		if inDebt(value, sum, rate) {
			found.inDebt(rd.pair, value)
		}
	}
	rd.pair.broken = found.Broken()
	if rd.pair.alone = nil; readable && !missing && err == nil && rd.card.Val() == 0 {
		rd.pair.alone = &value
	}
	var inUse, runOut int64
	for _, m := range rd.members {
		if m.granted+intervalMS > nowMS {
			inUse += int64(m.Permits)
		}
	}
	for _, m := range parse(rd.expired.Val()) {
		runOut += int64(m.Permits)
	}
	switch last := rd.last.Val(); {
	case !readable:
		rd.free, rd.known = 0, false
		return
	case len(last) > 0 && int64(last[len(last)-1].Score)+intervalMS <= nowMS:
		return // all have run out: the next request finds the whole rate
	case missing:
		rd.free = rate - inUse
	case err != nil:
		rd.free, rd.known = 0, false
		return
	default:
		rd.free = value + runOut
	}
	rd.free = min(max(rd.free, 0), rate)
}

func (rd *pairRead) inUse(intervalMS, nowMS int64) []member {
	var members []member
	for _, m := range rd.members {
		if m.granted+intervalMS > nowMS {
			members = append(members, m)
		}
	}
	return members
}
