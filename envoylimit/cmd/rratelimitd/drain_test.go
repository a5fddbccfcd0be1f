package main

import (
	"context"
	"io"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// A call whose Redis takes longer than --drain ends then, and what it has under way to Redis arrives nevertheless.
func TestServe_ClosesAfterTheDrain(t *testing.T) {
	t.Parallel()
	r, answer, release, stopped := startHeld(t, "--drain", "50ms")
	assert.Equal(t, "Unavailable", <-answer)
	release()
	<-stopped
	assert.NotContains(t, r.log.String(), "not all that was under way has ended")
}

// Clients that watch the health learn that it drains, and do not use up --drain.
func TestServe_DrainsWhoWatches(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	r := start(t, directory(t, web), m.Addr(), "--drain", "1h")
	all := map[string]healthv1.Health_WatchClient{}
	health := healthv1.NewHealthClient(r.dial(insecure.NewCredentials()))
	for name, want := range map[string]string{"": "SERVING", "ratelimit": "SERVING", "other": "SERVICE_UNKNOWN"} {
		watch, err := health.Watch(t.Context(), &healthv1.HealthCheckRequest{Service: name})
		require.NoError(t, err)
		answer, err := watch.Recv()
		require.NoError(t, err)
		assert.Equal(t, want, answer.GetStatus().String())
		all[name] = watch
	}
	gone, cancel := context.WithCancel(t.Context())
	_, err := health.Watch(gone, &healthv1.HealthCheckRequest{})
	require.NoError(t, err)
	cancel()
	r.stop()
	for name, watch := range all {
		answer, err := watch.Recv()
		if name != "other" {
			require.NoError(t, err)
			assert.Equal(t, "NOT_SERVING", answer.GetStatus().String())
			_, err = watch.Recv()
		}
		assert.ErrorIs(t, err, io.EOF)
	}
}
