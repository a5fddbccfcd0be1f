package chaos_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// What servers a round can be on.
const (
	single   = "single"
	cluster  = "cluster"
	sentinel = "sentinel"
)

// roundConnection is the name of connections that must be gone when a round is over.
const roundConnection = "chaos-round"

// An arena is servers that rounds use one after another.
type arena interface {
	// addrs are where the servers are that Clients talk to.
	addrs() []string
	// client returns a client of the options, closed when t ends.
	client(t testing.TB, opt redis.UniversalOptions) redis.UniversalClient
	// masters are the servers that take writes at the moment.
	masters(t testing.TB) []*redistest.Server
	// calm brings all servers back and waits until all is in order. It tells how often
	// a server was replaced that nobody had asked for.
	calm(t testing.TB) (surprises int)
}

// persistent are the settings of servers that lose nothing they have answered.
var persistent = []string{"--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"}

func startArena(t *testing.T, name string) arena {
	t.Helper()
	switch name {
	case single:
		return singleArena{redistest.StartStepped(t, persistent...)}
	}
	t.Fatalf("there is no arena %q", name)
	return nil
}

// singleArena is one server whose clock can be set.
type singleArena struct{ server *redistest.Server }

func (a singleArena) addrs() []string { return []string{a.server.Addr()} }

func (a singleArena) client(t testing.TB, opt redis.UniversalOptions) redis.UniversalClient {
	return a.server.Client(t, opt.Simple())
}

func (a singleArena) masters(testing.TB) []*redistest.Server { return []*redistest.Server{a.server} }

func (a singleArena) calm(t testing.TB) int {
	restore(t, a.server)
	return 0
}

// restore lets go on what faults have stopped at a server.
func restore(t testing.TB, s *redistest.Server) {
	t.Helper()
	rdb := s.Client(t, nil)
	require.NoError(t, rdb.Do(t.Context(), "CLIENT", "UNPAUSE").Err())
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
}
