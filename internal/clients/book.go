package clients

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Host is whom a Book works for.
type Host struct {
	Begin  func() error    // counts background work in, or tells that there is to be no more
	End    func()          // counts it out
	Failed func(err error) // the name could not be noted; told once until it is
}

// Book keeps the name of one Client noted in Redis while the Client is used, in the
// background: nobody waits for it. A nil Book notes nothing.
type Book struct {
	to    script.Runner
	host  Host
	entry string
	ctx   context.Context // of attempts; ends soon after Stop
	stop  context.CancelFunc

	used atomic.Bool // since it was tried last to note the name

	mu      sync.Mutex
	stopped bool
	running bool // the name is noted, or to be noted
	timer   *time.Timer
	pause   time.Duration // until the next attempt where the last one failed; else 0
}

const (
	// firstPause is after how long a name that could not be noted is tried again.
	firstPause = time.Minute

	// grace is how long Stop leaves an attempt that is under way.
	grace = 100 * time.Millisecond
)

// NewBook returns a Book for a Client.
func NewBook(to script.Runner, c Client, host Host) *Book {
	b := &Book{to: to, host: host, entry: c.entry()}
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b
}

// Used is told of each use of the Client.
func (b *Book) Used() {
	if b == nil || b.used.Load() || b.used.Swap(true) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.running {
		b.note()
	}
}

// Stop has the Book note nothing more but what is under way, for a moment: a program
// that ends at once is to be known too.
func (b *Book) Stop() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	if b.timer != nil {
		b.timer.Stop()
	}
	time.AfterFunc(grace, b.stop)
}

// due notes the name again if the Client was used. Else the next use does.
func (b *Book) due() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running = false
	if b.used.Load() {
		b.note()
	}
}

// note notes the name, and sees to it that it is noted again. b.mu is held.
func (b *Book) note() {
	if b.stopped || b.host.Begin() != nil {
		return
	}
	b.running = true
	go func() {
		defer b.host.End()
		_, err := b.to.Run(b.ctx, &script.Call{
			Script: lua.NoteClient, Keys: script.KeysOf(Key), Args: script.Constant{b.entry, life.Milliseconds()},
			Repeat: true,
		})
		b.noted(err)
	}()
}

func (b *Book) noted(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		b.stop()
		return
	}
	b.used.Store(false)
	next := renewal
	if err == nil {
		b.pause = 0
	} else {
		if b.pause == 0 {
			b.host.Failed(err)
		}
		b.pause = min(max(firstPause, 2*b.pause), renewal)
		next = b.pause
	}
	b.timer = time.AfterFunc(next, b.due)
}
