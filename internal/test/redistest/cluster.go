package redistest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	slots      = 16384
	settleTime = 4 * time.Minute // several nodes may stall one after another
	// A busy machine may keep a node from answering for some seconds.
	nodeTimeout = 10 * time.Second
)

// A Cluster is a Redis Cluster that belongs to one test.
type Cluster struct {
	nodes []*Server
	ids   map[*Server]string
	stood map[*Server]time.Time // when a node last stood for election
}

// StartCluster starts a cluster of that many masters, among which the slots are shared out, each with that many replicas. It returns when
// all nodes agree that the cluster is in order and each replica is in step; the nodes are gone when t ends. It skips as [Redis] does.
func StartCluster(t testing.TB, masters, replicas int, args ...string) *Cluster {
	t.Helper()
	return own(t, func() (*Cluster, error) { return startCluster(masters, replicas, args) })
}

// startCluster also returns the nodes of a cluster that did not come up.
func startCluster(masters, replicas int, args []string) (*Cluster, error) {
	sp := spec{busPort: true, args: append([]string{
		"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
		"--cluster-node-timeout", "1000",
		// A replica stays with its master, however many others that one has, and takes its place only if a test says so.
		"--cluster-migration-barrier", "1000", "--cluster-replica-no-failover", "yes",
	}, args...)}
	nodes, err := startAll(masters*(1+replicas), func() (*Server, error) { return start(Default, sp) })
	c := &Cluster{nodes: nodes, ids: map[*Server]string{}, stood: map[*Server]time.Time{}}
	if err != nil {
		return c, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	if err := c.join(ctx, masters); err != nil {
		return c, fmt.Errorf("redistest: making a cluster: %w", err)
	}
	return c, nil
}

// startAll starts n servers at once. Those that came up are returned also if others did not.
func startAll(n int, start func() (*Server, error)) ([]*Server, error) {
	all, errs := make([]*Server, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { all[i], errs[i] = start() })
	}
	wg.Wait()
	return slices.DeleteFunc(all, func(s *Server) bool { return s == nil }), errors.Join(errs...)
}

func killAll(servers []*Server) {
	for _, s := range servers {
		s.process.Load().hangUp()
	}
	for _, s := range servers {
		s.Kill()
	}
}

func (c *Cluster) kill() { killAll(c.nodes) }

// join makes one cluster of the nodes: the first ones masters, the rest replicas of each in turn.
func (c *Cluster) join(ctx context.Context, masters int) error {
	for i, s := range c.nodes {
		id, err := s.ask(ctx, "CLUSTER", "MYID").Text()
		c.ids[s] = id
		err = errors.Join(err, s.ask(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err())
		if i < masters {
			args := []any{"CLUSTER", "ADDSLOTS"}
			for slot := i * slots / masters; slot < (i+1)*slots/masters; slot++ {
				args = append(args, slot)
			}
			err = errors.Join(err, s.ask(ctx, args...).Err())
		}
		if err != nil {
			return err
		}
	}
	if err := c.meet(ctx); err != nil {
		return err
	}
	for i, s := range c.nodes[masters:] {
		if err := s.ask(ctx, "CLUSTER", "REPLICATE", c.ids[c.nodes[i%masters]]).Err(); err != nil {
			return err
		}
	}
	if err := c.settle(ctx, masters, len(c.nodes)/masters); err != nil {
		return err
	}
	// Twice within this time each node hears from each other one, so a short one makes the cluster come up soon.
	return c.until(ctx, c.nodes, func(ctx context.Context, rdb Client) error {
		return rdb.ConfigSet(ctx, "cluster-node-timeout", strconv.FormatInt(nodeTimeout.Milliseconds(), 10)).Err()
	})
}

// meet makes each node know all others. A node forgets one that does not answer within a node's timeout,
// as on a machine that stalls, so it is asked again.
func (c *Cluster) meet(ctx context.Context) error {
	for _, s := range c.nodes[1:] {
		host, port := s.hostPort()
		if err := c.nodes[0].ask(ctx, "CLUSTER", "MEET", host, port).Err(); err != nil {
			return err
		}
	}
	soon, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	err := c.until(soon, c.nodes, c.knowsAll)
	if err != nil && ctx.Err() == nil {
		return c.meet(ctx)
	}
	return err
}

// settle waits until all nodes see the cluster in order, each master with that many nodes, and each replica is in step.
func (c *Cluster) settle(ctx context.Context, masters, perMaster int) error {
	return c.until(ctx, c.nodes, func(ctx context.Context, rdb Client) error {
		if err := inOrder(ctx, rdb); err != nil {
			return err
		}
		ranges, err := slotRanges(ctx, rdb)
		if err != nil {
			return err
		}
		for _, r := range ranges {
			if len(ranges) < masters || len(r.Nodes) != perMaster {
				return fmt.Errorf("slots are still: %v", ranges)
			}
		}
		return linked(ctx, rdb)
	})
}

func slotRanges(ctx context.Context, rdb Client) ([]redis.ClusterSlot, error) {
	return rdb.ClusterSlots(ctx).Result() // Redis 6.2 has no CLUSTER SHARDS
}

func (c *Cluster) knowsAll(ctx context.Context, rdb Client) error {
	text, err := rdb.ClusterNodes(ctx).Result()
	if err != nil {
		return err
	}
	known, connected := strings.Count(text, "\n"), strings.Count(text, " connected")
	if strings.Contains(text, "handshake") || known != len(c.nodes) || connected != len(c.nodes) {
		return fmt.Errorf("known nodes are still: %s", text)
	}
	return nil
}

// inOrder fails unless a node says that the cluster works, and more that is asked for.
func inOrder(ctx context.Context, rdb Client, more ...string) error {
	info, err := rdb.ClusterInfo(ctx).Result()
	for _, text := range append(more, "cluster_state:ok") {
		if err == nil && !strings.Contains(info, text) {
			err = fmt.Errorf("the cluster is still: %s", info)
		}
	}
	return err
}

// linked fails if a replica is not in step with its master; a master is.
func linked(ctx context.Context, rdb Client) error {
	info, err := rdb.Info(ctx, "replication").Result()
	if err == nil && strings.Contains(info, "role:slave") && !strings.Contains(info, "master_link_status:up") {
		err = fmt.Errorf("the replica is still: %s", info)
	}
	return err
}

// until waits until cond holds on each of the nodes.
func (c *Cluster) until(ctx context.Context, nodes []*Server, cond func(context.Context, Client) error) error {
	for _, s := range nodes {
		if err := s.poll(ctx, cond); err != nil {
			return fmt.Errorf("node %s: %w", s.addr, err)
		}
	}
	return nil
}

// poll calls cond with a client of the server until it returns nil: see poll.
func (s *Server) poll(ctx context.Context, cond func(context.Context, Client) error) error {
	return s.do(func(rdb Client) error {
		return poll(ctx, func() error { return cond(ctx, rdb) })
	})
}

// await calls cond until it answers nil, for some minutes at most.
func await(t testing.TB, cond func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settleTime)
	defer cancel()
	must(t, poll(ctx, func() error { return cond(ctx) }))
}

// poll calls cond until it answers nil. When ctx is over the last answer that is not just so is the error.
func poll(ctx context.Context, cond func() error) error {
	var last error
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := cond()
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), last)
		case <-time.After(pause):
		}
	}
}

// Client returns a client of the cluster, closed when t ends. The addresses in opt are replaced; nil stands for the defaults.
func (c *Cluster) Client(t testing.TB, opt *Options) Client {
	t.Helper()
	return closeAfter(t, redis.NewClusterClient(patientWith(opt, &redis.ClusterOptions{Addrs: c.Addrs()})))
}

// Addrs returns the addresses of all nodes.
func (c *Cluster) Addrs() []string {
	addrs := make([]string, len(c.nodes))
	for i, s := range c.nodes {
		addrs[i] = s.addr
	}
	return addrs
}

// Nodes returns all nodes, those that were made masters first.
func (c *Cluster) Nodes() []*Server { return slices.Clone(c.nodes) }

// Slot returns the slot of a key.
func (c *Cluster) Slot(t testing.TB, key string) int {
	t.Helper()
	slot, err := c.alive(t).ask(t.Context(), "CLUSTER", "KEYSLOT", key).Int()
	must(t, err)
	return slot
}

// Owner returns the master that serves the slot and its replicas, as the first node sees it that is alive.
func (c *Cluster) Owner(t testing.TB, slot int) (master *Server, replicas []*Server) {
	t.Helper()
	var nodes []*Server
	must(t, c.alive(t).do(func(rdb Client) (err error) {
		_, nodes, err = c.find(t.Context(), rdb, having(slot))
		return err
	}))
	return nodes[0], nodes[1:]
}

// find returns the first slot of a range, and the nodes that serve it, the master first, as rdb's node sees it.
func (c *Cluster) find(ctx context.Context, rdb Client, is func(redis.ClusterSlot) bool) (first int, nodes []*Server, err error) {
	ranges, err := slotRanges(ctx, rdb)
	if err != nil {
		return 0, nil, err
	}
	i := slices.IndexFunc(ranges, is)
	if i < 0 {
		return 0, nil, fmt.Errorf("slots are still: %v", ranges)
	}
	for _, node := range ranges[i].Nodes {
		nodes = append(nodes, c.node(node.ID))
	}
	return ranges[i].Start, nodes, nil
}

func having(slot int) func(redis.ClusterSlot) bool {
	return func(r redis.ClusterSlot) bool { return r.Start <= slot && slot <= r.End }
}

func (c *Cluster) node(id string) *Server {
	for s, known := range c.ids {
		if known == id {
			return s
		}
	}
	return nil
}

func (c *Cluster) alive(t testing.TB) *Server {
	t.Helper()
	nodes := c.allAlive()
	if len(nodes) == 0 {
		t.Fatal("no node of the cluster is left")
	}
	return nodes[0]
}

func (c *Cluster) allAlive() []*Server {
	return slices.DeleteFunc(slices.Clone(c.nodes), func(s *Server) bool { return !s.answers() })
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
