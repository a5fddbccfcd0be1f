package redistest

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
)

// LeastCommands is the part of an ACL rule that lets a user run all operations of this
// library on one server, on the master of a failover client or over a redis.Ring, and
// nothing else. The commands beside EVAL and EVALSHA are those that the scripts call: the
// server checks them against the rights of the user who runs the script. A user also needs
// the keys of [KeysOf], or of [KeysWithPrefix].
const LeastCommands = "+eval +evalsha " +
	"+time +exists +type +pttl +pexpire +pexpireat +persist +unlink +rename " +
	"+get +set +incrby +decrby " +
	"+hget +hmget +hset +hdel +hscan " +
	"+zadd +zcard +zcount +zrange +zrangebyscore +zrem +zremrangebyrank +zscore"

// What a user needs beside [LeastCommands]: for go-redis to work, and for notices.
const (
	// ClusterCommands let a redis.ClusterClient find the nodes of a cluster, and
	// learn once what commands there are: refused, it asks again at every call.
	ClusterCommands = "+cluster|slots +command"
	// RingCommands let a redis.Ring see which shards are alive.
	RingCommands = "+ping"
	// NoticeCommands let a limiter with notices send and hear them. A user also needs
	// the channels of [ChannelsWithPrefix].
	NoticeCommands = "+publish +subscribe +unsubscribe +ping"
)

// KeysOf is the part of an ACL rule that gives access to the limiter called
// name, which has no character that is special in a pattern.
func KeysOf(name string) string {
	tagged := name
	if !strings.Contains(name, "{") {
		tagged = "{" + name + "}"
	}
	return "~" + name + " ~" + tagged + ":*"
}

// KeysWithPrefix is the part of an ACL rule that gives access to all limiters
// whose names start with prefix, which has no brace in it.
func KeysWithPrefix(prefix string) string { return "~" + prefix + "* ~{" + prefix + "*" }

// ChannelsWithPrefix is the part of an ACL rule that gives access to the notices of
// all limiters whose names start with prefix, which has no brace in it.
func ChannelsWithPrefix(prefix string) string { return "resetchannels &{" + prefix + "*" }

var users atomic.Int64

// AddUser adds a user with the rules given, such as "+get ~key", to the server,
// and returns a client logged in as this user. The user is gone when t ends. Of
// opt, the address and the login are replaced; nil stands for the defaults.
func AddUser(t testing.TB, s *Server, opt *redis.Options, rules ...string) *redis.Client {
	t.Helper()
	o := valueOf(opt)
	o.Username = addUser(t, []*Server{s}, rules)
	o.Password = o.Username
	return s.Client(t, &o)
}

// AddUser is the function AddUser for all nodes of the cluster.
func (c *Cluster) AddUser(t testing.TB, opt *redis.ClusterOptions, rules ...string) *redis.ClusterClient {
	t.Helper()
	o := valueOf(opt)
	o.Username = addUser(t, c.nodes, rules)
	o.Password = o.Username
	return c.Client(t, &o)
}

// AddUser is the function AddUser for all shards of the ring.
func (r *Ring) AddUser(t testing.TB, opt *redis.RingOptions, rules ...string) *redis.Ring {
	t.Helper()
	o := valueOf(opt)
	o.Username = addUser(t, r.Servers, rules)
	o.Password = o.Username
	return r.Client(t, &o)
}

// addUser returns the user's name, which is the password too.
func addUser(t testing.TB, servers []*Server, rules []string) string {
	t.Helper()
	user := "user" + strconv.FormatInt(users.Add(1), 10)
	args := []any{"ACL", "SETUSER", user, "reset", "on", ">" + user}
	for _, rule := range rules {
		for word := range strings.FieldsSeq(rule) {
			args = append(args, word)
		}
	}
	for _, s := range servers {
		must(t, s.ask(t.Context(), args...).Err())
		t.Cleanup(func() {
			if s.answers() {
				_ = s.ask(context.Background(), "ACL", "DELUSER", user)
			}
		})
	}
	return user
}
