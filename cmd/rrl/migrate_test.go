package main

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

func TestMigrateCuresMixedLayouts(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	rdb := server.Client(t, nil)
	name := redistest.Name(t)
	now := float64(time.Now().UnixMilli())
	written{config(10, 3_600_000), 3, []redis.Z{
		{Score: now - 2, Member: member(t, codec.LayoutB, 1, 2)},
		{Score: now - 1, Member: member(t, codec.LayoutC, 2, 1)},
		{Score: now, Member: member(t, codec.LayoutD2, 3, 4)},
	}}.put(t, rdb, name)
	require.Equal(t, []string{"mixed_layouts"}, kinds(shownBy(t, server.URL(), name)))

	got := rrl(t, "migrate", name, "--redis", server.URL(), "--redisson", "3.15.5")
	assert.Equal(t, exitError, got.code)
	assert.Contains(t, got.stderr, "3.15.5")

	got = rrl(t, "migrate", name, "--redis", server.URL())
	assert.Equal(t, outcome{exitYes, name + ": 2 members rewritten\n", ""}, got)
	s := shownBy(t, server.URL(), name)
	assert.Empty(t, s.Anomalies)
	assert.EqualValues(t, 3, *s.States[0].Free)
	var permits []uint32
	for _, p := range s.States[0].Permits {
		assert.Equal(t, "D2", p.Layout)
		permits = append(permits, p.Permits)
	}
	assert.Equal(t, []uint32{2, 1, 4}, permits)

	got = rrl(t, "migrate", name, "--json", "--redis", server.URL())
	assert.InDelta(t, 0, object(t, got.stdout)["rewritten"], 0)
}

func TestMigrateOfEveryClient(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	require.Equal(t, exitYes, s.rrl("try-set-rate", "mail", "10/1h", "--type", "per-client").code)
	for _, id := range []string{"a", "b"} {
		got := s.rrl("acquire", "mail", "-n", "3", "--client-id", id, "--redisson", "3.16.8")
		require.Equal(t, exitYes, got.code, "%+v", got)
	}
	assert.Equal(t, outcome{exitYes, "mail: 2 members rewritten\n", ""}, s.rrl("migrate", "mail"))
	assert.Equal(t, outcome{exitYes, "mail: 0 members rewritten\n", ""}, s.rrl("migrate", "mail"))
	got := s.rrl("migrate", "nobody")
	assert.Equal(t, exitError, got.code)
	assert.Contains(t, got.stderr, "nobody")
}

func TestTheOldestRedissonIsChecked(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	got := s.rrl("acquire", "orders", "--redisson", "3.11.0")
	assert.Equal(t, exitError, got.code)
	assert.Contains(t, got.stderr, "3.12.0 to 4.7.0")
}
