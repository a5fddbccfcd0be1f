package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
)

// refused are commands that end with an error, on a server on which only orders is a limiter.
const refused = `
acquire none                          !> none: limiter has no rate; give it one by rrl try-set-rate
migrate none                          !> none: limiter has no rate; give it one by rrl try-set-rate
migrate orders --redisson 3.13.0      !> which --redisson names
acquire "x \"SetRate or Delete\" y"   !> "x \"SetRate or Delete\" y": limiter has no rate
acquire bad                           !> rrl set-rate --reset or rrl delete cures it
acquire orders -n 6                   !> permits exceed the rate
acquire orders -n 0                   !> invalid number of permits
release orders -n -1                  !> invalid number of permits
set-rate orders 5/1h --keep-alive 1m  !> orders: keep-alive time 1m is shorter than the interval 1h
acquire ""                            !> name

acquire                               !> NAME is missing; usage: rrl acquire NAME
acquire a b                           !> unexpected argument "b"
acquire a --timeout -1s               !> --wait waits without end
acquire a --timeout 1s --wait         !> --timeout and --wait exclude each other
acquire a --timeout soon              !> --timeout "soon": want a time, such as 500ms
acquire a -n two                      !> --permits "two": want a whole number
acquire a -n 99999999999999999999     !> --permits "99999999999999999999" is out of range
acquire a --wait=maybe                !> --wait "maybe": want true or false
set-rate orders -5/1s                 !> -5/1s is below 0; a name that begins so goes after --
set-rate orders                       !> RATE is missing; usage: rrl set-rate NAME RATE
try-set-rate orders 100               !> want permits/interval, such as 100/s
update-rate orders 1/1s --type each   !> want overall or per-client
try-set-rate orders 1/1s --keep-state !> unknown flag: --keep-state
expire orders                         !> TTL is missing
expire orders tomorrow                !> is not a time
expire orders 0s                      !> use delete
expire orders 1s --clear              !> --clear and a TTL exclude each other

show                                  !> NAME is missing
show a --limit -1                     !> --limit is negative
ls a b                                !> unexpected argument "b"; usage: rrl ls [PATTERN]
top a b                               !> unexpected argument "b"; usage: rrl top [PATTERN]
top --interval 1ms                    !> --interval 1ms: at least 100ms
top --count -1                        !> --count is negative
top --sort size                       !> want one of use, in-use, granted, free, rate, name
top --reads 5                         !> --reads is at least 100
watch                                 !> NAME is missing
watch a --interval 0s                 !> --interval 0s
doctor a b                            !> unexpected argument "b"; usage: rrl doctor [PATTERN]
doctor --time 0s                      !> --time is above 0
doctor --all --time 1s                !> --all and --time exclude each other
bench now                             !> unexpected argument "now"
bench --callers 0                     !> each of --callers at least 1
bench --callers 1,x                   !> --callers "1,x": want whole numbers, with commas
demo --tries 0                        !> --tries
demo --rate 3                         !> want permits/interval
demo now                              !> unexpected argument "now"
demo counter more                     !> unexpected argument "more"

version now                           !> unexpected argument "now"
acquire orders --redisson 3.11.0      !> 3.12.0 to 4.7.0
show orders --redisson 3.1            !> --redisson: "3.1" is no version of Redisson
demo --redisson 3.1                   !> --redisson: "3.1" is no version of Redisson
version --redisson x                  !> --redisson: "x" is no version of Redisson
ls --client-id ""                     !> --client-id is empty
ls --user ""                          !> --user is empty
delete orders --sentinel-master ""    !> --sentinel-master is empty
ls --connect-timeout -1s              !> --connect-timeout is negative
demo --tls-cert x                     !> --tls-cert and --tls-key go together
demo fixed-window --ring --sentinel-master x !> exclude each other
completion                            !> SHELL is missing; usage: rrl completion SHELL, with one of bash, fish, powershell, zsh
completion tcsh                       !> unknown shell "tcsh": want one of bash, fish
help frobnicate                       !> unknown command "frobnicate"
frobnicate                            !> unknown command "frobnicate"

take                                  !> the limiter is missing; usage: rrl take LIMITER KEY, with one of counter, fixed-window, \
sliding-log, token-bucket
take window k                         !> unknown limiter "window": want one of counter,
take counter --limit 1/1s             !> KEY is missing; usage: rrl take counter KEY
take counter a b --limit 1/1s         !> unexpected argument "b"
take counter "" --limit 1/1s          !> the key is empty
take counter k                        !> --limit is missing
take counter bad --limit 1/1s         !> name it otherwise or remove it
take fixed-window k --limit 100       !> want permits/interval, such as 100/s
take fixed-window k --limit 5/1m -n 6 !> permits exceed the rate
take fixed-window k --limit 5/1m -n 0 !> invalid number of permits
take fixed-window hash --limit 5/1m   !> corrupt state
take sliding-log k                    !> --limit is missing
take sliding-log HASH --limit 1/1s --thresholds HASH          !> the hash that --thresholds names
take sliding-log k --limit 5/1m --thresholds hash             !> threshold "k" is no whole number
take token-bucket k --capacity 5                              !> --refill is missing
take token-bucket k --capacity 5 --refill 1/100ms             !> interval 100ms is not a whole number of seconds
take token-bucket k --capacity 5 --refill 1/1s --borrow -1    !> borrowing of -1 tokens
threshold                             !> KEY is missing
threshold k 5 6                       !> unexpected argument "6"
threshold k 5 --reset                 !> --reset and a threshold exclude each other
threshold k many                      !> threshold "many" is not a whole number
threshold k --thresholds hash         !> is no whole number
threshold k --thresholds ""           !> --thresholds names no hash
`

func TestErrors(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.play("set-rate orders 5/1h => ...\n")
	s.HSet("bad", "rate", "x", "interval", "1", "type", "0")
	s.HSet("hash", "k", "many")
	before := s.Dump()
	s.play(refused, "HASH", commonHash)
	assert.Equal(t, before, s.Dump(), "nothing was taken or changed")
}

func TestServerThatIsNotThere(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	gone := servers{t: t, flags: []string{"--redis", "redis://" + m.Addr()}}
	m.Close()
	for _, line := range []string{
		"acquire orders", "release orders", "set-rate orders 1/1s", "delete orders", "expire orders 1s", "show orders", "ls", "demo",
		"top", "watch a", "doctor", "bench", "take counter k --limit 1/1s", "take sliding-log k --limit 1/1s",
		"take token-bucket k --capacity 1 --refill 1/1s", "threshold k",
	} {
		gone.fails("connection refused", argsOf(line)...)
	}
}

// behind returns the server s, reached through a proxy.
func (s servers) behind(t *testing.T) (servers, *redistest.Proxy) {
	t.Helper()
	proxy := redistest.StartProxy(t, s.addr)
	return servers{t: t, flags: []string{"--redis", proxy.Addr()}}, proxy
}

// greets reports whether a command is one by which a connection begins.
func greets(c redistest.Command) bool { return c.Name() == "hello" || c.Name() == "client" }

// ends runs a command that must come to its end by itself.
func (s servers) ends(ctx context.Context, line string) outcome {
	s.t.Helper()
	done := make(chan outcome, 1)
	go func() { done <- s.run(ctx, argsOf(line)...) }()
	select {
	case got := <-done:
		return got
	case <-time.After(time.Minute):
		require.Fail(s.t, "it does not end", line)
		return outcome{}
	}
}

// Ctrl-C ends a command at once, whatever it waits for, and however long it would wait.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	const interrupted = "rrl: interrupted\n"
	for line, c := range map[string]struct {
		at     string // a command, "" for any
		times  int    // it is interrupted when it was sent so often
		hangs  bool   // the server no longer answers then
		code   int
		stderr string
	}{
		"acquire orders --wait": {"evalsha", 1, false, exitError, interrupted},
		"bench --prefix orders": {"", 20, false, exitError, interrupted},
		"top --json":            {"", 20, false, exitYes, ""},
		"watch orders --json":   {"", 20, false, exitYes, ""},
		"ls":                    {"scan", 1, true, exitError, interrupted},
		"doctor":                {"", 1, true, exitError, interrupted},
		"top":                   {"", 1, true, exitYes, ""},
		"watch orders":          {"", 1, true, exitYes, ""},
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.play("set-rate orders 1/1h => ...\nacquire orders => ...\n")
			through, proxy := s.behind(t)
			ctx, cancel := context.WithCancel(t.Context())
			sent := 0
			proxy.OnCommand(func(command redistest.Command) redistest.Action {
				if greets(command) || c.at != "" && command.Name() != c.at {
					return redistest.Pass
				}
				if sent++; sent < c.times {
					return redistest.Pass
				}
				cancel()
				if c.hangs {
					return redistest.Pass.After(time.Hour)
				}
				return redistest.Pass
			})
			got := through.ends(ctx, line+" --connect-timeout 1h --redis redis://"+proxy.Addr()+"?read_timeout=1h")
			assert.Equal(t, c.code, got.code, "%+v", got)
			assert.Equal(t, c.stderr, got.stderr)
			for _, key := range s.Keys() {
				assert.NotContains(t, key, "rrl-bench")
			}
		})
	}
}

func TestAServerThatHangsEndsTheCommandInTime(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.play("set-rate orders 5/1h => ...\n")
	for _, line := range []string{"acquire orders", "show orders", "ls", "set-rate orders 5/1h", "delete orders"} {
		t.Run(line, func(t *testing.T) { // at once, as each waits for seconds
			t.Parallel()
			through, proxy := s.behind(t)
			proxy.OnCommand(func(c redistest.Command) redistest.Action {
				if greets(c) {
					return redistest.Pass
				}
				return redistest.Pass.After(time.Hour)
			})
			got := through.ends(t.Context(), line)
			assert.Equal(t, exitError, got.code, "%+v", got)
			assert.Contains(t, got.stderr, proxy.Addr())
		})
	}
}

func TestPasswordFile(t *testing.T) {
	t.Parallel()
	s := alone(t, "--requirepass", "secret")
	path := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(path, []byte("secret\n"), 0o600))
	assert.Zero(t, s.rrl("ls --password-file %s", path).code)
	for _, line := range []string{"ls", "show x", "acquire x", "set-rate x 1/1s", "take counter x --limit 1/1s"} {
		s.fails(s.addr+" wants a password (NOAUTH): give it", argsOf(line)...)
	}
}

func TestAReplicaAloneTakesNoChanges(t *testing.T) {
	t.Parallel()
	replica := redistest.StartSentinel(t, 1, 30*time.Second).Replicas(t)[0].Addr()
	s := servers{t: t, flags: []string{"--redis", replica}}
	for _, command := range []string{"set-rate", "try-set-rate"} {
		s.fails(replica+" is a replica, which takes no changes (READONLY)", command, "orders", "5/1h")
	}
}

// A user of the least rights who may only use some names can try all that needs no
// list of names.
func TestAUserOfAPrefix(t *testing.T) {
	t.Parallel()
	server := redistest.StartRedis(t)
	user := redistest.AddUser(t, server, nil, redistest.LeastCommands, redistest.KeysWithPrefix("api:")).Options().Username
	servers{t: t, flags: []string{"--redis", "redis://" + user + ":" + user + "@" + server.Addr()}}.play(`
set-rate api:x 5/1h           => ...
acquire api:x                 => ...
release api:x                 => ...
watch api:x --count 1         => ...
demo --prefix api: --tries 1  => ...
bench --prefix api: --time 100ms --callers 2 --limiters 3 => ...
doctor api:*                  => ...
delete api:x                  => ...
`)
	assert.Empty(t, redistest.Keys(t, server.Client(t, nil), "*"))
}

func TestARightThatIsMissingIsNamed(t *testing.T) {
	t.Parallel()
	for _, v := range redistest.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			server := redistest.StartServer(t, v)
			require.Zero(t, rrl(t, "set-rate orders 5/1h --redis %s", server.Addr()).code)
			hset := "may not run HSET (NOPERM): ACL SETUSER USER +hset"
			if v == redistest.Redis62 || v == redistest.Redis70 { // which do not name what a script may not run
				hset = "may not run a command that a limiter's script needs (NOPERM)"
			}
			for _, c := range []struct{ rules, line, words string }{
				{"~*", "ls", "may not run SCAN (NOPERM): ACL SETUSER USER +scan"},
				{"~* +scan", "ls", "may not run HMGET (NOPERM): ACL SETUSER USER +hmget"},
				{"~*", "acquire orders", "may not run EVALSHA (NOPERM)"},
				{"+@all ~other", "acquire orders", "may not use these keys (NOPERM): a limiter called NAME needs ACL SETUSER USER ~NAME ~{NAME}:*"},
				{"+@all ~other", "show orders", "may not use these keys (NOPERM)"},
				{"~*", "show orders", "may not run MULTI (NOPERM)"},
				{"~* +@all -hset", "set-rate orders 7/1h", hset},
			} {
				user := redistest.AddUser(t, server, nil, c.rules).Options().Username
				got := rrl(t, "%s --redis redis://%s:%s@%s", c.line, user, user, server.Addr())
				assert.Equal(t, exitError, got.code, "%+v", got)
				assert.Contains(t, strings.ReplaceAll(got.stderr, user, "USER"), `rrl: user "USER" `+c.words, c.line)
			}
		})
	}
}
