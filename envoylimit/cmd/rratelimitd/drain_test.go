package main

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// A client that watches the health uses up --drain, and what is under way to Redis arrives nevertheless.
func TestServe_ClosesAfterTheDrain(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	proxy := redistest.StartProxy(t, m.Addr())
	r := start(t, directory(t, web), proxy.Addr(), "--drain", "50ms")
	assert.Equal(t, "OK", r.ask("ann"))
	watch, err := healthv1.NewHealthClient(r.dial(insecure.NewCredentials())).Watch(t.Context(), &healthv1.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = watch.Recv()
	require.NoError(t, err)
	held, release := holdCallsOf("ann", proxy)
	answer := make(chan string, 1)
	go func() { answer <- r.ask("ann") }()
	<-held
	time.AfterFunc(300*time.Millisecond, release)
	r.stop()
	<-answer
	assert.NotContains(t, r.log.String(), "not all that was under way has ended")
}
