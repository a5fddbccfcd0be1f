package chaos_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// teller is the journal of a process: lines for the one that started it.
type teller struct {
	mu   sync.Mutex
	last int // call
	late *pulse
}

func (t *teller) tell(m message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.write(m)
}

func (t *teller) write(m message) {
	line, err := json.Marshal(m)
	if err == nil {
		_, err = os.Stdout.Write(append(line, '\n'))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (t *teller) born(id string) { t.tell(message{Born: id}) }

func (t *teller) begin(c *call) (end func(c call)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	number := t.last
	t.write(message{Number: number, Begun: c})
	return func(c call) { t.tell(message{Number: number, Ended: &c, Late: t.late.worst()}) }
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
	if err := json.Unmarshal(text, &order); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	before := runtime.NumGoroutine()
	ctx, stop := context.WithCancel(context.Background())
	t := &teller{late: &pulse{}}
	// The two processes' clocks run alike; from here on nobody can set this one.
	now := time.Now()
	began := now.Add(-now.Sub(time.Unix(0, order.Began)))
	p := order.plan()
	who := p.clients[slices.IndexFunc(p.clients, func(c clientPlan) bool { return c.name == order.Worker })]
	w := newGoCrew(p, who, order.Life, order.Route, began, t)
	var working sync.WaitGroup
	working.Go(func() { t.late.beat(ctx.Done()) })
	working.Go(func() { w.work(ctx) })
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		m := message{}
		var err error
		switch orders.Text() {
		case orderRest:
			stop()
			working.Wait()
			m.Rests = true
		case orderReplace:
			m.Closed, err = w.replace()
		case orderLeave:
			if m.Closed, err = w.current(), w.leave(); err == nil {
				err = awaitGoroutines(before)
			}
		}
		if err != nil {
			m.Error = err.Error()
		}
		if t.tell(m); orders.Text() == orderLeave {
			os.Exit(0)
		}
	}
	os.Exit(1) // nobody is left to be told
}
