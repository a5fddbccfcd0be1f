package slidinglog

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/keyed"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// SetThreshold sets the limit of key in the hash of thresholds, 0 to MaxLimit; 0 refuses all. It takes
// effect at the next decision, in all programs. If its answer is lost, it is not repeated and returns
// limit.ErrUnknownOutcome. Without a hash of thresholds it returns limit.ErrInvalidConfig, as do the
// other calls about thresholds.
func (l *Limiter) SetThreshold(ctx context.Context, key string, threshold int64) error {
	var err error
	if threshold < 0 || threshold > MaxLimit {
		err = fmt.Errorf("%w: threshold %d is not between 0 and %d", limit.ErrInvalidConfig, threshold, int64(MaxLimit))
	} else {
		_, err = l.do(ctx, key, false, "HSET", key, threshold)
	}
	return keyed.Fail("slidinglog", "SetThreshold", key, err)
}

// Threshold returns the limit of key: its threshold if it has one, otherwise Config.Limit. If
// the threshold is not a number of 0 or more, the error is limit.ErrCorrupt.
func (l *Limiter) Threshold(ctx context.Context, key string) (int64, error) {
	threshold := int64(0)
	reply, err := l.do(ctx, key, true, "HGET", key)
	if err == nil {
		threshold, err = l.parse(key, reply, nil)
	}
	return threshold, keyed.Fail("slidinglog", "Threshold", key, err)
}

// ResetThreshold removes what SetThreshold set, so that key has Config.Limit again. If its
// answer is lost, it is not repeated and returns limit.ErrUnknownOutcome.
func (l *Limiter) ResetThreshold(ctx context.Context, key string) error {
	_, err := l.do(ctx, key, false, "HDEL", key)
	return keyed.Fail("slidinglog", "ResetThreshold", key, err)
}

// Thresholds returns all thresholds, by key. Those that are not numbers of 0 or more are left out and
// named in the error, limit.ErrCorrupt; the others are returned with it.
func (l *Limiter) Thresholds(ctx context.Context) (map[string]int64, error) {
	const op = "Thresholds"
	all := make(map[string]int64)
	var corrupt error
	for cursor := "0"; ; {
		reply, err := l.do(ctx, "all", true, "HSCAN", cursor, "COUNT", 256)
		if err != nil {
			return nil, keyed.Fail("slidinglog", op, l.cfg.Thresholds, err)
		}
		page, _ := reply.([]any)
		if len(page) != 2 {
			return nil, keyed.Fail("slidinglog", op, l.cfg.Thresholds, fmt.Errorf("unexpected answer of HSCAN: %v", reply))
		}
		fields, _ := page[1].([]any)
		for i := 0; i+1 < len(fields); i += 2 {
			key, text := fmt.Sprint(fields[i]), fmt.Sprint(fields[i+1])
			if threshold, ok := parseThreshold(text); ok {
				all[key] = threshold
			} else {
				corrupt = errors.Join(corrupt, corruptThreshold(l.cfg.Thresholds, key, notANumber(text)))
			}
		}
		if cursor = fmt.Sprint(page[0]); cursor == "0" {
			return all, keyed.Fail("slidinglog", op, l.cfg.Thresholds, corrupt)
		}
	}
}

// do makes a command about a key's threshold. It may be repeated if it only reads.
func (l *Limiter) do(ctx context.Context, key string, reads bool, words ...any) (any, error) {
	switch {
	case l.cfg.Thresholds == "":
		return nil, fmt.Errorf("%w: Config.Thresholds names no hash", limit.ErrInvalidConfig)
	case key == "":
		return nil, fmt.Errorf("%w: the key is empty", limit.ErrInvalidConfig)
	}
	c := &script.Call{Script: lua.Command, Keys: script.KeysOf(l.cfg.Thresholds), Args: script.Constant(words), Repeat: reads, Reads: reads}
	reply, err := l.table.Run(ctx, c)
	if err == nil || errors.Is(err, redis.Nil) {
		return reply, nil
	}
	return nil, l.explainHash(err)
}

// parse returns the limit of a key from the value read from the hash: nil or redis.Nil if the key has none there.
func (l *Limiter) parse(key string, reply any, err error) (int64, error) {
	switch {
	case errors.Is(err, redis.Nil) || err == nil && reply == nil:
		return l.cfg.Limit, nil
	case err != nil:
		return 0, l.explainHash(err)
	}
	text, _ := reply.(string)
	threshold, ok := parseThreshold(text)
	if !ok {
		return 0, corruptThreshold(l.cfg.Thresholds, key, notANumber(text))
	}
	return threshold, nil
}

func (l *Limiter) explainHash(err error) error {
	return script.Explain(err, []string{l.cfg.Thresholds}, "the hash of thresholds", "")
}

// parseThreshold parses a threshold as the script's include of that name does.
func parseThreshold(text string) (int64, bool) {
	for _, digit := range []byte(text) {
		if digit < '0' || digit > '9' {
			return 0, false
		}
	}
	threshold, err := strconv.ParseInt(text, 10, 64)
	return threshold, err == nil && len(text) <= 32 && threshold <= MaxLimit
}

func notANumber(text string) string {
	return fmt.Sprintf("is no whole number of 0 or more: %.40q", text)
}
