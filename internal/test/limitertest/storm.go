package limitertest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/engine"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/lua"
)

// A Fault is a fault of one call; held is closed late in the round.
type Fault func(held <-chan struct{}) redistest.Action

// maxFaults is how many faults a round has. A call is made five times: whichever calls
// share a pipeline or come between, none meets faults alone.
const maxFaults = 4

// StormRound makes some requests under faults of those kinds, releases some of what is
// held, and checks that what is in use is what is held.
func (w *Wire) StormRound(t *testing.T, draw *rand.Rand, mu *sync.Mutex, holding *int64, kinds []Fault) bool {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	faults := 0
	held := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(held) })
	defer letGo()
	w.OnScript(func(s *lua.Script, _ int) redistest.Action {
		mu.Lock()
		defer mu.Unlock()
		if draw.IntN(8) == 0 {
			cancel()
		}
		if s != lua.Acquire && s != lua.GiveBack || faults == maxFaults || draw.IntN(3) != 0 {
			return redistest.Pass
		}
		faults++
		return kinds[draw.IntN(len(kinds))](held)
	})

	mu.Lock()
	wishes := drawWishes(ctx, draw)
	mu.Unlock()

	*holding += Sum(w.Ask(t, wishes...))
	mu.Lock()
	back := int64(0)
	if *holding > 0 && draw.IntN(2) == 0 {
		back = 1 + draw.Int64N(*holding)
	}
	lateFirst := draw.IntN(2) == 0
	mu.Unlock()
	if lateFirst {
		letGo()
	}
	if back > 0 {
		if !assert.NoError(t, w.Release(t.Context(), back)) {
			return false
		}
		*holding -= back
	}
	if !lateFirst {
		letGo()
	}
	if !w.CheckHeld(t, *holding, fmt.Sprintf("a round with %d requests", len(wishes))) {
		return false
	}
	// A give-back that has run may have lost its answer: its repeats are no next round's.
	over := func() bool { return engine.Of(w.Client).Active() == 0 }
	return assert.Eventually(t, over, time.Minute, time.Millisecond, "calls of a round are still under way")
}

// drawWishes draws some requests; those that ctx ends are tried once.
func drawWishes(ctx context.Context, draw *rand.Rand) []Wish {
	var wishes []Wish
	for range 1 + draw.IntN(5) {
		permits := 1 + draw.Int64N(6)
		switch draw.IntN(4) {
		case 0:
			wishes = append(wishes, TakeFor(permits))
		case 1:
			wishes = append(wishes, WaitFor(permits, Outlasts))
		case 2:
			wishes = append(wishes, func(w *Wire) (int64, error) {
				ok, err := w.TryAcquire(ctx, permits, 0)
				return Counted(permits, ok, err)
			})
		default:
			wishes = append(wishes, TryFor(permits))
		}
	}
	return wishes
}
