package main

import (
	"container/heap"
	"time"
)

// events are future events, in virtual time.
type events struct {
	queue queue
	now   time.Duration
	count int
}

type event struct {
	at    time.Duration
	place int // among those of one time
	do    func()
}

// after has something happen after a while.
func (e *events) after(d time.Duration, do func()) {
	e.count++
	heap.Push(&e.queue, event{e.now + max(0, d), e.count, do})
}

// run has all happen that is due until then.
func (e *events) run(until time.Duration) {
	for len(e.queue) > 0 && e.queue[0].at <= until {
		next, _ := heap.Pop(&e.queue).(event)
		e.now = next.at
		next.do()
	}
	e.now = until
}

type queue []event

func (q *queue) Len() int { return len(*q) }

func (q *queue) Less(i, j int) bool {
	a, b := (*q)[i], (*q)[j]
	return a.at < b.at || a.at == b.at && a.place < b.place
}

func (q *queue) Swap(i, j int) { (*q)[i], (*q)[j] = (*q)[j], (*q)[i] }

func (q *queue) Push(x any) {
	next, _ := x.(event)
	*q = append(*q, next)
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}
