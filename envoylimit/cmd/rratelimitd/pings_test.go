package main

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Envoy's connection_keepalive pings a connection that has no calls, and keeps it.
func TestServe_KeepsConnectionsThatPing(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	r := start(t, directory(t, web), m.Addr())
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.grpc)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	send := func(frame ...byte) {
		_, err := conn.Write(frame)
		require.NoError(t, err)
	}
	const settings, ping, goAway = 4, 6, 7
	send([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")...)
	send(0, 0, 0, settings, 0, 0, 0, 0, 0)
	for range 6 {
		time.Sleep(pingsEvery) // so often at most
		send(0, 0, 8, ping, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8)
		for head := (make([]byte, 9)); head[3] != ping; {
			_, err := io.ReadFull(conn, head)
			require.NoError(t, err)
			require.NotEqual(t, byte(goAway), head[3])
			_, err = io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(append([]byte{0}, head[:3]...))))
			require.NoError(t, err)
		}
	}
	assert.Equal(t, "OK", r.ask("ann"))
}
