package chaos_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/merge"
	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
	"github.com/rratelimiter/rratelimiter/internal/test/op"
)

// A task is what another process of the test binary must do: the crew of a worker. The seed and
// the number draw it there as they do here.
type task struct {
	Seed     uint64   `json:"seed"`
	Number   int      `json:"number"`
	Arenas   []string `json:"arenas"`
	Beside   bool     `json:"beside"`
	Releases []string `json:"releases"` // of Redisson that rounds may have
	Worker   string   `json:"worker"`
	Life     string   `json:"life"`
	Began    int64    `json:"began"`   // when the round did, in nanoseconds since 1970
	Journal  string   `json:"journal"` // the file to write
	Route    route    `json:"route"`
}

func newTask(p *plan, who clientPlan, life int) task {
	return task{
		Seed: p.seed, Number: p.number, Arenas: p.arenas, Beside: p.beside, Releases: p.releases,
		Worker: who.name, Life: fmt.Sprintf("-%d", life),
	}
}

// An entry is a line of JSON in the journal of a process.
type entry struct {
	Born   string        `json:"born,omitempty"` // the id of a new Client
	Number int           `json:"number,omitempty"`
	Begun  *call         `json:"begun,omitempty"`  // the call of that number
	Ended  *call         `json:"ended,omitempty"`  // the same call with its answer
	Closed string        `json:"closed,omitempty"` // the id of a Client
	Late   time.Duration `json:"late,omitempty"`   // how long the machine has kept goroutines there from running
}

// processCrew is a crew in another process, which may be killed: then the next one does
// its work.
type processCrew struct {
	r     *round
	plan  clientPlan
	route route

	mu      sync.Mutex
	lives   int
	now     *javadriver.Process
	journal string // the file that it writes
	id      string // its Client
}

func newProcessCrew(r *round, plan clientPlan, to route) *processCrew {
	w := &processCrew{r: r, plan: plan, route: to}
	w.start()
	return w
}

func (w *processCrew) start() {
	w.lives++
	w.journal = filepath.Join(w.r.t.TempDir(), "journal")
	order := newTask(&w.r.plan, w.plan, w.lives)
	order.Began, order.Route, order.Journal = w.r.began.UnixNano(), w.route, w.journal
	text, err := json.Marshal(order)
	require.NoError(w.r.t, err)
	self, err := os.Executable()
	require.NoError(w.r.t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), taskVariable+"="+string(text))
	w.now, err = javadriver.Start(cmd, "the process of "+w.plan.name)
	require.NoError(w.r.t, err)
	if w.id, err = w.order(w.now, "Current"); err != nil {
		w.r.t.Errorf("a process ended at once: %v", err)
	}
}

// order tells the process to do something and returns the id of its Client then. The
// process is ended if it does not answer.
func (w *processCrew) order(p *javadriver.Process, what string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*rest)
	defer cancel()
	id, err := javadriver.Call[string](ctx, p, "Orders."+what)
	if errors.Is(err, context.DeadlineExceeded) {
		p.Kill()
	}
	return id, err
}

// read notes all that a process that has ended, or was to end from a moment on, wrote in its
// journal, as if it were here. The results of calls without an answer are unknown, and how long
// the process took to end is not theirs.
func (w *processCrew) read(ending time.Duration) {
	text, err := os.ReadFile(w.journal)
	require.NoError(w.r.t, err)
	begun, at := map[int]*call{}, w.r.now()
	var open []string
	for line := range bytes.Lines(text) {
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			if bytes.HasSuffix(line, []byte("\n")) { // else it was cut off
				w.r.violate("process", "", "%s tells %q: %v", w.plan.name, line, err)
			}
			continue
		}
		w.r.pulse.note(e.Late)
		switch {
		case e.Born != "":
			w.r.born(e.Born)
			open = append(open, e.Born)
		case e.Begun != nil:
			begun[e.Number] = e.Begun
		case e.Ended != nil:
			delete(begun, e.Number)
			w.r.tell(*e.Ended)
		case e.Closed != "":
			open = slices.DeleteFunc(open, func(id string) bool { return id == e.Closed })
		}
	}
	for _, c := range begun {
		c.Outcome, c.End = op.Killed, at
		c.Bound += at - ending
		w.r.tell(*c)
	}
	w.r.died(open, at-4*w.plan.callTimeout)
}

func (w *processCrew) state() (now *javadriver.Process, id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now, w.id
}

func (w *processCrew) work(ctx context.Context) {
	<-ctx.Done()
	p, _ := w.state()
	if _, err := w.order(p, "Rest"); err != nil {
		w.r.violate("process", "", "%s: %v", w.plan.name, err)
	}
}

func (w *processCrew) current() string {
	_, id := w.state()
	return id
}

func (w *processCrew) replace() (old string, err error) {
	p, old := w.state()
	id, err := w.order(p, "Replace")
	if err != nil {
		return old, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.id = id
	return old, nil
}

func (w *processCrew) leave() error {
	p, _ := w.state()
	_, err := w.order(p, "Leave")
	p.Close()
	w.read(w.r.now())
	return errors.Join(err, p.Wait())
}

// kill ends the process in the middle of its calls, and has another one take over.
func (w *processCrew) kill() (left string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	left = w.id
	ending := w.r.now()
	w.now.Kill()
	w.read(ending)
	w.start()
	return left
}

var processKilled = &fault{name: "process killed", mood: gentle, only: (*plan).hasProcess, do: func(r *round, draw *rand.Rand) *event {
	if crew, ok := r.drawWorker(draw).crew.(interface{ kill() (left string) }); ok {
		if left := crew.kill(); left != "" {
			return &event{text: left}
		}
	}
	return nil
}}

func (p *plan) hasProcess() bool {
	return slices.ContainsFunc(p.clients, func(c clientPlan) bool { return c.process || c.redisson != "" })
}

// drawProcesses has some workers be processes of their own.
func (p *plan) drawProcesses() {
	draw := p.draw("processes")
	for i := range p.clients {
		p.clients[i].process = draw.IntN(4) == 0
	}
}

// died notes Clients whose process was killed. Calls that had been answered before the
// moment had all been given back what they left.
func (r *round) died(ids []string, moment time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		r.dead[id] = moment
	}
}

// cutOff reports whether the call may have left permits in use that no caller knows of,
// since its process was killed before it could give them back, or during the call.
func (r *round) cutOff(p *pool, c *call) bool {
	if c.Outcome == op.Killed {
		return true
	}
	moment, dead := r.dead[c.Client]
	return dead && p.mayKeep(c) && c.End > moment
}

// strandedLeases is how many permits the leases of Clients may have held whose process
// was killed: one in use and one asked for.
func (r *round) strandedLeases(l *limiter) int64 {
	if l.lease == 0 {
		return 0
	}
	return 2 * int64(len(r.dead)) * l.leased()
}

// taskVariable names the environment variable that has a task.
const taskVariable = "RRL_CHAOS_TASK"

// All members of Clients are merged that may be, but those of limiters that are exact.
func TestMain(m *testing.M) {
	merge.Everything()
	if text := os.Getenv(taskVariable); text != "" {
		serve([]byte(text))
		return
	}
	os.Exit(m.Run())
}

func TestCallsBoundThePermitsInUse(t *testing.T) {
	t.Parallel()
	const second = time.Second
	did := func(name op.Name, permits int64, o op.Outcome) call {
		return call{Op: op.Op{Name: name, Permits: permits}, Answer: op.Answer{Outcome: o, OK: o == op.Done}}
	}
	take := func(permits int64, o op.Outcome) call { return did(op.Try, permits, o) }
	back := did(op.Release, 2, op.Done)
	gone := take(3, op.Gone)
	gone.End = 2 * second
	ofAnother := gone
	ofAnother.Client = "c2"
	for _, tc := range []struct {
		name     string
		redisson string // whose calls they are; else those of a process that was killed
		calls    []call
		lowest   int64 // permits in use that are right
		most     int64 // none if it is below
	}{
		{"in mid call", "", []call{take(3, op.Killed)}, 0, 3},
		{"as some are given back", "", []call{take(3, op.Done), did(op.Release, 2, op.Killed)}, 1, 3},
		{"as a context has just ended", "", []call{gone}, 0, 3},
		{"long after a context has ended", "", []call{take(3, op.Gone)}, 0, 0},
		{"of another one", "", []call{ofAnother}, 0, 0},
		{"granted", newestRedisson, []call{take(3, op.Done)}, 3, 3},
		{"given up", newestRedisson, []call{take(3, op.Unknown)}, 0, 3},
		{"released, which leaves the member", newestRedisson, []call{take(3, op.Done), back}, 1, 3},
		{"over the limit", newestRedisson, []call{take(8, op.Done), take(3, op.Done)}, 11, 10},
		{"over the limit, as a release came back again", newestRedisson, []call{take(8, op.Done), back, take(5, op.Done)}, 11, 13},
	} {
		l := &limiter{name: "a", kind: overall, config: rratelimiter.PerHour(10), redisson: tc.redisson}
		for i := range tc.calls {
			tc.calls[i].Limiters, tc.calls[i].Redisson = []string{l.name}, tc.redisson
		}
		for inUse := int64(-1); inUse < 15; inUse++ {
			r := &round{plan: plan{mood: gentle, limiters: []*limiter{l}, redisson: tc.redisson}, calls: tc.calls}
			if tc.redisson == "" {
				r.dead = map[string]time.Duration{"": second}
			}
			r.checkCount(r.pools(l)[0], &state{inUse: inUse})
			assert.Equal(t, inUse < tc.lowest || inUse > tc.most, len(r.violations) > 0, "%s, %d in use: %v", tc.name, inUse, r.violations)
		}
	}
}

// writer is the journal of a process: lines in a file, which outlives it.
type writer struct {
	file *os.File // appended to
	last atomic.Int64
	late pulse
}

func (w *writer) write(e entry) {
	line, err := json.Marshal(e)
	if err == nil {
		_, err = w.file.Write(append(line, '\n'))
	}
	fatal(err)
}

// fatal ends the process on an error.
func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (w *writer) born(id string) { w.write(entry{Born: id}) }

func (w *writer) begin(c *call) (end func(c call)) {
	number := int(w.last.Add(1))
	w.write(entry{Number: number, Begun: c})
	return func(c call) { w.write(entry{Number: number, Ended: &c, Late: w.late.worst()}) }
}

// plan returns the round's plan.
func (order *task) plan() *plan {
	if order.Beside {
		return newBesidePlan(order.Seed, order.Number, order.Arenas, "")
	}
	p := newPlan(order.Seed, order.Number, order.Arenas)
	p.drawRedisson(order.Releases)
	return p
}

func TestAProcessDrawsTheSamePlan(t *testing.T) {
	t.Parallel()
	for number := range 200 {
		p := newPlan(7, number+1, arenas)
		p.drawRedisson([]string{newestRedisson})
		text, err := json.Marshal(newTask(p, p.clients[0], 1))
		require.NoError(t, err)
		var order task
		require.NoError(t, json.Unmarshal(text, &order))
		assert.Equal(t, p, order.plan())
	}
}

// serve is all that a process of a task does.
func serve(text []byte) {
	logging.Disable()
	var order task
	fatal(json.Unmarshal(text, &order))
	o := &Orders{before: runtime.NumGoroutine()}
	var err error
	o.journal.file, err = os.OpenFile(order.Journal, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	fatal(err)
	ctx, stop := context.WithCancel(context.Background())
	o.stop = stop
	// The two processes' clocks run alike; from here on no one can set this one.
	now := time.Now()
	began := now.Add(-now.Sub(time.Unix(0, order.Began)))
	p := order.plan()
	who := p.clients[slices.IndexFunc(p.clients, func(c clientPlan) bool { return c.name == order.Worker })]
	o.crew = newGoCrew(p, who, order.Life, order.Route, began, &o.journal)
	o.working.Go(func() { o.journal.late.beat(ctx.Done()) })
	o.working.Go(func() { o.crew.work(ctx) })
	server := rpc.NewServer()
	fatal(server.Register(o))
	server.ServeCodec(jsonrpc.NewServerCodec(orderPipe{os.Stdin, os.Stdout, o}))
}

// Orders are what a process can be asked to do. Each answers with the id of its Client.
type Orders struct {
	crew    *goCrew
	journal writer
	stop    context.CancelFunc // of the work
	working sync.WaitGroup
	before  int         // goroutines
	left    atomic.Bool // all is closed
}

// Current does nothing.
func (o *Orders) Current(_ []string, id *string) error {
	*id = o.crew.current()
	return nil
}

// Rest has no more calls made; it returns once all are answered.
func (o *Orders) Rest(_ []string, id *string) error {
	o.stop()
	o.working.Wait()
	return o.Current(nil, id)
}

// Replace closes the Client once callers have another one.
func (o *Orders) Replace(_ []string, id *string) error {
	old, err := o.crew.replace()
	o.closed(old, err)
	*id = o.crew.current()
	return err
}

// Leave closes all.
func (o *Orders) Leave(_ []string, id *string) error {
	*id = o.crew.current()
	err := o.crew.leave()
	o.closed(*id, err)
	o.left.Store(err == nil)
	if err != nil {
		return err
	}
	return awaitGoroutines(o.before + 1) // the one that does this
}

func (o *Orders) closed(id string, err error) {
	if err == nil {
		o.journal.write(entry{Closed: id})
	}
}

// orderPipe is the standard input and output. The process ends at once with its input.
type orderPipe struct {
	io.ReadCloser
	io.Writer

	o *Orders
}

func (p orderPipe) Read(b []byte) (int, error) {
	n, err := p.ReadCloser.Read(b)
	if err != nil && p.o.left.Load() {
		os.Exit(0)
	}
	fatal(err)
	return n, err
}
