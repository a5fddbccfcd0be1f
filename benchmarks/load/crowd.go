package load

import (
	"context"
	"sync"
	"time"
)

// A Crowd is one call, and From later a number of callers that ask without a pause until To, at
// least once: what an idle limiter meets when its users come all at once.
type Crowd struct {
	Callers  int
	From, To time.Duration
}

// A Grant is known to have happened between Sent and Answered, both counted
// from the crowd's beginning.
type Grant struct {
	Sent, Answered time.Duration
}

// Run puts the crowd before the limiter behind take. What gave an error is
// neither a grant nor a refusal.
func (c Crowd) Run(ctx context.Context, take Take) []Grant {
	var (
		mu     sync.Mutex
		grants []Grant
		wg     sync.WaitGroup
		begin  = time.Now()
	)
	ask := func() {
		sent := time.Since(begin)
		granted, err := take(ctx, 0)
		if err != nil || !granted {
			return
		}
		answered := time.Since(begin)
		mu.Lock()
		defer mu.Unlock()
		grants = append(grants, Grant{sent, answered})
	}
	ask()
	time.Sleep(c.From - time.Since(begin))
	for range c.Callers {
		wg.Go(func() {
			for {
				ask()
				if time.Since(begin) >= c.To || ctx.Err() != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return grants
}

// Fullest returns the most grants that are certain to lie within an interval,
// wherever that begins: sent in it and answered in it.
func Fullest(grants []Grant, interval time.Duration) int {
	most := 0
	for _, first := range grants {
		n := 0
		for _, g := range grants {
			if g.Sent >= first.Sent && g.Answered < first.Sent+interval {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// Drain takes permits one by one until the first refusal, up to most, and returns how many it
// got.
func Drain(ctx context.Context, most int, take Take) (int, error) {
	for n := range most {
		granted, err := take(ctx, 0)
		if err != nil || !granted {
			return n, err
		}
	}
	return most, nil
}
