package dashboard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/look"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

// keyLook is what any key of Redis looks like.
type keyLook struct {
	named

	Type  string   `json:"type"`   // Redis'
	TTLMS *int64   `json:"ttl_ms"` // nil for none
	Looks string   `json:"looks"`  // what it may be
	Facts []fact   `json:"facts"`
	Goes  []string `json:"goes"` // pages that have more: "limiter", "thresholds"
}

// What keys look like.
const (
	looksGone       = "There is no such key."
	looksLimiter    = "A RateLimiter: its hash has rate, interval and type."
	looksState      = "The permits or the value of a RateLimiter: look at the limiter's own name."
	looksThresholds = "A hash of whole numbers: thresholds of a sliding log look so. What else has such a hash can't be told from it."
	looksBucket     = "A token bucket: a number, and beside it the time of the last refill. Capacity and refill are not in Redis."
	looksWindow     = "A whole number that expires: a fixed window or a counter looks so, and so does any count. Limit and window are not in Redis."
	looksLog        = "A sorted set by times that expires: a sliding log looks so. Limit and window are not in Redis."
	looksOther      = "No limiter that is known here."
)

// keyCommands is how many commands showKey sends at most, about.
const keyCommands = 12

// showKey tells what a key may be, by its type and what it holds.
func (c *call) showKey() error {
	name, err := nameFrom(c.r.URL.Query().Get("key"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), timeout)
	defer cancel()
	if err := c.turn(ctx, keyCommands); err != nil {
		return err
	}
	k := keyLook{named: nameOf(name), Facts: []fact{}, Goes: []string{}, Looks: looksOther}
	k.Name = whole(name)
	if k.Type, err = c.cfg.Redis.Type(ctx, name).Result(); err != nil {
		return err
	}
	ttl, err := c.cfg.Redis.PTTL(ctx, name).Result()
	if err != nil {
		return err
	}
	if ttl >= 0 {
		ms := ttl.Milliseconds()
		k.TTLMS = &ms
	}
	switch k.Type {
	case "none":
		k.Looks = looksGone
	case "hash":
		err = c.lookAtHash(ctx, name, &k)
	case "string":
		err = c.lookAtText(ctx, name, &k)
	case "zset":
		err = c.lookAtSet(ctx, name, &k)
	}
	if err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
		return err
	}
	c.askOther(ctx, name, &k)
	return c.ok(k)
}

// askOther adds what the limiter tells that is known to have such keys, if any.
func (c *call) askOther(ctx context.Context, name string, k *keyLook) {
	at := slices.IndexFunc(c.cfg.Others, func(o Other) bool { return strings.HasPrefix(name, o.Prefix) && name != o.Thresholds })
	if at < 0 || k.Type == "none" {
		return
	}
	o, asked := &c.cfg.Others[at], otherKey{}
	k.Facts = append(k.Facts, fact{"Limiter", o.Name})
	if asked.told, asked.err = o.Limiter.Peek(ctx, name, 1); asked.err == nil {
		k.Facts = append(k.Facts, fact{"Free", fmt.Sprintf("%d of %d", asked.free(), asked.told.Limit)})
	}
}

func (c *call) lookAtHash(ctx context.Context, name string, k *keyLook) error {
	if is, err := c.isLimiter(ctx, name); err != nil {
		return err
	} else if is {
		k.Looks, k.Goes = looksLimiter, []string{"limiter"}
		return nil
	}
	page, _, err := c.cfg.Redis.HScan(ctx, name, 0, "", 20).Result()
	if err != nil {
		return err
	}
	numbers := len(page) > 0
	for i := 1; i < len(page); i += 2 {
		n, err := strconv.ParseInt(page[i], 10, 64)
		numbers = numbers && err == nil && n >= 0
	}
	if numbers {
		k.Looks, k.Goes = looksThresholds, []string{"thresholds"}
	}
	return nil
}

// maxText is how much of a string is read.
const maxText = 100

func (c *call) lookAtText(ctx context.Context, name string, k *keyLook) error {
	text, err := c.cfg.Redis.GetRange(ctx, name, 0, maxText).Result()
	if err != nil {
		return err
	}
	if _, err := strconv.ParseInt(text, 10, 64); err != nil {
		return nil //nolint:nilerr // no number, no limiter
	}
	k.Facts = append(k.Facts, fact{"Value", shown(text)})
	if c.isStateOf(ctx, name, ":value") {
		k.Looks = looksState
		return nil
	}
	last, err := c.cfg.Redis.GetRange(ctx, name+"_time", 0, maxText).Result()
	if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
		return err
	}
	seconds, err := strconv.ParseInt(last, 10, 64)
	switch {
	case err == nil && isTime(seconds*1000):
		k.Looks = looksBucket
		k.Facts[0][0] = "Tokens"
		k.Facts = append(k.Facts, fact{"Refilled", time.Unix(seconds, 0).UTC().Format(time.RFC3339)})
	case k.TTLMS != nil:
		k.Looks = looksWindow
		k.Facts[0][0] = "Count"
	}
	return nil
}

func (c *call) lookAtSet(ctx context.Context, name string, k *keyLook) error {
	card, err := c.cfg.Redis.ZCard(ctx, name).Result()
	if err != nil {
		return err
	}
	newest, err := c.cfg.Redis.ZRangeWithScores(ctx, name, -1, -1).Result()
	if err != nil || len(newest) == 0 {
		return err
	}
	k.Facts = append(k.Facts, fact{"Members", strconv.FormatInt(card, 10)})
	switch {
	case c.isStateOf(ctx, name, ":permits"):
		k.Looks = looksState
	case isTime(int64(newest[0].Score)) && k.TTLMS != nil:
		k.Looks = looksLog
		k.Facts = append(k.Facts, fact{"Newest", time.UnixMilli(int64(newest[0].Score)).UTC().Format(time.RFC3339Nano)})
	}
	return nil
}

// isTime tells whether a number is a time in epoch ms of this century.
func isTime(ms int64) bool { return ms > 946_684_800_000 && ms < 4_102_444_800_000 }

// isStateOf tells whether a key is the value or the set of a RateLimiter that is there.
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
		if !strings.HasPrefix(key, own.Value) && !strings.HasPrefix(key, own.Permits) {
			continue
		}
		if is, err := c.isLimiter(ctx, name); err == nil && is {
			return true
		}
	}
	return false
}

// isLimiter tells whether a key is the hash of a RateLimiter that can be read.
func (c *call) isLimiter(ctx context.Context, key string) (bool, error) {
	fields, err := c.cfg.Redis.HMGet(ctx, key, look.FieldNames...).Result()
	if err != nil {
		return false, err
	}
	_, unreadable := look.ParseFields(fields)
	return unreadable == nil, nil
}
