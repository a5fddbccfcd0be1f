package chaos_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

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

// plan returns that of the round.
func (order *task) plan() *plan {
	if order.Beside {
		return newBesidePlan(order.Seed, order.Number, order.Arenas, "")
	}
	p := newPlan(order.Seed, order.Number, order.Arenas)
	p.drawRedisson(order.Releases)
	return order.Reduced.of(p)
}

// serve is all that a process of a task does.
func serve(text []byte) {
	redis.SetLogger(silence{})
	var order task
	fatal(json.Unmarshal(text, &order))
	o := &Orders{before: runtime.NumGoroutine()}
	var err error
	o.journal.file, err = os.OpenFile(order.Journal, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	fatal(err)
	ctx, stop := context.WithCancel(context.Background())
	o.stop = stop
	// The two processes' clocks run alike; from here on nobody can set this one.
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

// Orders is what a process can be told to do. Each answers with the id of its Client.
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
