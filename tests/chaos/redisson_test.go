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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
	"github.com/rratelimiter/rratelimiter/internal/test/model"
	"github.com/rratelimiter/rratelimiter/internal/test/op"
	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
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
	if !slices.Contains(p.faults, processKilled) && draw.IntN(2) == 0 {
		p.faults = append(p.faults, processKilled)
	}
}

func (p *plan) shareWith(draw *rand.Rand, l *limiter, release string) {
	if !model.ReleaseOf(release).SumsUp {
		l.lease = 0 // which takes members of many requests
	}
	if (l.kind != overall && l.kind != perClient) || l.wild || l.config.KeepAlive > 0 || draw.IntN(3) == 0 {
		return
	}
	l.redisson, l.byDefault = release, false
	l.mints = release == newestRedisson && (l.reserves || draw.IntN(3) == 0) // release often meets reservations
}

// newestRedisson has release and updateRate.
const newestRedisson = "4.7.0"

// fleet holds JVMs between rounds, by release: they take seconds to start.
type fleet map[string]chan *javadriver.Process

var jvms = fleet{}

// stock starts JVMs until a round has enough of them, and one that takes over from one
// that is killed.
func (f fleet) stock(release string) error {
	if f[release] == nil {
		f[release] = make(chan *javadriver.Process, redissonWorkers+1)
	}
	for len(f[release]) <= redissonWorkers {
		jvm, err := javadriver.StartRedisson("../../compat_test/java", release)
		if err != nil {
			return err
		}
		f[release] <- jvm
	}
	return nil
}

// take returns a JVM, nil if all are in use.
func (f fleet) take(release string) *javadriver.Process {
	select {
	case jvm := <-f[release]:
		return jvm
	default:
		return nil
	}
}

func (f fleet) put(release string, jvm *javadriver.Process) { f[release] <- jvm }

func (f fleet) close() {
	for _, idle := range f {
		for len(idle) > 0 {
			(<-idle).Close()
		}
	}
	clear(f)
}

// prepareRedisson starts what the round takes of Java. It reports whether there is what that
// takes on this machine: where not, rounds go on without.
func prepareRedisson(t *testing.T, p *plan) bool {
	t.Helper()
	if !slices.ContainsFunc(p.clients, func(c clientPlan) bool { return c.redisson != "" }) {
		return true
	}
	err := jvms.stock(p.redisson)
	if missing, ok := errors.AsType[*javadriver.MissingError](err); ok {
		if os.Getenv("RRL_NO_SKIP") == "1" {
			t.Fatalf("%s (RRL_NO_SKIP=1 forbids to go on without)", missing.Why)
		}
		t.Logf("rounds without Redisson: %s", missing.Why)
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	return true
}

// javaCrew is callers of RedissonClients, one after another, in a JVM that may be killed. A
// call begins here when it is sent to the JVM, and ends with its answer.
type javaCrew struct {
	clientPlan

	r     *round
	route route
	lives int
	party atomic.Pointer[javaParty] // nil while there is none

	halfOpen bool // a RedissonClient was not made: one that faults keep from it leaves connections to its JVM
}

// javaParty is one RedissonClient and what its callers hold.
type javaParty struct {
	party

	jvm   *javadriver.Process
	stuck bool           // one before it was not shut down in time
	name  string         // the JVM's for it
	calls sync.WaitGroup // under way
	mu    sync.RWMutex   // held while a call begins
	over  bool           // no more calls begin
}

func newJavaCrew(r *round, plan clientPlan, to route) *javaCrew {
	w := &javaCrew{clientPlan: plan, r: r, route: to}
	jvm := jvms.take(plan.redisson)
	p, err := w.open(jvm)
	for until := time.Now().Add(rest); err != nil && time.Now().Before(until); {
		p, err = w.open(jvm) // no fault is on yet, but it waits for connections no longer than for answers
	}
	if err != nil {
		r.t.Fatal(err)
	}
	w.party.Store(p)
	return w
}

// open makes another RedissonClient in the JVM.
func (w *javaCrew) open(jvm *javadriver.Process) (*javaParty, error) {
	w.lives++
	p := &javaParty{jvm: jvm, name: fmt.Sprintf("%s-%d-%d", w.name, w.r.number, w.lives)}
	p.held, p.callTimeout = map[string]int64{}, w.callTimeout
	var instead []string
	for _, addr := range sorted(w.route.Instead) {
		instead = append(instead, addr, w.route.Instead[addr])
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*javaPatience)
	defer cancel()
	var err error
	p.id, err = javadriver.Call[string](ctx, jvm, "openOn", p.name, w.route.Servers, w.route.Master, strings.Join(w.route.Addrs, ","),
		strings.Join(instead, ","), (w.callTimeout / 3).Milliseconds(), roundConnection)
	if err != nil {
		w.halfOpen = true
		return nil, fmt.Errorf("%s: %w\n%s", w.name, err, jvm.Stderr())
	}
	w.r.bornJava(p.id)
	return p, nil
}

func (w *javaCrew) work(ctx context.Context) {
	w.eachCaller(ctx, func(i int) *rand.Rand { return w.r.draw("caller", w.name, i) }, func(draw *rand.Rand) {
		if p := w.party.Load(); p != nil && p.begin() {
			w.call(draw, p)
			p.calls.Done()
		}
	})
}

func (p *javaParty) begin() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.over {
		return false
	}
	p.calls.Add(1)
	return true
}

// end waits for all calls: a RedissonClient that is shut down does not answer them.
func (p *javaParty) end() {
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	p.calls.Wait()
}

// close shuts the RedissonClient down and reports whether that ended. If it does not, its
// connections stay as long as the JVM.
func (p *javaParty) close() bool {
	p.end()
	ctx, cancel := context.WithTimeout(context.Background(), javaPatience)
	defer cancel()
	_, err := javadriver.Call[string](ctx, p.jvm, "close", p.name)
	return err == nil
}

func (w *javaCrew) current() string {
	if p := w.party.Load(); p != nil {
		return p.id
	}
	return w.name
}

func (w *javaCrew) replace() (old string, err error) {
	p := w.party.Load()
	if p == nil {
		return w.name, nil
	}
	next, err := w.open(p.jvm)
	if err != nil {
		return p.id, nil //nolint:nilerr // faults may keep a RedissonClient from being made
	}
	w.party.Store(next)
	next.stuck = p.stuck || !p.close()
	return p.id, nil
}

// leave ends a JVM without closing its RedissonClients.
func (w *javaCrew) leave() error {
	p := w.party.Load()
	switch {
	case p == nil:
	case p.close() && !p.stuck && !w.halfOpen:
		jvms.put(w.redisson, p.jvm)
	default:
		p.jvm.Kill()
	}
	return nil
}

// kill ends the JVM in the middle of its calls, and has another one take over, if one is
// ready and faults let it reach the servers.
func (w *javaCrew) kill() (left string) {
	p := w.party.Load()
	if p == nil {
		return ""
	}
	spare := jvms.take(w.redisson)
	if spare == nil {
		return ""
	}
	p.jvm.Kill()
	p.end()
	w.party.Store(nil)
	for w.r.over.Err() == nil {
		if next, err := w.open(spare); err == nil {
			w.party.Store(next)
			return p.id
		}
	}
	if w.halfOpen {
		spare.Kill()
		return p.id
	}
	jvms.put(w.redisson, spare)
	return p.id
}

// call makes one call; a Release only if there is something to release.
func (w *javaCrew) call(draw *rand.Rand, p *javaParty) {
	shared := slices.DeleteFunc(slices.Clone(w.r.limiters), func(l *limiter) bool { return l.redisson == "" })
	l := shared[draw.IntN(len(shared))]
	c, ok := p.drawCall(draw, w.r.drawJavaOperation(draw, l), l, w.name)
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
	said, err := javadriver.Call[any](ctx, p.jvm, what, append([]any{p.name, l.name}, javaArguments(&c, l)...)...)
	c.End = w.r.now()
	c.Answer = javaAnswer(&c, said, err)
	p.note(&c)
	w.r.tell(c)
}

func (p *plan) drawJavaOperation(draw *rand.Rand, l *limiter) op.Op {
	all := []op.Op{try, try, try, try, try, try, wait, wait, available}
	if l.mints {
		all = append(all, release, release)
	}
	if l.mints && !p.beside {
		all = append(all, update) // the highest rate there was bounds nothing well
	}
	return all[draw.IntN(len(all))]
}

func javaArguments(c *call, l *limiter) []any {
	switch {
	case c.Timeout > 0:
		return []any{c.Permits, c.Timeout.Milliseconds()}
	case c.Name == op.Update:
		return []any{l.config.Type, c.Config.Rate, l.config.Interval.Milliseconds(), 0, true}
	case c.Name == op.Available:
		return nil
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

func TestRedissonsAnswers(t *testing.T) {
	t.Parallel()
	script := "command: (EVAL), params: [assert(rate ~= false, 'RateLimiter is not initialized') 'could not exceed defined rate']"
	for message, want := range map[string]op.Outcome{
		"ERR user_script:1: Requested permits amount could not exceed defined rate. channel: [1] " + script: op.Exceeds,
		"ERR user_script:1: RateLimiter is not initialized. channel: [1] " + script:                         op.Missing,
		"Unable to write command into connection! Node source: NodeSource, " + script:                       op.Unknown,
	} {
		err := &javadriver.ThrownError{Message: message}
		assert.Equal(t, want, javaAnswer(&call{Op: try}, nil, err).Outcome, message)
	}
}

// figures are what calls came to, theirs or ours.
type figures struct {
	calls, granted, over, lost, late, errors int64
}

// sumUp returns the figures of the calls to count, and of the pools that they used.
func (r *round) sumUp(counts func(c *call) bool) (f figures) {
	slack := r.slack()
	for i := range r.calls {
		c := &r.calls[i]
		if !counts(c) {
			continue
		}
		f.calls++
		if c.granted() {
			f.granted += c.permitsOf(c.Limiters[0])
		}
		if c.End-c.Start > c.Bound+slack {
			f.late++
		}
		if c.of(op.Unknown, op.Unavailable, op.Failed) {
			f.errors++
		}
	}
	for _, l := range r.limiters {
		for _, p := range r.pools(l) {
			used := false
			for _, c := range p.calls {
				used = used || counts(c)
			}
			if !used || l.wild || l.resets || r.damaged(l) || !l.isRate() {
				continue
			}
			if l.counted() {
				over, lost := r.balance(p)
				f.over, f.lost = f.over+over, f.lost+lost
			} else {
				worst := r.worstSpan(p)
				f.over += max(0, worst.sum-worst.allowed)
			}
		}
	}
	return f
}

// balance is how many permits callers hold above the limit, and how many are lost, in a pool
// that nothing comes back to by itself: they are not free, and no caller holds them. It leaves
// out what calls of killed programs asked for, and calls of programs that are not counted
// here if their answers are unknown.
func (r *round) balance(p *pool) (over, lost int64) {
	held, maybeBack, doubtful := int64(0), int64(0), r.strandedLeases(p.limiter)
	for _, c := range p.calls {
		switch {
		case c.Outcome == op.Killed, c.Name == charge, c.Redisson != r.redisson && c.of(op.Unknown, op.Gone):
			doubtful += c.Permits
		case c.Name == op.Release && c.Outcome == op.Done:
			held -= c.Permits
		case c.Name == op.Release:
			maybeBack += c.Permits // else the caller may try again
		case c.granted():
			held += c.Permits
		}
	}
	over = max(0, held-maybeBack-doubtful-r.highest(p.limiter))
	s, err := p.read(r.t.Context(), r.admin, p.id)
	if err != nil || !s.pair.HasValue {
		return over, 0
	}
	rate, err := s.config.Field("rate")
	if err != nil {
		return over, 0
	}
	return over, max(0, rate-s.pair.Value-held-doubtful)
}

// recordRedisson adds the figures of a round's programs with Redisson to a table, or those of
// all if it is measured beside one with Redisson.
func (r *round) recordRedisson() {
	who := "Redisson " + r.redisson
	switch {
	case r.beside && r.redisson == "":
		who = "this package"
	case r.redisson == "":
		return
	case !r.beside:
		who += " beside this package"
	}
	f := r.figures
	redistest.Record(r.t, "chaos-redisson", r.seed, r.number, r.servers, r.mood, who, len(r.events),
		f.calls, f.granted, f.over, f.lost, f.late, f.errors)
	r.t.Logf("%s: %s", who, f)
}

func (f figures) String() string {
	return fmt.Sprintf("%d calls, %d permits granted, %d over the limit, %d lost, %d calls late, %d failed",
		f.calls, f.granted, f.over, f.lost, f.late, f.errors)
}
