package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/codec"
)

// look reads keys of one slot at one moment, and removes those that it is told to: a list
// of type, content and PTTL for each.
var look = redis.NewScript(`
local all = {}
for i, key in ipairs(KEYS) do
	local kind, content = redis.call('TYPE', key).ok, {}
	if kind == 'string' then content = {redis.call('GET', key)} end
	if kind == 'hash' then content = redis.call('HGETALL', key) end
	if kind == 'zset' then content = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
	all[i] = {kind, redis.call('PTTL', key), content}
end
for _, key in ipairs(ARGV) do redis.call('UNLINK', key) end
return all`)

// keyState is what one key holds.
type keyState struct {
	there   bool
	ttl     time.Duration // -1: none
	content []string
}

// state is what Redis holds of a limiter, in the hands of one client where each has its own.
type state struct {
	config, value, permits keyState
	inUse                  int64
}

func (s *state) String() string {
	show := func(k keyState) string {
		if !k.there {
			return "none"
		}
		return fmt.Sprintf("%q, to live %v", k.content, k.ttl)
	}
	return fmt.Sprintf("config %s\nvalue %s\nset %s: %d permits", show(s.config), show(s.value), show(s.permits), s.inUse)
}

// field returns a number of the configuration.
func (s *state) field(name string) (int64, error) {
	for i := 0; i+1 < len(s.config.content); i += 2 {
		if s.config.content[i] == name {
			return strconv.ParseInt(s.config.content[i+1], 10, 64)
		}
	}
	return 0, fmt.Errorf("no field %s", name)
}

func (s *state) stored() (int64, error) { return strconv.ParseInt(s.value.content[0], 10, 64) }

// read returns what Redis holds of the limiter, and removes keys.
func (l *limiter) read(ctx context.Context, rdb redis.Scripter, id string, remove ...any) (*state, error) {
	config, value, permits := l.keys(id)
	keys := []string{value, permits}
	if config != "" {
		keys = append(keys, config)
	}
	answer, err := look.Run(ctx, rdb, keys, remove...).Slice()
	if err != nil {
		return nil, err
	}
	s := &state{}
	for i, into := range []*keyState{&s.value, &s.permits, &s.config}[:len(keys)] {
		if err := into.parse(answer[i]); err != nil {
			return nil, err
		}
	}
	s.inUse, err = l.countUse(s)
	return s, err
}

func (k *keyState) parse(answer any) error {
	all, ok := answer.([]any)
	if !ok || len(all) != 3 {
		return fmt.Errorf("an answer is %v", answer)
	}
	ttl, _ := all[1].(int64)
	k.there, k.ttl = all[0] != "none", time.Duration(ttl)*time.Millisecond
	if ttl < 0 {
		k.ttl = -1
	}
	content, _ := all[2].([]any)
	for _, part := range content {
		k.content = append(k.content, fmt.Sprint(part))
	}
	return nil
}

// countUse returns how many permits the state says are in use, those included that have
// run out and were not reclaimed.
func (l *limiter) countUse(s *state) (int64, error) {
	switch {
	case l.kind == bucket && s.permits.there && !s.value.there:
		return l.config.Rate + l.borrow, nil // so it is taken
	case l.kind == bucket && s.value.there:
		tokens, err := s.stored()
		return l.config.Rate - tokens, err
	case !s.permits.there:
		return 0, nil
	case l.kind == window:
		return s.stored()
	case l.kind == log:
		return int64(len(s.permits.content) / 2), nil
	}
	sum := int64(0)
	for i := 0; i < len(s.permits.content); i += 2 {
		member, err := codec.Parse(s.permits.content[i])
		if err != nil {
			return 0, errors.Join(err, fmt.Errorf("member %q", s.permits.content[i]))
		}
		sum += int64(member.Permits)
	}
	return sum, nil
}
