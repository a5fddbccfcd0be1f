package script

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrLost marks the error of a call that may have run, though no answer came.
var ErrLost = errors.New("no answer")

const (
	maxAttempts = 5
	minBackoff  = 8 * time.Millisecond
	maxBackoff  = 512 * time.Millisecond

	patientBackoff = 128 * time.Millisecond
)

// Patience is how long a call is repeated that is refused while servers change
// places: until they have, it is refused however often it is made.
const Patience = 3 * time.Second

// repeater decides whether a call that failed is made again.
type repeater struct {
	to       *Sender
	harmless bool          // it may be made again after an attempt that may have run
	patience time.Duration // 0: Patience

	sent     time.Time // the last attempt
	doubt    time.Time // the first that may have run
	refused  time.Time // when servers were first seen to change places
	attempts int
	counted  int // those that were not refused for that
}

// begin is told that an attempt is made. It returns how old the first one is that
// may have run, below 0 where there is none.
func (r *repeater) begin() (age time.Duration) {
	r.attempts++
	r.sent = time.Now()
	if r.doubt.IsZero() {
		return -1
	}
	return r.sent.Sub(r.doubt)
}

// failed is told how the attempt failed. It returns true when it is time to make
// another, or what the call fails with.
func (r *repeater) failed(ctx context.Context, err error) (again bool, _ error) {
	switch {
	case notRun(err):
		if isDial(err) {
			r.to.reload(ctx)
		}
	case isAnswer(err) || errors.Is(err, redis.ErrClosed):
		return false, r.lost(err)
	case r.doubt.IsZero():
		r.doubt = r.sent
	}
	var backoff time.Duration
	var over bool
	if inTransition(err) {
		if r.refused.IsZero() {
			r.refused = time.Now()
		}
		patience := r.patience
		if patience == 0 {
			patience = Patience
		}
		backoff, over = patientBackoff, time.Since(r.refused) > patience
	} else {
		r.counted++
		backoff, over = maxBackoff, r.counted == maxAttempts
	}
	if over || (!r.doubt.IsZero() && !r.harmless) || sleep(ctx, min(minBackoff<<min(r.attempts-1, 10), backoff)) != nil {
		return false, r.lost(err)
	}
	return true, nil
}

// lost says of an error whether one of the attempts may have run.
func (r *repeater) lost(err error) error {
	if r.doubt.IsZero() {
		return err
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

func sleep(ctx context.Context, backoff time.Duration) error {
	timer := time.NewTimer(backoff/2 + rand.N(backoff/2))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
