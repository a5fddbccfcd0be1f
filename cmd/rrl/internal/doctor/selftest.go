package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/inspect/nodes"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

const (
	testPatience = 20 * time.Second // for one proof
	testLife     = time.Minute      // of keys that can't be removed
	pingPatience = 3 * time.Second
)

// proof is of one thing that the scripts need of a server.
type proof struct {
	name string
	does string // what the server does if it works
	cost string // what fails without it
	part bool   // only a part of the features needs it
	run  func(t *selfTest, ctx context.Context) error
}

const allFail = "no limiter works right on this server"

// proofs are in the order in which one builds on the other.
var proofs = []proof{
	{"scripts", "answers of all kinds come through", allFail, false, (*selfTest).scripts},
	{"evalsha", "an unknown script is NOSCRIPT, a known one runs", allFail, false, (*selfTest).evalsha},
	{"pipelines", "EVALSHA runs in pipelines, in order", allFail, false, (*selfTest).pipelines},
	{"time", "a script may read the time and then write", allFail, false, (*selfTest).time},
	{"integers", "integers are exact, and those beyond 2^53 are refused", allFail, false, (*selfTest).integers},
	{"bytes", "members keep all their bytes", allFail, false, (*selfTest).bytes},
	{"sorted sets", "order, scores and ZADD NX work as in Redis", allFail, false, (*selfTest).sortedSets},
	{"times to live", "keys expire when they should, and not before", "permits come back late or too early, and keys stay for ever", false, (*selfTest).timesToLive},
	{"slow script", "a script of some tenths of a second ends, and nothing runs meanwhile", "calls with many permits in use fail or grant too much", false, (*selfTest).slowScript},
	{"wrong types", "a key of another type is WRONGTYPE", "damage is not reported as ErrCorrupt", true, (*selfTest).wrongTypes},
	{"RateLimiter", "a history of a shared limiter came out right", "RateLimiter and Keyed do not work", false, (*selfTest).shared},
	{"PerClient", "a history of two clients came out right", "limiters of type PerClient do not work", true, (*selfTest).perClient},
	{"other limiters", "a window, a log and a bucket came out right", "fixedwindow, slidinglog or tokenbucket do not work", true, (*selfTest).others},
	{"wait", "WAIT returns how many replicas have the writes", "WithReplicas does not work", true, (*selfTest).wait},
	{"slots", "a limiter's keys share a slot, and others' are refused", "limiters fail, or are spread over servers", false, (*selfTest).slots},
}

// selfTest is one run.
type selfTest struct {
	rdb  nodes.Client
	name string // that all keys of the run begin with
	keys []string
	note string // what a check found besides
}

// SelfTest tries whether the servers behind rdb do what limiters need, in keys of its own
// whose names begin as opts.Pattern does. An error says that they can't be asked.
//
// Once ctx has ended it begins nothing, waits for what is under way, and removes the keys.
func SelfTest(ctx context.Context, rdb nodes.Client, opts Options) (*Report, error) {
	start := time.Now()
	masters, err := nodes.Masters(ctx, rdb)
	if err != nil {
		return nil, err
	}
	d := &doctor{rdb: rdb, report: Report{Name: opts.Name, Worst: Fine}}
	for _, n := range masters {
		d.report.Servers = append(d.report.Servers, nodes.Addr(n))
	}
	prefix := literal(opts.Pattern)
	if strings.ContainsAny(prefix, "{}") {
		prefix = ""
	}
	for _, c := range proofs {
		t := &selfTest{rdb: rdb, name: prefix + "rrl-self-test-" + rand.Text()}
		err := t.within(ctx, c)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			if gone := silent(ctx, masters); gone != nil {
				d.add(nil, c.name, Error, "a server no longer answers: "+gone.Error(), "this and what comes after it could not be tried",
					"find out why the server stopped, and run this again")
				break
			}
		}
		d.proved(c, t.note, err)
	}
	d.finish(start)
	return &d.report, nil
}

// silent returns why one of the servers does not answer. What a check found then says
// nothing of what the server can do.
func silent(ctx context.Context, masters []nodes.Client) error {
	ctx, cancel := context.WithTimeout(ctx, pingPatience)
	defer cancel()
	var errs []error
	for _, n := range masters {
		errs = append(errs, n.Ping(ctx).Err())
	}
	return errors.Join(errs...)
}

// proved notes what a check found.
func (d *doctor) proved(c proof, note string, err error) {
	level := Error
	if c.part {
		level = Warning
	}
	switch {
	case redis.HasErrorPrefix(err, "NOPERM"):
		d.add(nil, c.name, level, err.Error(), "this user may not do that, so the server's behaviour is unknown",
			"run it as a user who may do that, and with a PATTERN of names that it may use")
	case script.ScriptChecked(err):
		d.add(nil, c.name, level, err.Error(), c.cost, script.AllowScripts)
	case err != nil:
		d.add(nil, c.name, level, err.Error(), c.cost, "use a server that does this, or do without; docs/servers.md lists tested servers")
	case note != "":
		d.add(nil, c.name, Note, note, "", "")
	default:
		d.fine(nil, c.name, c.does)
	}
}

// within runs a check within a bounded time, and removes its keys.
func (t *selfTest) within(ctx context.Context, c proof) error {
	defer t.remove(ctx)
	ctx, cancel := context.WithTimeout(ctx, testPatience)
	defer cancel()
	return c.run(t, ctx)
}

// maxTime is the longest time for which a check is repeated.
const maxTime = testPatience / 2

// inTime runs a check of what happens within a time and after it. If it fails once that is
// over, this machine or the way may have stood still: a longer time tells. If there is no time
// for it, the last finding stands.
func (t *selfTest) inTime(ctx context.Context, d time.Duration, check func(time.Duration) error) (err error) {
	for ; ; d *= 4 {
		start, before := time.Now(), err
		if err = check(d); before != nil && err != nil && ctx.Err() != nil {
			err = before
		}
		if err == nil || ctx.Err() != nil || time.Since(start) < d || 4*d > maxTime {
			return err
		}
		t.remove(ctx)
	}
}

// remove removes the run's keys, or gives them a short time to live if it can't.
func (t *selfTest) remove(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), testPatience)
	defer cancel()
	for _, key := range t.keys {
		if t.rdb.Unlink(ctx, key).Err() != nil && t.rdb.Del(ctx, key).Err() != nil {
			_ = t.rdb.PExpire(ctx, key, testLife)
		}
	}
}

// pause waits, unless ctx ends first.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// key returns a key of the run, which is removed when the check is over. All share a slot.
func (t *selfTest) key(suffix string) string {
	key := "{" + t.name + "}" + suffix
	t.keys = append(t.keys, key)
	return key
}

// eval runs a script on one key.
func (t *selfTest) eval(ctx context.Context, script, key string, args ...any) (any, error) {
	return t.rdb.Eval(ctx, script, []string{key}, args...).Result()
}

// same returns an error unless got equals want, both as text.
func same(what string, got, want any) error {
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		return fmt.Errorf("%s: %q instead of %q", what, g, w)
	}
	return nil
}

// says returns an error unless a script answers want.
func (t *selfTest) says(ctx context.Context, what, script, key, want string, args ...any) error {
	got, err := t.eval(ctx, script, key, args...)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return same(what, got, want)
}
