package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

// What one look at a limiter reads at most.
const (
	maxMembers = 5000
	maxClients = 100
)

// snapshot is what Redis held under a limiter's keys at one moment.
type snapshot struct {
	nowMS   int64
	config  keyState
	value   keyState
	permits keyState

	fields  []any     // as HMGET answers
	number  string    // the value's text
	card    int64     // members of the set
	members []redis.Z // the oldest maxMembers of them
}

// keyState tells the type of a key and its time to live, negative for none.
type keyState struct {
	name, kind string
	ttl        time.Duration
}

// isWindow tells whether the value has an end of its own: a Redisson before
// 3.13.3 counts a fixed window by it.
func (s *snapshot) isWindow(interval time.Duration) bool {
	if s.value.kind != "string" || s.value.ttl < 0 || s.value.ttl > interval {
		return false
	}
	later := func(k keyState) bool { return k.ttl < 0 || k.ttl > s.value.ttl+time.Second }
	return later(s.config) && later(s.permits)
}

func (k keyState) exists() bool           { return k.kind != "none" }
func (k keyState) wrong(kind string) bool { return k.exists() && k.kind != kind }

// readSnapshot reads a limiter's hash and one pair of value and set, in a
// transaction that changes nothing.
func readSnapshot(ctx context.Context, rdb *redis.Client, config, value, permits string) (*snapshot, error) {
	pipe := rdb.TxPipeline()
	now := pipe.Time(ctx)
	names := []string{config, value, permits}
	var kinds [3]*redis.StatusCmd
	var ttls [3]*redis.DurationCmd
	for i, name := range names {
		kinds[i] = pipe.Type(ctx, name)
		ttls[i] = pipe.PTTL(ctx, name)
	}
	fields := pipe.HMGet(ctx, config, "rate", "interval", "type", "keepAliveTime")
	number := pipe.Get(ctx, value)
	card := pipe.ZCard(ctx, permits)
	members := pipe.ZRangeWithScores(ctx, permits, 0, maxMembers-1)
	cmds, err := pipe.Exec(ctx)
	if err != nil && !harmless(err) {
		return nil, err
	}
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && !harmless(err) {
			return nil, err
		}
	}
	state := func(i int) keyState { return keyState{names[i], kinds[i].Val(), ttls[i].Val()} }
	return &snapshot{
		nowMS:  now.Val().UnixMilli(),
		config: state(0), value: state(1), permits: state(2),
		fields: fields.Val(), number: number.Val(), card: card.Val(), members: members.Val(),
	}, nil
}

// harmless tells errors that speak of one key's content.
func harmless(err error) bool {
	return errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "WRONGTYPE")
}

// findClients returns the ids of the clients that have keys of their own under
// the limiter, sorted.
func findClients(ctx context.Context, rdb *redis.Client, name string) ([]string, error) {
	k := redisson.KeysOf(name, "")
	prefixes := []string{k.ClientValue, k.ClientPermits}
	var ids []string
	for _, prefix := range prefixes {
		var cursor uint64
		for {
			found, next, err := rdb.Scan(ctx, cursor, escapeGlob(prefix)+"*", scanCount).Result()
			if err != nil {
				return nil, err
			}
			for _, key := range found {
				ids = append(ids, strings.TrimPrefix(key, prefix))
			}
			if cursor = next; cursor == 0 {
				break
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// escapeGlob returns the pattern that matches s alone.
func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}

// state is one pair of value and set, as show prints it. Nil fields can't be
// told.
type state struct {
	ClientID     *string  `json:"client_id"` // nil for the pair that all share
	Free         *int64   `json:"free"`
	Value        *int64   `json:"value"`
	InUse        int64    `json:"in_use"`
	RunOut       int64    `json:"run_out"`
	Members      int64    `json:"members"`
	Window       bool     `json:"window"` // the value counts a fixed window
	ValueTTLMS   *int64   `json:"value_ttl_ms"`
	PermitsTTLMS *int64   `json:"permits_ttl_ms"`
	Permits      []permit `json:"permits"`
}

// permit is one member of a set.
type permit struct {
	ID         string `json:"id"`
	Layout     string `json:"layout"`
	Permits    uint32 `json:"permits"`
	GrantedMS  int64  `json:"granted_at_ms"`
	AgeMS      int64  `json:"age_ms"`
	BackInMS   *int64 `json:"back_in_ms"`
	parseError error
}

// newState works out a pair's state; cfg is nil where the configuration can't
// be read. All members read are in Permits.
func newState(s *snapshot, cfg *fields, clientID *string) state {
	st := state{
		ClientID: clientID, Members: s.card, Permits: make([]permit, 0, len(s.members)),
		ValueTTLMS: millis(s.value.ttl), PermitsTTLMS: millis(s.permits.ttl),
	}
	if n, err := strconv.ParseInt(s.number, 10, 64); err == nil {
		st.Value = &n
		st.Window = cfg != nil && n < cfg.rate && s.isWindow(time.Duration(cfg.intervalMS)*time.Millisecond)
	}
	allRunOut := true
	for _, z := range s.members {
		p := newPermit(z, s.nowMS, cfg)
		if p.BackInMS != nil && *p.BackInMS <= 0 {
			st.RunOut += int64(p.Permits)
		} else {
			st.InUse += int64(p.Permits)
			allRunOut = false
		}
		st.Permits = append(st.Permits, p)
	}
	st.Free = st.free(s, cfg, allRunOut)
	return st
}

func newPermit(z redis.Z, nowMS int64, cfg *fields) permit {
	packed, _ := z.Member.(string)
	p := permit{GrantedMS: int64(z.Score), AgeMS: nowMS - int64(z.Score)}
	member, err := codec.Parse(packed)
	if err != nil {
		p.ID, p.Layout, p.parseError = fmt.Sprintf("%x", packed), "unknown", err
	} else {
		p.ID, p.Layout, p.Permits = fmt.Sprintf("%x", member.ID), member.Layout.String(), member.Permits
	}
	if cfg != nil {
		// A member dated in the future counts from the next request on.
		back := cfg.intervalMS - max(p.AgeMS, 0)
		p.BackInMS = &back
	}
	return p
}

// free returns the permits that a request would find, nil where that can't be
// told.
func (st *state) free(s *snapshot, cfg *fields, allRunOut bool) *int64 {
	if cfg == nil || s.value.wrong("string") || s.permits.wrong("zset") || s.card > maxMembers {
		return nil
	}
	if s.value.exists() && st.Value == nil {
		return nil
	}
	free := cfg.rate - st.InUse
	if (!allRunOut || st.Window) && st.Value != nil {
		free = *st.Value
		if !st.Window {
			free += st.RunOut
		}
	}
	free = min(max(free, 0), cfg.rate)
	return &free
}
