package grpclimit_test

import (
	"bytes"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"github.com/rratelimiter/rratelimiter/internal/test/middlewaretest"
)

// What a refusal is on the wire, read by net/http's HTTP/2.
func TestRefusalOnTheWire(t *testing.T) {
	t.Parallel()
	limiter := middlewaretest.Budget(1, 2500*time.Millisecond)
	server := grpc.NewServer(unary(limiter)...)
	healthpb.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan error)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		assert.NoError(t, <-done)
	})

	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	post := func() http.Header {
		const method = "/grpc.health.v1.Health/Check"
		emptyMessage := bytes.NewReader(make([]byte, 5))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+listener.Addr().String()+method, emptyMessage)
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/grpc")
		req.Header.Set("TE", "trailers")
		resp, err := transport.RoundTrip(req)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		if resp.Header.Get("Grpc-Status") != "" {
			return resp.Header // there was nothing but trailers
		}
		return resp.Trailer
	}
	assert.Equal(t, "0", post().Get("Grpc-Status"))
	refused := post()
	assert.Equal(t, "8", refused.Get("Grpc-Status"))
	assert.Equal(t, "rate limit exceeded, retry after 2.5s", refused.Get("Grpc-Message"))
	assert.Equal(t, "2500", refused.Get("Grpc-Retry-Pushback-Ms"))

	raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(refused.Get("Grpc-Status-Details-Bin"), "="))
	require.NoError(t, err)
	var st statuspb.Status
	require.NoError(t, proto.Unmarshal(raw, &st))
	require.NotEmpty(t, st.Details)
	assert.Equal(t, "type.googleapis.com/google.rpc.RetryInfo", st.Details[0].TypeUrl)
	var retry errdetails.RetryInfo
	require.NoError(t, proto.Unmarshal(st.Details[0].Value, &retry))
	assert.EqualValues(t, 2, retry.RetryDelay.Seconds)
	assert.EqualValues(t, 500_000_000, retry.RetryDelay.Nanos)
	assert.Equal(t, "grpc:/grpc.health.v1.Health/Check:127.0.0.1", limiter.Key())
}
