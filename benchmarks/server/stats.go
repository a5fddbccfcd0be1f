package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Usage is what the server has spent since it started.
type Usage struct {
	cpu      time.Duration // of its main thread
	commands map[string]command
}

type command struct {
	calls int64
	took  time.Duration
}

// Cost is what the server spent between two looks.
type Cost struct {
	CPU     time.Duration // of the main thread, with its reads and writes
	Scripts int64         // calls of scripts
	Took    time.Duration // in commands that clients sent
}

// Usage looks at what the server has spent.
func (s *Redis) Usage(ctx context.Context) (*Usage, error) {
	u := &Usage{commands: map[string]command{}}
	cpu, err := s.info(ctx, "cpu")
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"used_cpu_sys_main_thread", "used_cpu_user_main_thread"} {
		seconds, err := strconv.ParseFloat(cpu[name], 64)
		if err != nil {
			return nil, fmt.Errorf("INFO cpu, %s: %w", name, err)
		}
		u.cpu += time.Duration(seconds * float64(time.Second))
	}
	stats, err := s.info(ctx, "commandstats")
	if err != nil {
		return nil, err
	}
	for name, text := range stats {
		var c command
		var usec int64
		if _, err := fmt.Sscanf(text, "calls=%d,usec=%d", &c.calls, &usec); err != nil {
			return nil, fmt.Errorf("INFO commandstats, %s: %w", name, err)
		}
		c.took = time.Duration(usec) * time.Microsecond
		u.commands[strings.TrimPrefix(name, "cmdstat_")] = c
	}
	return u, nil
}

// scripts are the commands whose time holds that of others, which are counted
// under their own names too.
var scripts = []string{"eval", "evalsha", "exec"}

// Since returns what the server has spent since the look before. Commands that
// ran within a script or a transaction are in its time; of those that outer
// names the client sent as many as it says for each script, or all if there
// was none.
func (u *Usage) Since(before *Usage, outer map[string]float64) Cost {
	cost := Cost{CPU: u.cpu - before.cpu}
	for _, name := range scripts {
		cost.Scripts += u.commands[name].calls - before.commands[name].calls
	}
	for name, c := range u.commands {
		calls, took := c.calls-before.commands[name].calls, c.took-before.commands[name].took
		inScript, sent := outer[name]
		if !sent || calls == 0 {
			continue
		}
		share := 1 - inScript*float64(cost.Scripts)/float64(calls)
		cost.Took += time.Duration(float64(took) * max(0, share))
	}
	return cost
}

// Memory returns the bytes of all keys.
func (s *Redis) Memory(ctx context.Context) (int64, error) {
	var sum int64
	var cursor uint64
	for {
		keys, next, err := s.admin.Scan(ctx, cursor, "*", 5000).Result()
		if err != nil {
			return 0, err
		}
		cmds, err := s.admin.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, key := range keys {
				p.MemoryUsage(ctx, key, 0)
			}
			return nil
		})
		// A key may run out meanwhile.
		if err != nil && !errors.Is(err, redis.Nil) {
			return 0, err
		}
		for _, cmd := range cmds {
			if n, ok := cmd.(*redis.IntCmd); ok {
				sum += n.Val()
			}
		}
		if next == 0 {
			return sum, nil
		}
		cursor = next
	}
}

// Longest runs f and returns how long the longest script took meanwhile.
func (s *Redis) Longest(ctx context.Context, f func() error) (time.Duration, error) {
	for name, value := range map[string]string{"slowlog-log-slower-than": "0", "slowlog-max-len": "100000"} {
		if err := s.admin.ConfigSet(ctx, name, value).Err(); err != nil {
			return 0, err
		}
	}
	if err := s.admin.Do(ctx, "SLOWLOG", "RESET").Err(); err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	if err := s.admin.ConfigSet(ctx, "slowlog-log-slower-than", "10000").Err(); err != nil {
		return 0, err
	}
	logs, err := s.admin.SlowLogGet(ctx, -1).Result()
	if err != nil {
		return 0, err
	}
	var longest time.Duration
	for _, entry := range logs {
		if name := strings.ToLower(entry.Args[0]); strings.HasPrefix(name, "eval") {
			longest = max(longest, entry.Duration)
		}
	}
	return longest, nil
}

func (s *Redis) info(ctx context.Context, section string) (map[string]string, error) {
	text, err := s.admin.Info(ctx, section).Result()
	if err != nil {
		return nil, err
	}
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields, nil
}
