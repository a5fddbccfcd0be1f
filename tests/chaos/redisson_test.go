package chaos_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
	"github.com/rratelimiter/rratelimiter/internal/test/model"
	"github.com/rratelimiter/rratelimiter/internal/test/op"
)

var redissonFlag = flag.String("redisson", "4.7.0,3.27.2",
	"releases of Redisson, with commas between, whose programs take part in some rounds of longer runs; none where empty")

const (
	redissonWorkers = 2                // programs with Redisson that a round has, if any
	javaPatience    = 10 * time.Second // after which a call of Redisson's is given up
)

// redissons are the releases that rounds of this run may have.
func redissons() []string {
	if *redissonFlag == "" || *minutes == 0 && *onlyRound == 0 {
		return nil
	}
	return strings.Split(*redissonFlag, ",")
}

// drawRedisson has programs with Redisson, of one of the releases, take part in some
// rounds, and use some of the limiters. A server's clock that is set is not theirs.
func (p *plan) drawRedisson(releases []string) {
	p.releases = releases
	draw := p.draw("redisson")
	if len(releases) == 0 || p.mood == stepping || draw.IntN(3) > 0 {
		return
	}
	release := releases[draw.IntN(len(releases))]
	for _, l := range p.limiters {
		p.shareWith(draw, l, release)
	}
	if !slices.ContainsFunc(p.limiters, func(l *limiter) bool { return l.redisson != "" }) {
		return
	}
	p.redisson = release
	for i := range redissonWorkers {
		p.clients = append(p.clients, clientPlan{
			name: fmt.Sprintf("j%d", i+1), redisson: release, callTimeout: time.Duration(600+draw.IntN(900)) * time.Millisecond,
			callers: 2 + draw.IntN(3), pause: 5 * time.Millisecond,
		})
	}
}

func (p *plan) shareWith(draw *rand.Rand, l *limiter, release string) {
	if !model.ReleaseOf(release).SumsUp {
		l.lease = 0 // which takes members of many requests
	}
	if (l.kind != overall && l.kind != perClient) || l.config.KeepAlive > 0 || draw.IntN(3) == 0 {
		return
	}
	l.redisson, l.byDefault = release, false
}

// jvms has a JVM of each release, for all rounds: they take seconds to start.
var jvms = map[string]*javadriver.Process{}

func closeJVMs() {
	for _, jvm := range jvms {
		jvm.Close()
	}
	clear(jvms)
}

// prepareRedisson starts what the round takes of Java. It reports whether there is what that
// takes on this machine: where not, rounds go on without.
func prepareRedisson(t *testing.T, p *plan) bool {
	t.Helper()
	if !slices.ContainsFunc(p.clients, func(c clientPlan) bool { return c.redisson != "" }) {
		return true
	}
	if jvms[p.redisson] != nil {
		return true
	}
	jvm, err := javadriver.StartRedisson("../../compat_test/java", p.redisson)
	if missing, ok := errors.AsType[*javadriver.MissingError](err); ok {
		if os.Getenv("RRL_NO_SKIP") == "1" {
			t.Fatalf("%s (RRL_NO_SKIP=1 forbids to go on without)", missing.Why)
		}
		t.Logf("rounds without Redisson: %s", missing.Why)
		return false
	}
	require.NoError(t, err)
	jvms[p.redisson] = jvm
	return true
}

// javaCrew is callers of a RedissonClient. A call begins here when it is sent to the JVM, and ends with its answer.
type javaCrew struct {
	clientPlan
	party

	r        *round
	jvm      *javadriver.Process
	its      string // the JVM's name for the RedissonClient
	halfOpen bool   // one before was not made, which leaves connections to its JVM
}

func newJavaCrew(r *round, plan clientPlan, to route) *javaCrew {
	w := &javaCrew{clientPlan: plan, r: r, jvm: jvms[plan.redisson], its: fmt.Sprintf("%s-%d", plan.name, r.number)}
	w.held, w.party.callTimeout = map[string]int64{}, plan.callTimeout
	var instead []string
	for _, addr := range sorted(to.Instead) {
		instead = append(instead, addr, to.Instead[addr])
	}
	ctx, cancel := context.WithTimeout(context.Background(), rest)
	defer cancel()
	open := func() (err error) {
		w.id, err = javadriver.Call[string](ctx, w.jvm, "openOn", w.its, to.Servers, to.Master, strings.Join(to.Addrs, ","),
			strings.Join(instead, ","), (plan.callTimeout / 3).Milliseconds(), roundConnection)
		return err
	}
	err := open()
	for err != nil && ctx.Err() == nil { // no fault is on yet, but it waits for connections no longer than for answers
		w.halfOpen, err = true, open()
	}
	require.NoError(r.t, err, "%s: %s", w.name, w.jvm.Stderr())
	r.bornJava(w.id)
	return w
}

func (w *javaCrew) work(ctx context.Context) { w.eachCaller(ctx, w.r, w.call) }

func (w *javaCrew) current() string { return w.id }

// replace leaves the RedissonClient: what Redisson does as it is closed is not of interest here.
func (*javaCrew) replace() (old string, err error) { return "", nil }

func (*javaCrew) kill() (left string) { return "" }

// leave shuts the RedissonClient down. If that does not end, its connections stay as long as the JVM.
func (w *javaCrew) leave() error {
	ctx, cancel := context.WithTimeout(context.Background(), javaPatience)
	defer cancel()
	if _, err := javadriver.Call[string](ctx, w.jvm, "close", w.its); err != nil || w.halfOpen {
		w.jvm.Kill()
		delete(jvms, w.redisson)
	}
	return nil
}

// call makes one call; a Release only if there is something to release.
func (w *javaCrew) call(draw *rand.Rand) {
	shared := slices.DeleteFunc(slices.Clone(w.r.limiters), func(l *limiter) bool { return l.redisson == "" })
	l := shared[draw.IntN(len(shared))]
	c, ok := w.drawCall(draw, []op.Op{try, try, try, wait, available}[draw.IntN(5)], l)
	if !ok {
		return
	}
	c.Redisson = w.redisson
	ends := c.Ends
	if ends == 0 {
		ends = c.Bound + javaPatience // it leaves some without an answer for good
	}
	ctx, cancel := context.WithTimeout(context.Background(), ends)
	defer cancel()
	c.Start = w.r.now()
	what := strings.ToLower(string(c.Name[:1])) + string(c.Name[1:])
	said, err := javadriver.Call[any](ctx, w.jvm, what, append([]any{w.its, l.name}, javaArguments(&c)...)...)
	c.End = w.r.now()
	c.Answer = javaAnswer(&c, said, err)
	w.note(&c)
	w.r.tell(c)
}

func javaArguments(c *call) []any {
	switch {
	case c.Name == op.Available:
		return nil
	case c.Timeout > 0:
		return []any{c.Permits, c.Timeout.Milliseconds()}
	}
	return []any{c.Permits}
}

// javaAnswer classifies what Redisson's call returned. What it throws as it gives up tells
// nothing about what has been done.
func javaAnswer(c *call, said any, err error) op.Answer {
	thrown, threw := errors.AsType[*javadriver.ThrownError](err)
	message := ""
	if threw {
		// Behind that it quotes the script, which has all messages in it.
		message, _, _ = strings.Cut(thrown.Message, "command: (")
	}
	a := op.Answer{Outcome: op.Unknown, OK: said == true || !c.takes(), Err: err}
	switch {
	case err == nil:
		a.Outcome = op.Done
	case errors.Is(err, context.DeadlineExceeded) && c.Ends > 0:
		a.Outcome = op.Gone
	case errors.Is(err, context.DeadlineExceeded):
	case !threw:
		a.Outcome = op.Killed
	case strings.Contains(message, "not exceed defined rate"):
		a.Outcome = op.Exceeds
	case strings.Contains(message, "is not initialized"):
		a.Outcome = op.Missing
	}
	return a
}
