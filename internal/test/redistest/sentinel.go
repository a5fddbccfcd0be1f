package redistest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	masterName   = "main"
	sentinels    = 3
	quorum       = 2
	givenUpAfter = 10 * time.Second // far more than a failover takes
)

// A Sentinel is a master, its replicas, and three Sentinels that watch them and of which two decide about a failover.
type Sentinel struct {
	data  []*Server // that served as master first, first
	watch []*Server
}

// StartSentinel starts a master with that many replicas and Sentinels that take it for dead once it has not answered for that
// long; below a second a busy machine alone may bring a failover about. It returns when the replicas are in step and each
// Sentinel knows all others; all are gone when t ends. It skips as [Redis] does.
func StartSentinel(t testing.TB, replicas int, downAfter time.Duration, args ...string) *Sentinel {
	t.Helper()
	return own(t, func() (*Sentinel, error) { return startSentinel(replicas, downAfter, args) })
}

// startSentinel also returns the servers if not all came up.
func startSentinel(replicas int, downAfter time.Duration, args []string) (*Sentinel, error) {
	s := &Sentinel{}
	var err error
	s.data, err = startAll(1+replicas, func() (*Server, error) { return start(Default, spec{args: args}) })
	if err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	host, port := s.data[0].hostPort()
	for _, replica := range s.data[1:] {
		if err := replica.replicate(ctx, s.data[0]); err != nil {
			return s, fmt.Errorf("redistest: making a replica: %w", err)
		}
	}
	s.watch, err = startAll(sentinels, func() (*Server, error) {
		return start(Default, spec{prepare: func(w *Server, own string) ([]string, error) {
			return w.sentinelArgs(own, host, port, downAfter)
		}})
	})
	if err != nil {
		return s, err
	}
	for _, w := range s.watch {
		// Redis 6.2 does not know these, and takes longer. The time between a Sentinel's messages stays: within four, others
		// take a replica that has been promoted for a master that came back.
		_ = w.ask(ctx, "SENTINEL", "DEBUG", "ASK-PERIOD", 100, "INFO-PERIOD", 1000, "TILT-PERIOD", 1000)
	}
	err = poll(ctx, func() error {
		_, err := s.order(ctx)
		return err
	})
	return s, err
}

func (s *Server) sentinelArgs(port, masterHost, masterPort string, downAfter time.Duration) ([]string, error) {
	conf := s.file("sentinel.conf")
	lines := []string{
		"sentinel monitor " + masterName + " " + masterHost + " " + masterPort + " " + strconv.Itoa(quorum),
		"sentinel down-after-milliseconds " + masterName + " " + strconv.FormatInt(downAfter.Milliseconds(), 10),
		// Twice this passes before a vote that had no winner is held again.
		"sentinel failover-timeout " + masterName + " 3000",
	}
	if err := os.WriteFile(conf, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return nil, err
	}
	return append([]string{conf, "--sentinel", "--port", port}, s.commonArgs()...), nil
}

func (s *Sentinel) kill() { killAll(append(s.watch, s.data...)) }

// Client returns a client that asks the Sentinels for the master, closed when t ends. The
// addresses in opt are replaced; nil stands for the defaults.
func (s *Sentinel) Client(t testing.TB, opt *Options) Client {
	t.Helper()
	name, addrs := s.Watch()
	return closeAfter(t, redis.NewFailoverClient(patientWith(opt, &redis.FailoverOptions{MasterName: name, SentinelAddrs: addrs})))
}

// Watch returns the name that the Sentinels have for the master, and their addresses.
func (s *Sentinel) Watch() (master string, addrs []string) {
	for _, w := range s.watch {
		addrs = append(addrs, w.addr)
	}
	return masterName, addrs
}

// Master returns the server that the Sentinels take for the master.
func (s *Sentinel) Master(t testing.TB) (master *Server) {
	t.Helper()
	await(t, func(ctx context.Context) (err error) {
		master, err = s.master(ctx, nil)
		return err
	})
	return master
}

// Replicas returns the other servers, those that are gone or frozen left out.
func (s *Sentinel) Replicas(t testing.TB) []*Server {
	t.Helper()
	master := s.Master(t)
	return slices.DeleteFunc(slices.Clone(s.data), func(server *Server) bool { return server == master || !server.answers() })
}

// Failover makes a Sentinel replace the master at once, once all are in order, without its consent, and returns the new one.
// The last writes to the old one may be lost. It tries again for as long as the Sentinels refuse.
func (s *Sentinel) Failover(t testing.TB) *Server {
	t.Helper()
	old := s.AwaitOrder(t)
	await(t, func(ctx context.Context) error {
		if err := s.watch[0].ask(ctx, "SENTINEL", "FAILOVER", masterName).Err(); err != nil {
			return err
		}
		// One that finds no replica ready is given up without a word.
		soon, cancel := context.WithTimeout(ctx, givenUpAfter)
		defer cancel()
		return poll(soon, func() error {
			_, err := s.master(soon, old)
			return err
		})
	})
	return s.AwaitMaster(t, old)
}

// AwaitMaster waits until all Sentinels have made another server than old the master, it says itself that it is one, and returns it.
func (s *Sentinel) AwaitMaster(t testing.TB, old *Server) (master *Server) {
	t.Helper()
	await(t, func(ctx context.Context) (err error) {
		if master, err = s.master(ctx, old); err == nil {
			err = master.isMaster(ctx)
		}
		return err
	})
	return master
}

// AwaitOrder makes all servers that answer follow the one that the Sentinels have for the master, waits until they do, all
// Sentinels know it and no failover is under way, and returns it. A failover that begins before may choose a server that is no
// replica yet, leave a Sentinel waiting for one that has gone, as long as that stays away, or be undone by a Sentinel: it
// demotes a server that was a master for 8 s when it last asked, whatever that is by now.
func (s *Sentinel) AwaitOrder(t testing.TB) (master *Server) {
	t.Helper()
	await(t, func(ctx context.Context) (err error) {
		master, err = s.order(ctx)
		return err
	})
	return master
}

// order is what AwaitOrder does until it fails no more.
func (s *Sentinel) order(ctx context.Context) (*Server, error) {
	others, replicas := strconv.Itoa(len(s.watch)-1), strconv.Itoa(len(s.data)-1)
	master, err := s.agreed(func(w *Server) (*Server, error) {
		answer, err := w.ask(ctx, "SENTINEL", "MASTER", masterName).Result()
		fields, _ := answer.(map[any]any)
		if err == nil && (fields["flags"] != "master" || fields["num-slaves"] != replicas || fields["num-other-sentinels"] != others) {
			err = fmt.Errorf("%s still has the master %v", w.addr, fields)
		}
		return s.serverAt(fields["ip"], fields["port"]), err
	})
	if err == nil {
		err = master.isMaster(ctx)
	}
	if err != nil {
		return nil, err
	}
	for _, server := range s.data {
		if server != master && server.answers() {
			err = errors.Join(err, server.follow(ctx, master))
		}
	}
	if err != nil {
		return nil, err
	}
	return s.agreed(func(w *Server) (*Server, error) { return master, s.knowsReplicas(ctx, w) })
}

// agreed returns the master that all Sentinels have that answer, by look.
func (s *Sentinel) agreed(look func(w *Server) (*Server, error)) (master *Server, err error) {
	for _, w := range s.watch {
		if !w.answers() {
			continue
		}
		known, err := look(w)
		if err == nil && (known == nil || master != nil && master != known) {
			err = fmt.Errorf("%s still has another master than the others", w.addr)
		}
		if err != nil {
			return nil, err
		}
		master = known
	}
	if master == nil {
		return nil, errors.New("no Sentinel knows a master")
	}
	return master, nil
}

// knowsReplicas fails if a Sentinel has heard from a replica that it is something else, or not in step.
func (s *Sentinel) knowsReplicas(ctx context.Context, w *Server) error {
	replicas, err := w.ask(ctx, "SENTINEL", "REPLICAS", masterName).Slice()
	for _, replica := range replicas {
		fields, _ := replica.(map[any]any)
		server := s.serverAt(fields["ip"], fields["port"])
		if server != nil && server.answers() && (fields["role-reported"] != "slave" || fields["master-link-status"] != "ok") {
			err = fmt.Errorf("%s still takes %s for %v", w.addr, server.addr, fields)
		}
	}
	return err
}

func (s *Sentinel) serverAt(ip, port any) *Server {
	addr := fmt.Sprint(ip, ":", port)
	if i := slices.IndexFunc(s.data, func(server *Server) bool { return server.addr == addr }); i >= 0 {
		return s.data[i]
	}
	return nil
}

func (s *Server) isMaster(ctx context.Context) error {
	role, err := s.role(ctx)
	if err == nil && role[0] != "master" {
		err = fmt.Errorf("%s still is a %v", s.addr, role[0])
	}
	return err
}

// follow fails unless the server is a replica of the master, in step with it. One that is
// something else is made one, as Sentinels would do some seconds later.
func (s *Server) follow(ctx context.Context, master *Server) error {
	role, err := s.role(ctx)
	if err != nil {
		return err
	}
	const whom, port, state = 1, 2, 3
	if role[0] != "slave" || fmt.Sprint(role[whom], ":", role[port]) != master.addr {
		if err := s.replicate(ctx, master); err != nil {
			return err
		}
	} else if role[state] == "connected" {
		return nil
	}
	return fmt.Errorf("%s still is not in step with %s", s.addr, master.addr)
}

// Follow makes the server a replica of the master.
func (s *Server) Follow(t testing.TB, master *Server) {
	t.Helper()
	must(t, s.replicate(t.Context(), master))
}

func (s *Server) replicate(ctx context.Context, master *Server) error {
	host, port := master.hostPort()
	return s.ask(ctx, "REPLICAOF", host, port).Err()
}

// master returns the master that all Sentinels have that answer, if it is not old.
func (s *Sentinel) master(ctx context.Context, old *Server) (*Server, error) {
	return s.agreed(func(w *Server) (*Server, error) {
		addr, err := w.ask(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", masterName).StringSlice()
		if err != nil {
			return nil, err
		}
		known := s.serverAt(addr[0], addr[1])
		if known == old {
			err = fmt.Errorf("%s still takes %s for the master", w.addr, addr)
		}
		return known, err
	})
}
