package netpipe_test

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/netpipe"
)

// What a server reads late arrives nevertheless, as through a socket.
func TestBuffer_LateReaderReceivesAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		conn := netpipe.Buffer(client)
		require.NoError(t, conn.SetWriteDeadline(time.Now().Add(time.Second)))
		_, err := conn.Write([]byte("PING"))
		require.NoError(t, err)
		time.Sleep(time.Minute)
		got := make([]byte, 4)
		_, err = server.Read(got)
		require.NoError(t, err)
		assert.Equal(t, "PING", string(got))
		require.NoError(t, conn.Close())
	})
}
