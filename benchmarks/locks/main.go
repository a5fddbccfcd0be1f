// Command locks makes decisions and shows, if it is built by locks.sh, for how long locks are held meanwhile.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"expvar"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/benchmarks/server"
)

func main() {
	length := flag.Duration("for", 2*time.Second, "how long each load lasts")
	callers := flag.Int("callers", 256, "how many callers there are")
	flag.Parse()
	if err := run(*length, *callers); err != nil {
		fmt.Fprintln(os.Stderr, "locks:", err)
		os.Exit(1)
	}
}

func run(length time.Duration, callers int) error {
	ctx := context.Background()
	s, err := server.Start(ctx, "")
	if err != nil {
		return err
	}
	defer s.Close()
	for _, limiters := range []int{1, 10_000} {
		if err := measure(ctx, s, limiters, callers, length); err != nil {
			return err
		}
	}
	return nil
}

// measure shows the locks that are held for longest by calls of so many limiters.
func measure(ctx context.Context, s *server.Redis, limiters, callers int, length time.Duration) error {
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr})
	defer func() { _ = rdb.Close() }()
	client := rratelimiter.New(rdb)
	all := make([]*rratelimiter.RateLimiter, limiters)
	for i := range all {
		all[i] = client.RateLimiter("l"+strconv.Itoa(i), rratelimiter.WithDefault(rratelimiter.PerHour(1<<40)))
	}
	if _, err := load(ctx, all, callers, length/4); err != nil {
		return err
	}
	before := locks()
	decisions, err := load(ctx, all, callers, length)
	if err != nil {
		return err
	}
	after := locks()
	for i := range after {
		if i < len(before) {
			after[i].Locks -= before[i].Locks
			after[i].Held -= before[i].Held
			after[i].Paused -= before[i].Paused
		}
	}
	fmt.Printf("%d limiters, %d callers: %d decisions, %.0f a second\n", limiters, callers, decisions, float64(decisions)/length.Seconds())
	after = slices.DeleteFunc(after, func(one lock) bool { return one.Locks == 0 })
	slices.SortFunc(after, func(a, b lock) int { return cmp.Compare(b.Held, a.Held) })
	for _, one := range after[:min(5, len(after))] {
		n := float64(decisions)
		fmt.Printf("%8.1f ns a decision in %.3f locks, %v at most but for %d over 1 ms: %s\n",
			float64(one.Held)/n, float64(one.Locks)/n, time.Duration(one.Longest), one.Paused, one.By)
	}
	return client.Close(ctx)
}

// load makes decisions, and returns how many.
func load(ctx context.Context, all []*rratelimiter.RateLimiter, callers int, length time.Duration) (decisions int64, err error) {
	var n atomic.Int64
	var failed atomic.Pointer[error]
	end := time.Now().Add(length)
	var group sync.WaitGroup
	for caller := range callers {
		group.Go(func() {
			for i := caller * 7919; time.Now().Before(end); i++ {
				if _, err := all[i*2654435761%len(all)].TryAcquire(ctx, 1, 0); err != nil {
					failed.Store(&err)
					return
				}
				n.Add(1)
			}
		})
	}
	group.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return n.Load(), nil
}

// lock is what a mutex has counted.
type lock struct {
	By                           string
	Locks, Held, Longest, Paused int64
}

// locks returns what all have, in the order in which they were first locked.
func locks() (all []lock) {
	if counted := expvar.Get("locks"); counted != nil {
		if err := json.Unmarshal([]byte(counted.String()), &all); err != nil {
			panic(err)
		}
	}
	return all
}
