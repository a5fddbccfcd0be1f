package dashboard

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stream is one that was opened, or refused.
type stream struct {
	status int
	later  string // Retry-After
	body   io.Reader
}

// from opens a stream from an address of this machine.
func from(t *testing.T, url, address string) stream {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	r.Header.Set("X-Forwarded-For", fmt.Sprintf("10.0.0.%d", len(t.Name())%250)) // which nobody believes
	answer, err := client.Do(r)
	require.NoError(t, err)
	t.Cleanup(func() {
		cancel()
		_ = answer.Body.Close()
	})
	return stream{answer.StatusCode, answer.Header.Get("Retry-After"), answer.Body}
}

// However many pages one address opens, others find a place.
func TestPlacesAreSharedByAddress(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	server := httptest.NewServer(s.h)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections) // before that: streams have no end of their own
	url := server.URL + "/api/limiters/stream"
	for i := range maxShare {
		require.Equal(t, http.StatusOK, from(t, url, "127.0.0.1").status, "%d", i)
	}
	refused := from(t, url, "127.0.0.1")
	assert.Equal(t, http.StatusServiceUnavailable, refused.status)
	assert.Equal(t, "10", refused.later)
	var last stream
	for i := range maxShare {
		last = from(t, url, "127.0.0.2")
		require.Equal(t, http.StatusOK, last.status, "%d", i)
	}
	// All places are taken by two. Each other address has one all the same, at the cost
	// of the newest page of who has most.
	ended := make(chan bool)
	go func() {
		lines := bufio.NewScanner(last.body)
		for lines.Scan() {
			continue
		}
		ended <- true
	}()
	for i := 3; i < 13; i++ {
		require.Equal(t, http.StatusOK, from(t, url, fmt.Sprint("127.0.0.", i)).status, "%d", i)
	}
	<-ended
	p := s.h.(*handler).poller
	p.mu.Lock()
	assert.Len(t, p.viewers, maxViewers)
	p.mu.Unlock()
	assert.Equal(t, http.StatusOK, from(t, server.URL+"/api/limiters", "127.0.0.20").status, "nor do single answers wait")
}

func TestWhatCountsAsOneAddress(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string]string{
		"192.0.2.1:5": "192.0.2.1", "[::ffff:192.0.2.1]:5": "192.0.2.1", "[2001:db8:1:2:3::4]:5": "2001:db8:1:2::/64", "[fe80::1%eth0]:5": "fe80::/64", "@": "@", "": "",
	} {
		assert.Equal(t, want, addressOf(remote), remote)
	}
}

// A place is given back once, also by who has lost it.
func TestAPlaceThatWasLost(t *testing.T) {
	t.Parallel()
	p := newSite(t).h.(*handler).poller
	var leave []func()
	join := func(from string) error {
		l, err := p.join(&viewer{kind: listEvent, from: from})
		if err == nil {
			leave = append(leave, l)
		}
		return err
	}
	for i := range maxViewers {
		require.NoError(t, join(strings.Repeat("x", i%2)))
	}
	require.NoError(t, join("new"))
	for i := range maxViewers/3 - 1 {
		require.NoError(t, join("new"), "%d", i)
	}
	require.Error(t, join("new"), "each of three has its third")
	for _, l := range leave {
		l()
		l()
	}
	assert.Empty(t, p.viewers)
}
