package load_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/benchmarks/load"
)

func TestRunCountsWhatItMeasures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		failed := errors.New("failed")
		r := load.Run(t.Context(), load.Load{Callers: 4, Limiters: 10, Length: 20 * time.Millisecond},
			func(context.Context, int) (bool, error) {
				time.Sleep(100 * time.Microsecond)
				switch n := calls.Add(1); n % 4 {
				case 0:
					return false, failed
				case 1:
					return false, nil
				}
				return true, nil
			})
		assert.Greater(t, r.Granted, r.Refused)
		assert.Positive(t, r.Refused)
		assert.Positive(t, r.Errors)
		assert.Equal(t, failed.Error(), r.FirstError)
		assert.GreaterOrEqual(t, r.Latencies.Percentile(1), 100*time.Microsecond*127/128)
		assert.InEpsilon(t, float64(r.Granted+r.Refused)/r.Elapsed.Seconds(), r.Rate(), 1e-9)
	})
}

func TestFullest(t *testing.T) {
	t.Parallel()
	at := func(sent, answered int) load.Grant {
		return load.Grant{Sent: time.Duration(sent), Answered: time.Duration(answered)}
	}
	for name, test := range map[string]struct {
		grants []load.Grant
		want   int
	}{
		"none":                      {nil, 0},
		"one":                       {[]load.Grant{at(0, 1)}, 1},
		"all in one interval":       {[]load.Grant{at(0, 1), at(5, 6), at(8, 9)}, 3},
		"two intervals":             {[]load.Grant{at(0, 1), at(5, 6), at(20, 21)}, 2},
		"across a window's edge":    {[]load.Grant{at(0, 1), at(8, 9), at(11, 12), at(13, 14)}, 3},
		"answered too late to tell": {[]load.Grant{at(0, 1), at(9, 11)}, 1},
		"as long as an interval":    {[]load.Grant{at(0, 20)}, 0},
	} {
		assert.Equal(t, test.want, load.Fullest(test.grants, 10), name)
	}
}
