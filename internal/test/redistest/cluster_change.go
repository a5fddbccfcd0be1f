package redistest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const migrateTimeoutMillis = 60_000

// A SlotMove is the move of a slot from one master to another, step by step: in
// between, some of the slot's keys are here and some there. One slot of a cluster moves at a time.
type SlotMove struct {
	cluster  *Cluster
	slot     int
	from, to *Server
}

// StartMove opens the move of a slot to the master to: the slot is importing there and migrating here. No key has moved yet.
func (c *Cluster) StartMove(t testing.TB, slot int, to *Server) *SlotMove {
	t.Helper()
	from, _ := c.Owner(t, slot)
	m := &SlotMove{cluster: c, slot: slot, from: from, to: to}
	m.set(t, to, "IMPORTING", c.ids[from])
	m.set(t, from, "MIGRATING", c.ids[to])
	return m
}

// MoveKeys moves these keys, or if none is named, all that the slot has left.
func (m *SlotMove) MoveKeys(t testing.TB, keys ...string) {
	t.Helper()
	host, port := m.to.hostPort()
	for all := len(keys) == 0; ; {
		if all {
			var err error
			keys, err = m.from.ask(t.Context(), "CLUSTER", "GETKEYSINSLOT", m.slot, 100).StringSlice()
			must(t, err)
		}
		if len(keys) == 0 {
			return
		}
		args := []any{"MIGRATE", host, port, "", 0, migrateTimeoutMillis, "KEYS"}
		for _, key := range keys {
			args = append(args, key)
		}
		must(t, m.from.ask(t.Context(), args...).Err())
		if !all {
			return
		}
	}
}

// Finish gives the slot to its new master, and waits until all nodes know.
func (m *SlotMove) Finish(t testing.TB) {
	t.Helper()
	m.cluster.awaitEpochs(t)
	m.assign(t)
	m.cluster.waitOwner(t, m.slot, m.to, 1, func() { m.assign(t) })
}

// awaitEpochs waits until all nodes know the epoch of each master, and no two masters have the
// same. Else one that has just given a slot away, but has not yet been told so, may raise its
// epoch: its claim to the slot then outdoes that of the new owner, which drops the slot's keys.
func (c *Cluster) awaitEpochs(t testing.TB) {
	t.Helper()
	await(t, func(ctx context.Context) error {
		alive := c.allAlive()
		masters, epochs, pairs := map[string]bool{}, map[string]bool{}, map[[2]string]bool{}
		for _, s := range alive {
			text, err := s.ask(ctx, "CLUSTER", "NODES").Text()
			if err != nil {
				return err
			}
			for line := range strings.Lines(text) {
				fields := strings.Fields(line)
				id, flags, epoch := fields[0], fields[2], fields[6]
				if strings.Contains(flags, "master") && slices.Contains(alive, c.node(id)) {
					masters[id], epochs[epoch], pairs[[2]string{id, epoch}] = true, true, true
				}
			}
		}
		if len(pairs) != len(masters) || len(pairs) != len(epochs) {
			return fmt.Errorf("the masters' epochs are still: %v", pairs)
		}
		return nil
	})
}

func (m *SlotMove) assign(t testing.TB) {
	t.Helper()
	nodes := []*Server{m.to, m.from}
	for _, s := range m.cluster.allAlive() {
		// A replica follows its master and takes no orders.
		if !slices.Contains(nodes, s) && s.IsMaster(t) {
			nodes = append(nodes, s)
		}
	}
	for _, s := range nodes {
		m.set(t, s, "NODE", m.cluster.ids[m.to])
	}
}

func (m *SlotMove) set(t testing.TB, on *Server, state, id string) {
	t.Helper()
	must(t, on.ask(t.Context(), "CLUSTER", "SETSLOT", m.slot, state, id).Err())
}

// Failover makes a replica the master of its slots: in agreement with its master, so that no write is lost, or if it takesOver
// at once and by itself, for example with the master and the majority gone. It returns when all nodes that are alive know, and
// the old master, if it is, is in step as a replica.
func (c *Cluster) Failover(t testing.TB, replica *Server, takesOver bool) {
	t.Helper()
	order := []any{"CLUSTER", "FAILOVER"}
	if takesOver {
		order = append(order, "TAKEOVER")
	} else {
		for !c.Electable(t, replica) {
			time.Sleep(10 * time.Millisecond)
		}
		defer func() { c.stood[replica] = time.Now() }()
	}
	var slot int
	var nodes []*Server
	ask := func() error { return replica.ask(t.Context(), order...).Err() }
	must(t, replica.do(func(rdb Client) (err error) {
		slot, nodes, err = c.find(t.Context(), rdb, func(r redis.ClusterSlot) bool {
			return slices.ContainsFunc(r.Nodes, func(n redis.ClusterNode) bool { return c.node(n.ID) == replica })
		})
		return err
	}))
	alive := len(slices.DeleteFunc(nodes, func(s *Server) bool { return !s.answers() }))
	// Refused for as long as the replica takes its master, which may have stalled, for dead.
	await(t, func(context.Context) error { return ask() })
	// Masters do not vote twice within two node timeouts about the same slots, and the replica does not learn of it.
	c.waitOwner(t, slot, replica, alive, func() {
		if !replica.IsMaster(t) {
			_ = ask() // refused if it has just become one
		}
	})
}

// Electable reports whether a replica may stand for election. For two node timeouts, and two seconds at least, Redis counts the
// votes that a node got for those of its next election: it would be a master to itself alone, and lose writes.
func (c *Cluster) Electable(t testing.TB, replica *Server) bool {
	t.Helper()
	const setting = "cluster-node-timeout"
	var millis int64
	must(t, replica.do(func(rdb Client) error {
		_, err := fmt.Sscan(rdb.ConfigGet(t.Context(), setting).Val()[setting], &millis)
		return err
	}))
	return time.Since(c.stood[replica]) > max(2*time.Duration(millis)*time.Millisecond, 2*time.Second)
}

// Nodes that still disagree get their orders again, at first soon. On a busy machine asking them
// all may take longer, and a failover that is ordered again begins anew: it has twice the time then.
const (
	firstPatience   = time.Second
	longestPatience = 8 * time.Second
)

// waitOwner waits until all nodes that are alive see the slot at its owner, with at least that many nodes in all, and
// themselves are in step. As long as they do not it calls again, and gives the owner the highest epoch: changes close to each
// other may leave two nodes with the same one, of which others believe the wrong one for good.
func (c *Cluster) waitOwner(t testing.TB, slot int, owner *Server, nodes int, again func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settleTime)
	defer cancel()
	var last error
	for patience := firstPatience; ; patience = min(2*patience, longestPatience) {
		err := c.untilOwner(ctx, patience, slot, owner, nodes)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			must(t, errors.Join(err, last))
		}
		last = err
		again()
		if owner.IsMaster(t) {
			must(t, owner.ask(ctx, "CLUSTER", "BUMPEPOCH").Err())
		}
	}
}

func (c *Cluster) untilOwner(ctx context.Context, patience time.Duration, slot int, owner *Server, nodes int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return c.until(ctx, c.allAlive(), func(ctx context.Context, rdb Client) error {
		_, now, err := c.find(ctx, rdb, having(slot))
		if err == nil && (now[0] != owner || len(now) < nodes) {
			err = fmt.Errorf("slot %d is still elsewhere, or at fewer than %d nodes", slot, nodes)
		}
		return errors.Join(err, inOrder(ctx, rdb), linked(ctx, rdb))
	})
}

// AwaitOrder waits until all nodes say that the cluster is in order, none of them missing, and each replica is in step.
func (c *Cluster) AwaitOrder(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settleTime)
	defer cancel()
	must(t, c.until(ctx, c.nodes, func(ctx context.Context, rdb Client) error {
		return errors.Join(inOrder(ctx, rdb, "cluster_slots_pfail:0\r", "cluster_slots_fail:0\r"), linked(ctx, rdb))
	}))
}

// IsMaster reports whether the server takes writes, as far as it knows itself.
func (s *Server) IsMaster(t testing.TB) bool {
	t.Helper()
	role, err := s.role(t.Context())
	must(t, err)
	return role[0] == "master"
}

// role returns "master", "slave" or "sentinel", and what more ROLE answers.
func (s *Server) role(ctx context.Context) ([]any, error) { return s.ask(ctx, "ROLE").Slice() }
