package dashboard

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

// keyLook is what the page says of any key.
type keyLook struct {
	named

	Type  string   `json:"type"`   // Redis'
	TTLMS *int64   `json:"ttl_ms"` // nil for none, and for a key that is no limiter's
	Looks string   `json:"looks"`  // what it is
	Limit *int64   `json:"limit"`  // of a key of Config.Others, its threshold if it has one
	Free  *int64   `json:"free"`   // of these
	Facts []fact   `json:"facts"`
	Goes  []string `json:"goes"` // pages that have more: "limiter", "thresholds"
}

// What keys are.
const (
	looksGone       = "There is no such key."
	looksLimiter    = "A RateLimiter: its hash has rate, interval and type."
	looksBroken     = "A hash with fields of a RateLimiter that can't be read as one: calls of it fail."
	looksState      = "The permits or the value of a RateLimiter: look at the limiter's own name."
	looksThresholds = "Thresholds of a sliding log."
	looksOwn        = "A key of a limiter in this page's configuration."
	looksOther      = "Not a limiter that this page knows: you see type and size only."
)

// keyCommands is how many commands showKey sends at most, about.
const keyCommands = 12

// showKey shows what a key is: for limiters' keys the limiter's figures, for others the
// type and the size.
func (c *call) showKey() error {
	name := c.asked.Key
	other, thresholds := c.other(name), c.isThresholds(name)
	if err := c.within(name); err != nil && other < 0 && !thresholds {
		return err
	}
	ctx, cancel := c.cfg.bounded(c.r.Context())
	defer cancel()
	if err := c.turn(ctx, keyCommands); err != nil {
		return err
	}
	k := keyLook{named: nameOf(name), Facts: []fact{}, Goes: []string{}, Looks: looksOther}
	k.Name = whole(name)
	var err error
	if k.Type, err = c.cfg.Redis.Type(ctx, name).Result(); err != nil {
		return err
	}
	switch {
	case k.Type == "none":
		k.Looks = looksGone
		if other >= 0 && !thresholds {
			c.askOther(ctx, name, other, &k)
		}
		return c.ok(k)
	case thresholds:
		k.Looks, k.Goes = looksThresholds, []string{"thresholds"}
	case other >= 0:
		k.Looks = looksOwn
		c.askOther(ctx, name, other, &k)
	default:
		if k.Looks, k.Goes, err = c.limiterAt(ctx, name, k.Type); err != nil {
			return err
		}
	}
	if err := c.measure(ctx, name, &k); err != nil {
		return err
	}
	return c.ok(k)
}

// measure adds the size of a key, and if it is a limiter's the time to live.
func (c *call) measure(ctx context.Context, name string, k *keyLook) error {
	count, title := sizeOf(ctx, c.cfg.Redis, name, k.Type)
	n, err := count.Result()
	if err == nil {
		k.Facts = append(k.Facts, fact{title, strconv.FormatInt(n, 10)})
	} else if _, answered := errors.AsType[redis.Error](err); !answered { // there is no right to, or it is another by now
		return err
	}
	if k.Looks == looksOther {
		return nil
	}
	ttl, err := c.cfg.Redis.PTTL(ctx, name).Result()
	if err == nil && ttl >= 0 {
		ms := ttl.Milliseconds()
		k.TTLMS = &ms
	}
	return err
}

// sizeOf asks how much a key holds, and says of what.
func sizeOf(ctx context.Context, rdb redis.UniversalClient, name, kind string) (count *redis.IntCmd, title string) {
	switch kind {
	case "string":
		return rdb.StrLen(ctx, name), "Bytes"
	case "hash":
		return rdb.HLen(ctx, name), "Fields"
	case "zset":
		return rdb.ZCard(ctx, name), "Members"
	case "set":
		return rdb.SCard(ctx, name), "Members"
	case "list":
		return rdb.LLen(ctx, name), "Elements"
	case "stream":
		return rdb.XLen(ctx, name), "Entries"
	}
	return rdb.Exists(ctx, name), "Keys" // of a module, whose size has no command of its own
}

// askOther adds the figures of the limiter that has such keys.
func (c *call) askOther(ctx context.Context, name string, at int, k *keyLook) {
	o, asked := &c.cfg.Others[at], otherKey{}
	k.Facts = append(k.Facts, fact{"Limiter", o.Name})
	if asked.told, asked.err = o.Limiter.Peek(ctx, name, 1); asked.err != nil {
		told, _ := problemOf(asked.err)
		k.Facts = append(k.Facts, fact{"Free", "not known: " + told.Detail})
		return
	}
	free := asked.free()
	k.Limit, k.Free = &asked.told.Limit, &free
	k.Facts = append(k.Facts, fact{"Free", fmt.Sprintf("%d of %d", free, asked.told.Limit)})
}

// limiterAt says whether a key is a RateLimiter's.
func (c *call) limiterAt(ctx context.Context, name, kind string) (looks string, goes []string, err error) {
	if kind == "hash" {
		is, foreign, err := c.isLimiter(ctx, name)
		switch {
		case is:
			return looksLimiter, []string{"limiter"}, err
		case err == nil && !foreign:
			return looksBroken, []string{"limiter"}, nil
		}
		return looksOther, []string{}, err
	}
	for suffix, of := range map[string]string{":value": "string", ":permits": "zset"} {
		if kind == of && c.isStateOf(ctx, name, suffix) {
			return looksState, []string{}, nil
		}
	}
	return looksOther, []string{}, nil
}

// isStateOf reports whether a key is the value or the set of a RateLimiter that is there.
func (c *call) isStateOf(ctx context.Context, key, suffix string) bool {
	at := strings.LastIndex(key, suffix)
	if at < 0 {
		return false
	}
	tagged := key[:at]
	names := []string{tagged}
	if inner, ok := strings.CutPrefix(tagged, "{"); ok && strings.HasSuffix(inner, "}") {
		names = append(names, strings.TrimSuffix(inner, "}"))
	}
	for _, name := range names {
		own := redisson.KeysOf(name, "")
		if c.within(name) != nil || !strings.HasPrefix(key, own.Value) && !strings.HasPrefix(key, own.Permits) {
			continue
		}
		if is, _, err := c.isLimiter(ctx, name); err == nil && is {
			return true
		}
	}
	return false
}

// isLimiter reports whether a hash is a RateLimiter's that can be read, and whether it is
// something else's.
func (c *call) isLimiter(ctx context.Context, key string) (is, foreign bool, err error) {
	fields, err := c.cfg.Redis.HMGet(ctx, key, look.FieldNames...).Result()
	if err != nil {
		return false, false, err
	}
	_, unreadable := look.ParseFields(fields)
	return unreadable == nil, look.Foreign("hash", fields), nil
}
