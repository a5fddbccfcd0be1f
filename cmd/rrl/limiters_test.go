package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/output"
	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/connect"
	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/test/limitertest"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

// A changed rate must not grant permits in use a second time.
func TestSetRate_KeepsPermitsInUse(t *testing.T) {
	t.Parallel()
	const kept, all = "=> granted 1 permit, 4 left", "=> granted 1 permit, 94 left"
	for line, next := range map[string]string{
		"set-rate orders 95/1h":                       kept,
		"update-rate orders 95/1h":                    kept,
		"set-rate orders 50/1h":                       "-> denied 1 permit, 0 left, try again in ...", // less than is in use
		"set-rate orders 95/1h --keep-state":          kept,
		"set-rate orders 95/1h --reset":               all,
		"update-rate orders 95/1h --reset":            all,
		"update-rate orders 95/1h --keep-state=false": all,
		"set-rate orders 95/1h --type per-client":     all,
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			newServer(t).play("set-rate orders 100/1h => ...\nacquire orders -n 90 => ...\n" + line + " => ...\nacquire orders " + next + "\n")
		})
	}
}

func TestSetRate(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.play(`
set-rate orders 5/1d --keep-alive 7d   => orders created: 5 permits every 24h, deleted when unused for 168h
set-rate orders 5/1d --keep-alive long !> --keep-alive "long": want a time, such as 500ms, 10s or 1h
set-rate own 10/1h --type per-client   => own created: 10 permits every 1h for each client
acquire own -n 4 --client-id ann       => granted 4 permits, 6 left
acquire own -n 4 --client-id bob       => granted 4 permits, 6 left
set-rate own 5/1h                      => own: 10/1h for each client -> 5/1h for each client
update-rate own 5/1h                   => own has 5 permits every 1h for each client, as before
`)
	// Clients do not come to share what each had of its own.
	for _, st := range s.show("own").States {
		assert.EqualValues(t, 4, st.InUse, *st.ClientID)
	}
	// Starting full mends a broken limiter, as the error says.
	s.HSet("broken", "rate", "ten", "interval", "1000", "type", "0")
	s.play(`
set-rate own 5/1h --type overall                 => own: 5/1h for each client -> 5/1h
set-rate own 5/1h --type ""                      !> want overall or per-client
set-rate broken 5/1h                             !> rrl set-rate --reset or rrl delete cures it
set-rate broken 5/1h --reset                     => broken: broken -> 5/1h
acquire broken                                   => granted 1 permit, 4 left
set-rate broken 5/1h --reset --keep-state        !> --reset and --keep-state exclude each other
set-rate broken 5/1h --redisson 3.12.0           !> give --reset
set-rate broken 5/1h --redisson 3.12.0 --reset   => broken has 5 permits every 1h, as before
`)
}

// A change of many limiters first shows what it would do, keeps what it does not name, and can
// be run again after it was stopped.
func TestUpdateRateOfMany(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for i := range 12 {
		require.Zero(t, s.rrl("set-rate api:%02d 10/1h", i).code)
	}
	s.HSet("api:bad", "rate", "ten", "interval", "1000", "type", "0")
	s.play(`
set-rate api:own 10/1h --type per-client --keep-alive 2h => ...
set-rate mail 10/1h               => ...
set-rate "or*ders" 10/1h          => ...
acquire api:00 -n 4               => ...
update-rate api:* 50/1h           !> 14 limiters would change: --yes changes them, --dry-run shows which
update-rate api:1* 50/1h --dry-run => 2 of 2 limiters would change...
update-rate api:00 3/1h --dry-run  => 1 of 1 limiter would change; 1 with more permits in use than that...
update-rate api:0 50/1h --dry-run -> no limiters, nothing changed
update-rate none:* 50/1h          -> no limiters, nothing changed
update-rate or*ders 50/1h         => or*ders: 10/1h -> 50/1h
update-rate api:10 50/1h          => ...
`)
	plan := s.rrl("update-rate api:* 50/1h --dry-run").stdout
	assert.Regexp(t, `^13 of 14 limiters would change, 1 have that rate already\n  api:bad  broken -> 50/1h\n  api:00  10/1h -> 50/1h\n`, plan)
	assert.Contains(t, plan, "\n  and 3 more\n")
	got := s.rrl("update-rate api:* 50/1h --yes")
	assert.Equal(t, exitError, got.code)
	assert.Contains(t, got.stdout, "\nchanged 12 of 13 limiters, 1 failed\n  api:bad: corrupt state: ")
	s.play(`
acquire api:00 -n 46 => granted 46 permits, 0 left
acquire mail -n 11   !> mail
update-rate api:[0-9]* 50/1h --yes --json \
  => {"found":12,"already":12,"over":0,"broken":0,"changed":0,"gone":0,"meanwhile":0,"failed":0,"first":[],"failures":[],"missing":0,"dry_run":false}
`)
	own := s.show("api:own")
	assert.Equal(t, []any{int64(50), "PER_CLIENT", int64(7_200_000)}, []any{*own.Rate, *own.Type, *own.KeepAliveMS})

	// Names on standard input, here and there.
	in := func(names string, args ...string) outcome {
		var stdout, stderr bytes.Buffer
		none := connect.Options{Getenv: func(string) string { return "" }, Timeout: time.Minute}
		root := newRoot(&app{out: output.Printer{Writer: &stdout}, stderr: &stderr, connect: none})
		root.SetIn(strings.NewReader(names))
		root.SetArgs(append(args, s.flags...))
		err := root.ExecuteContext(t.Context())
		return outcome{stdout: stdout.String(), stderr: fmt.Sprint(err)}
	}
	assert.Contains(t, in("mail\n", "update-rate", "-", "7/1h").stderr, "--yes changes them")
	got = in("mail\r\napi:00\n\nnone\nmail\n", "update-rate", "-", "7/1h", "--yes", "--reset")
	assert.Contains(t, got.stdout, "2 of 2 limiters would change, 1 name of no limiter; permits in use are forgotten\n")
	assert.Contains(t, got.stdout, "\nchanged 2 of 2 limiters\n")
	s.play("acquire api:00 -n 7 => granted 7 permits, 0 left\n")

	// A stopped update is run again.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.Equal(t, exitError, rrlWith(ctx, s.env, append([]string{"update-rate", "api:*", "9/1h", "--yes"}, s.flags...)...).code)
}

// A keep-alive time that was the interval, as Keyed sets it, follows the interval, and no plan
// promises what the change refuses.
func TestUpdateRate_KeepAliveFollowsInterval(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	client := rratelimiter.New(s.rdb, limitertest.Patient())
	keyed := client.Keyed("user:", rratelimiter.PerMinute(10))
	for _, key := range []string{"ann", "bob", "cid"} {
		d, err := keyed.Take(t.Context(), key, 1)
		require.NoError(t, err)
		require.True(t, d.Granted)
	}
	s.play(`
update-rate user:* 500/1h --dry-run       => 3 of 3 limiters would change...
update-rate user:* 500/1h --yes           => ...
update-rate user:* 500/1h --dry-run       => 0 of 3 limiters would change, 3 have that rate already
update-rate user:ann 500/2h               => user:ann: 500/1h -> 500/2h, deleted when unused for 2h
set-rate mail 5/1m --keep-alive 2m        => ...
update-rate mail 9/1m                     => mail: 5/1m -> 9/1m, deleted when unused for 2m
set-rate mail 5/1m                        => mail: 9/1m -> 5/1m, deleted when unused for 2m
set-rate mail 5/1m --keep-alive 0         => mail: 5/1m -> 5/1m, no longer deleted when unused
set-rate job:a 5/1m --keep-alive 2m       => ...
set-rate job:b 5/1m                       => ...
`)
	const fails = "\n  job:a: keep-alive time 2m is shorter than the interval 1h"
	got := s.rrl("update-rate job:* 5/1h --dry-run")
	assert.Equal(t, outcome{exitError, "1 of 2 limiters would change, 1 can't have it\n  job:b  5/1m -> 5/1h" + fails + "\n", ""}, got)
	got = s.rrl("update-rate job:* 5/1h --yes")
	assert.Equal(t, exitError, got.code)
	assert.Contains(t, got.stdout, "changed 1 of 2 limiters, 1 failed"+fails)
	got = s.rrl("update-rate job:a 5/1h --dry-run")
	assert.Equal(t, outcome{exitError, "0 of 1 limiter would change, 1 can't have it" + fails + "\n", ""}, got)
	s.play("update-rate job:a 5/1h !> job:a: keep-alive time 2m is shorter than the interval 1h\n")
}

func TestReleaseSaysHowManyWentBack(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.play(`
set-rate orders 100/1h             => ...
release orders                     => gave back nothing, no permits were in use
acquire orders -n 30               => ...
acquire orders -n 30               => ...
acquire orders -n 30               => ...
release orders                     => gave back 1 permit
release orders -n 40               => gave back 40 permits
acquire orders -n 52               -> denied 52 permits, 51 left, try again in ...
release orders -n 200              => gave back 49 permits, no more were in use
release orders -n 200              => gave back nothing, no permits were in use
release orders -n 0                => gave back 0 permits
set-rate own 10/1h --type per-client => ...
acquire own -n 4 --client-id ann   => ...
release own                        !> own: each client has permits of its own: choose the client
release own -n 9 --client-id ann   => gave back 4 permits, no more were in use
release own -n 9 --client-id bob   => gave back nothing, no permits were in use
`)
	for i, key := range []string{"{%s}:permits", "{%s}:value", "%s"} {
		name := fmt.Sprint("broken", i)
		require.Zero(t, s.rrl("set-rate %s 10/1h", name).code)
		key = fmt.Sprintf(key, name)
		s.Del(key)
		require.NoError(t, s.Set(key, "x"))
		s.fails(key, "release", name)
	}
}

// A large set takes several calls of the script, and permits that have run out are no
// longer in use.
func TestReleaseOfManyMembers(t *testing.T) {
	t.Parallel()
	s := shared(t)
	name := redistest.Name(t)
	written{hash: config(10_000, 3_600_000), value: 10_000 - 1000 - 50}.put(t, s.rdb, name)
	limitertest.AddGrants(t, s.rdb, "{"+name+"}:permits", 2*time.Hour, 50, 1)
	limitertest.AddGrants(t, s.rdb, "{"+name+"}:permits", time.Second, 1000, 1)
	s.play(`
release NAME -n 300  => gave back 300 permits
release NAME -n 5000 => gave back 700 permits, no more were in use
`, "NAME", name)
	assert.EqualValues(t, 10_000, *s.show("%q", name).States[0].Free)
}

// What may have happened is not done twice, and not said to have been done.
func TestRelease_LostAnswerIsUnknownOutcome(t *testing.T) {
	t.Parallel()
	s := alone(t)
	proxy := redistest.StartProxy(t, s.addr)
	s.play("set-rate orders 10/1h => ...\nacquire orders -n 9 => ...\n")
	var sent atomic.Int64
	proxy.OnCommand(func(c redistest.Command) redistest.Action {
		if c.Name() == "evalsha" && c.Args[1] == lua.Release.SHA || c.Name() == "eval" && c.Args[1] == lua.Release.Source {
			sent.Add(1)
			if c.Name() == "eval" {
				return redistest.DropAnswer
			}
		}
		return redistest.Pass
	})
	got := rrl(t, "release orders -n 3 --redis %s", proxy.Addr())
	assert.Equal(t, exitError, got.code)
	assert.Empty(t, got.stdout)
	assert.Regexp(t, `^rrl: orders: outcome unknown`, got.stderr)
	assert.LessOrEqual(t, sent.Load(), int64(2), "by its hash, then by its source")
	assert.EqualValues(t, 4, *s.show("orders").States[0].Free)
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	now := float64(time.Now().UnixMilli())
	written{config(10, 3_600_000), 3, []redis.Z{
		{Score: now - 2, Member: member(t, codec.LayoutB, 1, 2)},
		{Score: now - 1, Member: member(t, codec.LayoutC, 2, 1)},
		{Score: now, Member: member(t, codec.LayoutD2, 3, 4)},
	}}.put(t, s.rdb, "orders")
	require.Equal(t, []string{"mixed_layouts"}, kinds(s.show("orders")))
	s.play("migrate orders --redisson 3.15.5 !> 3.15.5\nmigrate orders => orders: 2 members rewritten\n")
	found := s.show("orders")
	assert.Empty(t, found.Anomalies)
	assert.EqualValues(t, 3, *found.States[0].Free)
	var permits []uint32
	for _, p := range found.States[0].Permits {
		assert.Equal(t, "D2", p.Layout)
		permits = append(permits, p.Permits)
	}
	assert.Equal(t, []uint32{2, 1, 4}, permits)
	s.play(`
migrate orders --json => {"name":"orders","rewritten":0}
try-set-rate mail 10/1h --type per-client => ...
acquire mail -n 3 --client-id a --redisson 3.16.8 => ...
acquire mail -n 3 --client-id b --redisson 3.16.8 => ...
migrate mail => mail: 2 members rewritten
migrate mail => mail: 0 members rewritten
`)
}

// Permits that can't be read beside those in use would break the limiter.
func TestAcquire_RefusesPermitsOfOlderRedissons(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	now := float64(time.Now().UnixMilli())
	holds := func(name string, layouts ...codec.Layout) {
		w := written{hash: config(10, hour), value: 10 - len(layouts)}
		for i, layout := range layouts {
			w.members = append(w.members, redis.Z{Score: now - float64(10-i), Member: member(t, layout, byte(i), 1)})
		}
		w.put(t, s.rdb, name)
	}
	sound := func(name string) { assert.Empty(t, kinds(s.show("%s", name)), name) }
	for name, c := range map[string]struct {
		layouts         []codec.Layout
		releases, names string
	}{
		"b": {[]codec.Layout{codec.LayoutB, codec.LayoutB}, "3.13.3 to 3.16.3", "3.13.3"},
		"c": {[]codec.Layout{codec.LayoutC}, "3.16.4 to 3.16.8", "3.16.4"},
	} {
		holds(name, c.layouts...)
		refuses := name + " has permits of Redisson " + c.releases + ", which can't read newer ones: give --redisson " + c.names +
			"; if no such Redisson is left, run rrl migrate first\n"
		for _, line := range []string{"acquire NAME", "acquire NAME --wait", "acquire NAME --timeout 1s", "acquire NAME --redisson 3.40.0",
			"set-rate NAME 20/1h", "update-rate NAME 20/1h"} {
			s.play(line+" !> "+refuses, "NAME", name)
		}
		sound(name)
		s.play("acquire NAME --redisson 3.17.0 !> "+refuses+`
acquire NAME --redisson OLD          => granted 1 permit, ...
set-rate NAME 20/1h --redisson OLD   => ...
release NAME                         => gave back 1 permit
`, "NAME", name, "OLD", c.names)
		sound(name)
		s.play(`
migrate NAME          => ...
acquire NAME          => granted 1 permit, ...
`, "NAME", name)
		sound(name)
	}
	// The oldest decides, also where harm is done already; 3.17 and newer read each other's.
	holds("both", codec.LayoutD2, codec.LayoutC, codec.LayoutB)
	holds("d", codec.LayoutD1, codec.LayoutD2)
	holds("own")
	require.NoError(t, s.rdb.HSet(t.Context(), "own", "type", 1).Err())
	require.NoError(t, s.rdb.ZAdd(t.Context(), "{own}:permits:ann", redis.Z{Score: now, Member: member(t, codec.LayoutB, 1, 1)}).Err())
	require.NoError(t, s.rdb.Set(t.Context(), "{own}:value:ann", 9, 0).Err())
	holds("window")
	require.NoError(t, s.rdb.Set(t.Context(), "{window}:value", 4, time.Minute).Err())
	s.play(`
acquire both                     !> give --redisson 3.13.3
acquire both --redisson 3.13.3   => granted 1 permit...
set-rate both 20/1h --reset      => ...
acquire both                     => granted 1 permit...
acquire d --redisson 3.15.5      !> d has permits of Redisson 3.17.0 to 3.20.1, which 3.15.5 can't read: leave out --redisson, or name a newer one
acquire d                        => granted 1 permit...
acquire own                      => granted 1 permit...
acquire own --client-id ann      !> give --redisson 3.13.3
acquire own --client-id bob      => granted 1 permit...
acquire window                   !> window has permits of Redisson 3.12.0 to 3.13.2, which can't read newer ones: give --redisson 3.12.0
acquire window --redisson 3.13.2 => granted 1 permit, 3 left
acquire none                     !> none: limiter has no rate
`)
	sound("d")
	sound("window")
}

func TestTake(t *testing.T) {
	t.Parallel()
	s := newStoppedServer(t)
	for _, at := range []struct {
		after  time.Duration
		script string
	}{
		{0, "fixed-window w --limit 100/1m => granted 1 permit, 99 left"},
		{0, "counter w --limit 100/1m -n 99 => granted 99 permits, 0 left"},
		{time.Second, "fixed-window w --limit 100/1m -> denied 1 permit, 0 left, try again in 59s"},
		{time.Minute, "counter w --limit 100/1m => granted 1 permit, 99 left"},
		{0, "fixed-window day --limit 3/daily -n 3 => granted 3 permits, 0 left"},
		{0, "counter day --limit 3/daily@Europe/Berlin -> denied 1 permit, 0 left, try again in 23h"},
		{0, "fixed-window week --limit 3/weekly@Europe/Berlin --peek => 3 of 3 left"},
		{0, "fixed-window month --limit 3/monthly@Europe/Berlin --peek => 3 of 3 left"},

		{0, "sliding-log l --limit 3/1m --permits 2 => granted 2 permits, 1 left"},
		{time.Second, "sliding-log l --limit 3/1m --permits 2 -> denied 2 permits, 1 left, try again in 59s"},
		{time.Second, "sliding-log l --limit 3/1m --peek => 1 of 3 left"},
		{time.Second, "sliding-log l --limit 3/1m --peek -n 2 -> 1 of 3 left, 2 permits in 59s"},

		{0, "token-bucket b --limit 10+1/1s --peek => 10 of 10 left"},
		{0, "fixed-window w2 --limit 10/1s --peek => 10 of 10 left"},
		{0, "token-bucket b --capacity 10 --refill 1/1s -n 8 => granted 8 permits, 2 left"},
		{0, "token-bucket b --capacity 10 --refill 1/1s -n 3 -> denied 3 permits, 2 left, try again in 1s"},
		{0, "token-bucket b --limit 10+1/1s --borrow 1 -n 3 => granted 3 permits, 0 left"},
		{0, "token-bucket b --capacity 10 --refill 1/1s -> denied 1 permit, 0 left, try again in 2s"},
	} {
		s.SetTime(startOfClock.Add(at.after))
		s.play("take " + at.script + "\n")
	}
}

func TestThreshold(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	//nolint:dupword // one line ends as the next begins
	s.play(`
threshold k                        -> k has no threshold
threshold k --json                 -> {"key":"k","threshold":null}
threshold k 5                      => k has a threshold of 5
threshold k                        => k has a threshold of 5
threshold k --json                 => {"key":"k","threshold":5}
threshold k 7 --thresholds other   => k has a threshold of 7
threshold k --reset                => k has no threshold
threshold k                        -> k has no threshold
threshold k --thresholds other     => k has a threshold of 7
threshold "a\nb" 1                 => "a\nb" has a threshold of 1
TAKE                               => granted 1 permit, 0 left
threshold limit:ann:/ 3            => limit:ann:/ has a threshold of 3
TAKE                               => granted 1 permit, 1 left
threshold limit:ann:/ 0            => limit:ann:/ has a threshold of 0
TAKE                               -> denied 1 permit, 0 left, try again in 1h
`, "TAKE", "take sliding-log limit:ann:/ --limit 1/1h --thresholds rate:limit:config")
	assert.Equal(t, "0", s.HGet("rate:limit:config", "limit:ann:/"))
}

// A mistyped name does not cost an application its data.
func TestOtherKeysAreLeftAlone(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	require.NoError(t, s.Set("text", "x"))
	s.HSet("user", "name", "ann")
	s.HSet("car", "type", "car", "rate", "120")
	s.HSet("job", "interval", "60", "type", "1")
	s.HSet("half", "rate", "10", "interval", "1000")
	s.SetTTL("car", time.Hour)
	const other = "hash of something else"
	for name, is := range map[string]string{"text": "string", "user": other, "car": other, "job": other} {
		s.play(`
delete NAME          !> NAME is a WHAT, not a limiter: nothing changed
expire NAME 1m       !> NAME is a WHAT, not a limiter: nothing changed
expire NAME --clear  !> NAME is a WHAT, not a limiter: nothing changed
`, "NAME", name, "WHAT", is)
		assert.True(t, s.Exists(name), name)
	}
	for _, command := range []string{"set-rate", "try-set-rate", "update-rate"} {
		s.play(`
COMMAND user 10/s --keep-alive 1h !> user is a hash of something else, not a limiter: nothing changed
COMMAND text 10/s                 !> config is of type string, not hash
`, "COMMAND", command)
	}
	assert.Empty(t, s.HGet("user", "rate"))
	assert.Equal(t, []time.Duration{0, 0, time.Hour, 0}, []time.Duration{s.TTL("text"), s.TTL("user"), s.TTL("car"), s.TTL("job")})
	s.play(`
delete ""            !> name is empty
expire "" 1m         !> name is empty
delete half          => deleted half
delete text --force  => deleted text
`)
}

func TestParseRate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		permits  int64
		interval time.Duration
	}{
		"100/1s":              {100, time.Second},
		"5/500ms":             {5, 500 * time.Millisecond},
		"1000/1h":             {1000, time.Hour},
		"1/1ms":               {1, time.Millisecond},
		"7/1m30s":             {7, 90 * time.Second},
		"3/1.5s":              {3, 1500 * time.Millisecond},
		"9007199254740991/1s": {rratelimiter.MaxRate, time.Second},
		"10/s":                {10, time.Second},
		"10/m":                {10, time.Minute},
		"10/h":                {10, time.Hour},
		"10/d":                {10, 24 * time.Hour},
		"10/ms":               {10, time.Millisecond},
		"10/1d":               {10, 24 * time.Hour},
		"5/90s":               {5, 90 * time.Second},
		"5/1d12h":             {5, 36 * time.Hour},
		"5/0.5d":              {5, 12 * time.Hour},
		"1/106751d":           {1, 106_751 * 24 * time.Hour},
	} {
		permits, interval, err := parseRate(text)
		require.NoError(t, err, text)
		assert.Equal(t, want.permits, permits, text)
		assert.Equal(t, want.interval, interval, text)
	}
}

func TestParseRateRefuses(t *testing.T) {
	t.Parallel()
	const (
		form     = "want permits/interval, such as 100/s, 5/500ms or 1000/1d"
		permits  = " is not a number of permits, 1 to 9007199254740991"
		interval = " is not an interval from 1ms to 106751d, such as s, 500ms, 1m30s or 1d"
	)
	for text, want := range map[string]string{
		"":                    form,
		"100":                 form,
		"/1s":                 `""` + permits,
		"0/s":                 `"0"` + permits,
		"0/1s":                `"0"` + permits,
		"many/1s":             `"many"` + permits,
		"1.5/1s":              `"1.5"` + permits,
		"-1/1s":               `"-1"` + permits,
		"9007199254740992/1s": `"9007199254740992"` + permits,
		"1/1.5ms":             `"1.5ms" is not a whole number of milliseconds`,
		"1/":                  `""` + interval,
		"1/1":                 `"1"` + interval,
		"1/min":               `"min"` + interval,
		"1/1s/1s":             `"1s/1s"` + interval,
		"1/0s":                `"0s"` + interval,
		"1/0d":                `"0d"` + interval,
		"1/-1s":               `"-1s"` + interval,
		"1/1us":               `"1us"` + interval,
		"1/106752d":           `"106752d"` + interval,
		"1/99999999999d":      `"99999999999d"` + interval,
		"1/1d-1s":             `"1d-1s"` + interval,
		"1/2h1d":              `"2h1d"` + interval,
		"1/1dd":               `"1dd"` + interval,
	} {
		_, _, err := parseRate(text)
		assert.ErrorContains(t, err, want, text)
	}
}

func FuzzParseRate(f *testing.F) {
	for _, text := range []string{
		"100/1s", "5/500ms", "1000/1h", "1/1h0m1s", "1/", "/", "-1/1s", "1/9223372036854ms", "9007199254740991/.5s", "10/d",
		"1/106751d1h", "1/0.1d2h",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		permits, interval, err := parseRate(text)
		if err != nil {
			if permits != 0 || interval != 0 {
				t.Errorf("%q: %d, %v beside %v", text, permits, interval, err)
			}
			return
		}
		if permits < 1 || permits > rratelimiter.MaxRate || interval < time.Millisecond || interval%time.Millisecond != 0 {
			t.Errorf("%q: %d, %v", text, permits, interval)
		}
		written := words.ShortRate(permits, interval.Milliseconds())
		if again, same, err := parseRate(written); err != nil || again != permits || same != interval {
			t.Errorf("%q is written as %q, which is %d, %v, %v", text, written, again, same, err)
		}
	})
}
