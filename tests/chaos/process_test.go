package chaos_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/test/javadriver"
)

// A task is what another process of the test binary is told to do: the crew of a worker.
// The seed and the number draw it there as they do here.
type task struct {
	Seed     uint64    `json:"seed"`
	Number   int       `json:"number"`
	Arenas   []string  `json:"arenas"`
	Beside   bool      `json:"beside"`
	Releases []string  `json:"releases"` // of Redisson that rounds may have
	Reduced  reduction `json:"reduced"`  // what the round does without
	Worker   string    `json:"worker"`
	Life     string    `json:"life"`
	Began    int64     `json:"began"` // when the round did, in nanoseconds since 1970
	Route    route     `json:"route"`
}

func newTask(p *plan, who clientPlan, life int) task {
	return task{
		Seed: p.seed, Number: p.number, Arenas: p.arenas, Beside: p.beside, Releases: p.releases, Reduced: p.reduced,
		Worker: who.name, Life: fmt.Sprintf("-%d", life),
	}
}

// What a process is told, a line each. It ends at once with its input.
const (
	orderRest    = "rest"    // make no more calls; said once all are answered
	orderReplace = "replace" // close the Client once callers have another one
	orderLeave   = "leave"   // close all, and end
)

// A message is what a process tells, a line of JSON each.
type message struct {
	Born   string        `json:"born,omitempty"` // the id of a new Client
	Number int           `json:"number,omitempty"`
	Begun  *call         `json:"begun,omitempty"` // the call of that number
	Ended  *call         `json:"ended,omitempty"` // the same call with its answer
	Late   time.Duration `json:"late,omitempty"`  // for so long the machine has kept goroutines there from running
	Rests  bool          `json:"rests,omitempty"`
	Closed string        `json:"closed,omitempty"` // the id of a Client
	Error  string        `json:"error,omitempty"`  // what went wrong as it was closed
}

// processCrew is a crew in another process, which may be killed: then the next one does
// its work. All it tells is noted as if it were here.
type processCrew struct {
	r     *round
	plan  clientPlan
	route route

	mu    sync.Mutex
	lives int
	now   *process
}

// process is one of them.
type process struct {
	r       *round
	plan    clientPlan
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	stderr  javadriver.Tail
	answers chan message  // to what it was told
	ended   chan struct{} // all it told has been read
	err     error         // how it ended; to be read once it has

	mu      sync.Mutex
	open    []string      // Clients that were not closed, the newest last
	begun   map[int]*call // calls without an answer
	started chan struct{} // it has a Client
}

func newProcessCrew(r *round, plan clientPlan, to route) *processCrew {
	w := &processCrew{r: r, plan: plan, route: to}
	w.now = w.start()
	return w
}

func (w *processCrew) start() *process {
	w.lives++
	order := newTask(&w.r.plan, w.plan, w.lives)
	order.Began, order.Route = w.r.began.UnixNano(), w.route
	text, err := json.Marshal(order)
	require.NoError(w.r.t, err)
	self, err := os.Executable()
	require.NoError(w.r.t, err)
	p := &process{
		r: w.r, plan: w.plan, cmd: exec.Command(self), answers: make(chan message, 3),
		ended: make(chan struct{}), begun: map[int]*call{}, started: make(chan struct{}),
	}
	p.cmd.Env = append(os.Environ(), taskVariable+"="+string(text))
	p.cmd.Stderr = &p.stderr
	p.stdin, err = p.cmd.StdinPipe()
	require.NoError(w.r.t, err)
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(w.r.t, err)
	require.NoError(w.r.t, p.cmd.Start())
	go p.read(stdout)
	select {
	case <-p.started:
	case <-p.ended:
		w.r.t.Errorf("a process ended at once: %v\n%s", p.err, p.stderr.String())
	}
	return p
}

// read notes all that the process tells.
func (p *process) read(stdout io.Reader) {
	defer close(p.ended)
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break // a line that is not whole was cut off
		}
		var m message
		if err := json.Unmarshal(line, &m); err != nil {
			p.r.violate("process", "", "%s tells %q: %v", p.plan.name, line, err)
			continue
		}
		p.hear(m)
	}
	p.err = p.cmd.Wait()
}

func (p *process) hear(m message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.r.pulse.note(m.Late)
	switch {
	case m.Born != "":
		p.r.born(m.Born)
		if p.open = append(p.open, m.Born); len(p.open) == 1 {
			close(p.started)
		}
	case m.Begun != nil:
		p.begun[m.Number] = m.Begun
	case m.Ended != nil:
		delete(p.begun, m.Number)
		p.r.tell(*m.Ended)
	default:
		if m.Closed != "" {
			p.open = slices.DeleteFunc(p.open, func(id string) bool { return id == m.Closed })
		}
		p.answers <- m
	}
}

// order tells the process to do something and returns what it says.
func (p *process) order(what string) (message, error) {
	if _, err := io.WriteString(p.stdin, what+"\n"); err != nil {
		<-p.ended
		return message{}, fmt.Errorf("%w: %w\n%s", err, p.err, p.stderr.String())
	}
	select {
	case m := <-p.answers:
		if m.Error != "" {
			return m, errors.New(m.Error)
		}
		return m, nil
	case <-p.ended:
		return message{}, fmt.Errorf("the process ended: %w\n%s", p.err, p.stderr.String())
	case <-time.After(2 * rest):
		_ = p.cmd.Process.Kill()
		return message{}, fmt.Errorf("the process does not answer to %q", what)
	}
}

// kill ends the process in the middle of its calls. What they came to, nobody knows.
func (p *process) kill() (open []string) {
	_ = p.cmd.Process.Kill()
	<-p.ended
	at := p.r.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.begun {
		c.Answer, c.End = killed, at
		p.r.tell(*c)
	}
	p.r.died(p.open, at-4*p.plan.callTimeout)
	return p.open
}

func (w *processCrew) process() *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *processCrew) work(ctx context.Context) {
	<-ctx.Done()
	if _, err := w.process().order(orderRest); err != nil {
		w.r.violate("process", "", "%s: %v", w.plan.name, err)
	}
}

func (w *processCrew) current() string {
	p := w.process()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open[len(p.open)-1]
}

func (w *processCrew) replace() (old string, err error) {
	m, err := w.process().order(orderReplace)
	return m.Closed, err
}

func (w *processCrew) leave() error {
	p := w.process()
	if _, err := p.order(orderLeave); err != nil {
		return err
	}
	<-p.ended
	if p.err != nil {
		return fmt.Errorf("%w\n%s", p.err, p.stderr.String())
	}
	return nil
}

// kill has another process take over.
func (w *processCrew) kill() (left string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	left = fmt.Sprint(w.now.kill())
	w.now = w.start()
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

// cutOff tells whether the call may have left permits in use that nobody was told of,
// since its process was killed before it could give them back, or during the call.
func (r *round) cutOff(p *pool, c *call) bool {
	if c.Answer == killed {
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

func TestMain(m *testing.M) {
	if text := os.Getenv(taskVariable); text != "" {
		serve([]byte(text))
		return
	}
	os.Exit(m.Run())
}

func TestCallsBoundWhatIsInUse(t *testing.T) {
	t.Parallel()
	const second = time.Second
	take := func(permits int64, a answer) call { return call{Op: opTry, Permits: permits, Answer: a} }
	back := call{Op: opRelease, Permits: 2, Answer: done}
	for _, tc := range []struct {
		name     string
		redisson string // whose calls they are; else those of a process that was killed
		calls    []call
		lowest   int64 // permits in use that are right
		most     int64 // none if it is below
	}{
		{"in mid call", "", []call{take(3, killed)}, 0, 3},
		{"as some are given back", "", []call{take(3, granted), {Op: opRelease, Permits: 2, Answer: killed}}, 1, 3},
		{"as a context has just ended", "", []call{{Op: opTry, Permits: 3, Answer: gone, End: 2 * second}}, 0, 3},
		{"long after a context has ended", "", []call{take(3, gone)}, 0, 0},
		{"of another one", "", []call{{Op: opTry, Permits: 3, Answer: gone, End: 2 * second, Client: "c2"}}, 0, 0},
		{"granted", newestRedisson, []call{take(3, granted)}, 3, 3},
		{"given up", newestRedisson, []call{take(3, unknown)}, 0, 3},
		{"released, which leaves the member", newestRedisson, []call{take(3, granted), back}, 1, 3},
		{"over the limit", newestRedisson, []call{take(8, granted), take(3, granted)}, 11, 10},
		{"over the limit, as a release came back again", newestRedisson, []call{take(8, granted), back, take(5, granted)}, 11, 13},
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
