package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestALimiterThatIsBeingMovedIsListedOnce(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 2, 0)
	s := servers{flags: []string{"--redis", c.Addrs()[0]}}
	for i := range 8 {
		require.Zero(t, s.rrl(t, "set-rate", fmt.Sprintf("{shop}:%d", i), "5/1h").code)
	}
	slot := c.Slot(t, "{shop}")
	from, _ := c.Owner(t, slot)
	to := c.Nodes()[0]
	if to == from {
		to = c.Nodes()[1]
	}
	listsAll := func() {
		t.Helper()
		got := s.rrl(t, "ls", "--json")
		var all []listed
		require.NoError(t, json.Unmarshal([]byte(got.stdout), &all), "%+v", got)
		assert.Len(t, all, 8)
	}
	move := c.StartMove(t, slot, to)
	listsAll()
	move.MoveKeys(t, "{shop}:1", "{shop}:2")
	listsAll()
	for _, command := range []string{"show", "acquire", "delete"} {
		var got outcome
		assert.Eventually(t, func() bool { // a busy machine answers nothing in time
			got = s.rrl(t, command, "{shop}:1")
			return got.code == exitError && strings.Contains(got.stderr, "the cluster moves these keys to another node just now: try again")
		}, time.Minute, time.Millisecond, "%s: %v", command, &got)
	}
	move.MoveKeys(t, "{shop}:0", "{shop}:3", "{shop}:4", "{shop}:5", "{shop}:6", "{shop}:7")
	move.Finish(t)
	listsAll()
	assert.Zero(t, s.rrl(t, "show", "{shop}:1").code)
}

func TestAReplicaOfAClusterLeadsToItsMasters(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 1)
	for _, node := range c.Nodes() {
		if node.IsMaster(t) {
			continue
		}
		s := servers{flags: []string{"--redis", node.Addr()}}
		for _, name := range []string{"a", "b", "c", "d"} {
			assert.Zero(t, s.rrl(t, "set-rate", name, "5/1h").code)
		}
		assert.Equal(t, 5, strings.Count(s.rrl(t, "ls").stdout, "\n"))
	}
}

func TestAReplicaAloneTakesNoChanges(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, 1, 30*time.Second)
	replica := s.Replicas(t)[0].Addr()
	for _, args := range [][]string{{"set-rate", "orders", "5/1h"}, {"try-set-rate", "orders", "5/1h"}} {
		got := rrl(t, append(args, "--redis", replica)...)
		assert.Equal(t, exitError, got.code)
		assert.Contains(t, got.stderr, replica+" is a replica, which takes no changes (READONLY)", "%q", args)
	}
}

func TestInterruptEndsACommandThatHangs(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	proxy := redistest.StartProxy(t, server.Addr())
	scans := make(chan struct{}, 10)
	proxy.OnCommand(func(c redistest.Command) redistest.Action {
		if c.Name() != "scan" {
			return redistest.Action{}
		}
		scans <- struct{}{}
		return redistest.Action{}.After(time.Hour)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-scans
		cancel()
	}()
	start := time.Now()
	got := rrlWith(ctx, nil, "ls", "--redis", proxy.Addr())
	assert.Equal(t, outcome{exitError, "", "rrl: interrupted\n"}, got)
	assert.Less(t, time.Since(start), 2*time.Second)
}
