package engine

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// Who waits for permits of a server that answers nobody any more is told so in
// time, however many limiters have somebody in line.
func TestLinesOnASilentServerEndInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, f := farEngine(t, 2)
		f.takes(0)
		const interval = 30 * time.Second
		var wg sync.WaitGroup
		for i := range 100 {
			l := testLimiter(fmt.Sprint("limiter", i), "1 30000 0 0")
			start := time.Now()
			_, _, err := e.Acquire(t.Context(), l, Wish{Permits: 1})
			assert.NoError(t, err)
			for range 3 {
				wg.Go(func() {
					_, _, err := e.Acquire(t.Context(), l, Wish{Permits: 1, Waits: true})
					assert.ErrorIs(t, err, limit.ErrUnavailable)
					assert.LessOrEqual(t, time.Since(start), interval+script.DefaultTimeout, i)
				})
				synctest.Wait()
			}
			time.Sleep(100 * time.Millisecond)
		}
		f.takes(time.Minute)
		wg.Wait()
		time.Sleep(time.Hour)
	})
}
