package script_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A server that hangs for an attempt's time leaves time for those that follow, as
// where it is replaced meanwhile.
func TestAnAttemptThatHangsLeavesTimeForOthers(t *testing.T) {
	t.Parallel()
	for _, of := range []time.Duration{script.DefaultTimeout, 300 * time.Millisecond} {
		virtual(t, func(attempt int) error {
			switch {
			case attempt == 1:
				return errHangs
			case attempt < 4:
				return answered("READONLY You can't write against a read only replica.")
			}
			return nil
		}, func(t *testing.T, rdb *redis.Client, w *wire) {
			start := time.Now()
			_, err := repeatOn(t.Context(), runner(rdb, of), time.Time{}, nothing)
			require.NoError(t, err)
			assert.Len(t, w.sent(), 5)
			assert.GreaterOrEqual(t, time.Since(start), of/3)
			assert.Less(t, time.Since(start), of)
		})
	}
}

// No call goes unanswered for longer than its time, whatever the server does, and
// though the client of go-redis is one that can't interrupt a read.
func TestACallEndsInTime(t *testing.T) {
	t.Parallel()
	refused := answered("LOADING Redis is loading the dataset in memory")
	for name, wrap := range map[string]func(redis.UniversalClient) script.Redis{
		"Client":  func(rdb redis.UniversalClient) script.Redis { return rdb },
		"wrapped": func(rdb redis.UniversalClient) script.Redis { return struct{ script.Redis }{rdb} },
	} {
		for _, fault := range []error{errHangs, refused} {
			for within, until := range map[time.Duration]time.Duration{
				callTime: 0, time.Second: time.Second, 200 * time.Millisecond: 200 * time.Millisecond,
			} {
				t.Run(fmt.Sprint(name, " ", fault, " ", within), func(t *testing.T) {
					t.Parallel()
					virtual(t, func(int) error { return fault }, func(t *testing.T, rdb *redis.Client, w *wire) {
						start := time.Now()
						end := time.Time{}
						if until > 0 {
							end = start.Add(until)
						}
						_, err := repeatOn(t.Context(), newConn(wrap(rdb)), end, nothing)
						require.Error(t, err)
						hangs := errors.Is(fault, errHangs)
						assert.Equal(t, hangs, errors.Is(err, script.ErrLost))
						assert.LessOrEqual(t, time.Since(start), within)
						assert.Greater(t, time.Since(start), within-patientBackoff)
						if hangs {
							assert.LessOrEqual(t, len(w.sent()), 3, "an attempt has a third of the time")
						}
					})
				})
			}
		}
	}
}

// callTime is how long a call may take: its caller, who waits no longer than the
// question's time, then learns how it ended.
const callTime = script.DefaultTimeout - script.DefaultTimeout/32

// patientBackoff is the longest time between attempts that are refused by servers
// that change places, or are few.
const patientBackoff = 128 * time.Millisecond

// What a hook panics with, on a goroutine of ours, becomes the error of a call that
// may have run.
func TestAHookThatPanics(t *testing.T) {
	t.Parallel()
	fault := func(int) error { panic("a hook") }
	virtual(t, fault, func(t *testing.T, rdb *redis.Client, _ *wire) {
		_, err := script.Once(t.Context(), newConn(rdb), incr, script.KeysOf("key"))
		require.ErrorIs(t, err, script.ErrLost)
		require.ErrorContains(t, err, "a hook")
		err = script.Guard(func() error {
			_, err := script.Once(t.Context(), newConn(rdb), incr, script.KeysOf("key"))
			return err
		})
		require.ErrorIs(t, err, script.ErrLost)
		require.ErrorContains(t, err, "a hook")
	})
}
