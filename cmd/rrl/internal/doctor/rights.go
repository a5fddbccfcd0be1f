package doctor

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// needed are the commands that limiters' scripts call, each in a form that
// changes nothing but the probe's own keys: KEYS[1] is a hash, KEYS[2] a string,
// KEYS[3] a set. The server checks the rights of who runs a script, so this is
// what limiters meet. Those that write come last, and in an order in which each
// finds a key of its kind.
var needed = [][2]string{
	{"time", "'time'"},
	{"exists", "'exists', KEYS[1]"},
	{"type", "'type', KEYS[1]"},
	{"unlink", "'unlink', KEYS[1], KEYS[2], KEYS[3]"},
	{"pttl", "'pttl', KEYS[1]"},
	{"pexpire", "'pexpire', KEYS[1], 1000"},
	{"pexpireat", "'pexpireat', KEYS[1], 1000"},
	{"persist", "'persist', KEYS[1]"},
	{"get", "'get', KEYS[2]"},
	{"hget", "'hget', KEYS[1], 'rate'"},
	{"hmget", "'hmget', KEYS[1], 'rate'"},
	{"hdel", "'hdel', KEYS[1], 'rate'"},
	{"hscan", "'hscan', KEYS[1], 0"},
	{"zcard", "'zcard', KEYS[3]"},
	{"zcount", "'zcount', KEYS[3], 0, 1"},
	{"zmscore", "'zmscore', KEYS[3], 'm'"},
	{"zrange", "'zrange', KEYS[3], 0, 0"},
	{"zrangebyscore", "'zrangebyscore', KEYS[3], 0, 1"},
	{"zrem", "'zrem', KEYS[3], 'm'"},
	{"zremrangebyrank", "'zremrangebyrank', KEYS[3], 0, 0"},
	{"zscore", "'zscore', KEYS[3], 'm'"},
	{"rename", "'rename', KEYS[1], KEYS[2]"}, // of a key that is not there
	{"set", "'set', KEYS[2], '1', 'PX', 1000"},
	{"incrby", "'incrby', KEYS[2], 1"},
	{"decrby", "'decrby', KEYS[2], 1"},
	{"hset", "'hset', KEYS[1], 'probe', '1'"},
	{"zadd", "'zadd', KEYS[3], 1, 'm'"},
}

// rare are those that most programs do without.
var rare = []string{"hget", "hscan", "rename", "zmscore"}

// probe returns the script that calls all of them and returns those that are
// refused. Without the right to unlink it writes nothing.
func probe() string {
	var b strings.Builder
	b.WriteString(`
local refused = {}
local function try(name, ...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then
    local text = string.lower(answer.err)
    if string.find(text, 'noperm', 1, true) or string.find(text, "can't run", 1, true)
      or string.find(text, 'no permission', 1, true) or string.find(text, 'acl failure', 1, true)
      or string.find(text, 'unknown redis command', 1, true) or string.find(text, 'unknown command', 1, true)
      or string.find(text, 'readonly', 1, true) then
      refused[#refused + 1] = name
      return false
    end
  end
  return true
end
local clean = true
`)
	for i, c := range needed {
		write := i >= len(needed)-5
		call := fmt.Sprintf("try('%s', %s)", c[0], c[1])
		switch {
		case c[0] == "unlink":
			call = "clean = " + call
		case write:
			call = "if clean then " + call + " end"
		}
		b.WriteString(call + "\n")
	}
	b.WriteString("if clean then redis.call('unlink', KEYS[1], KEYS[2], KEYS[3]) end\nreturn refused\n")
	return b.String()
}

// literal returns what all names begin with that match a pattern.
func literal(pattern string) string {
	if i := strings.IndexAny(pattern, `*?[\`); i >= 0 {
		return pattern[:i]
	}
	return pattern
}

// rights tries what limiters do, on keys of its own.
func (d *doctor) rights(ctx context.Context) {
	name := literal(d.opts.Pattern) + "rrl-doctor-" + rand.Text()
	if strings.ContainsAny(name, "{}") {
		name = "rrl-doctor-" + rand.Text()
	}
	k := redisson.KeysOf(name, "")
	// All keys in one slot: a name without braces is its own tag.
	keys := []string{k.Config, k.Value, k.Permits}
	who := "this user"
	if user, err := d.rdb.Do(ctx, "acl", "whoami").Text(); err == nil {
		who = "user " + user
	}
	const reason = "calls of limiters fail with NOPERM"
	answer, err := d.rdb.Eval(ctx, probe(), keys).StringSlice()
	switch {
	case err != nil && redis.HasErrorPrefix(err, "READONLY"):
		return // the check of replication says so
	case err != nil && redis.HasErrorPrefix(err, "NOPERM") && strings.Contains(err.Error(), "key"):
		level := Error
		if d.opts.Pattern == "" {
			level = Warning // its limiters may have other names
		}
		d.add(nil, "rights", level, who+" may not use keys such as "+name, reason,
			"give it the limiters' keys: ~api:* and ~{api:* for names that begin with api:; to try those run rrl doctor 'api:*'")
	case err != nil && redis.HasErrorPrefix(err, "NOPERM"):
		d.add(nil, "rights", Error, who+" may not run scripts: "+err.Error(), reason, "give it +eval and +evalsha, and the commands that docs/servers.md lists")
	case script.ScriptChecked(err):
		d.add(nil, "rights", Error, "a proxy refuses limiters' scripts: "+err.Error(), "every call of a limiter is a script", script.AllowScripts)
	case err != nil:
		d.add(nil, "rights", Error, "a script can't be run: "+err.Error(), "every call of a limiter is a script", "see the message: a server that is down, full, loading or busy with a script says so")
	case len(answer) > 0:
		level, why := Error, reason
		if !slices.ContainsFunc(answer, func(command string) bool { return !slices.Contains(rare, command) }) {
			level, why = Warning, "thresholds of sliding logs need hget and hscan, Rename needs rename, sets stay small by zmscore; the rest works without"
		}
		d.add(nil, "rights", level, who+" may not run "+strings.Join(answer, ", "), why, "ACL SETUSER with +"+strings.Join(answer, " +"))
	default:
		err := d.rdb.EvalSha(ctx, strings.Repeat("0", 40), keys).Err()
		if redis.HasErrorPrefix(err, "NOPERM") {
			d.add(nil, "rights", Error, who+" may not run evalsha", reason, "ACL SETUSER with +evalsha")
			return
		}
		d.fine(nil, "rights", who+" may do all that limiters do")
	}
	d.commands(ctx, who)
}

// commands tries the commands outside of scripts: what WithReplicas sends, and what go-redis
// itself asks of a cluster.
func (d *doctor) commands(ctx context.Context, who string) {
	// For no replica, it does not wait.
	if err := d.rdb.Do(ctx, "wait", 0, 0).Err(); redis.HasErrorPrefix(err, "NOPERM") {
		d.add(nil, "wait", Note, who+" may not run wait", "WithReplicas needs it, nothing else does",
			"if a program uses WithReplicas, ACL SETUSER with +wait")
	}
	if !nodes.IsCluster(d.rdb) {
		return
	}
	if err := d.rdb.Do(ctx, "command", "count").Err(); redis.HasErrorPrefix(err, "NOPERM") {
		d.add(nil, "rights", Warning, who+" may not run command", "go-redis asks again at every call", "ACL SETUSER with +command")
	}
}
