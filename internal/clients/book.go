package clients

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// Host is the owner of a Book.
type Host struct {
	Begin  func() error    // counts background work in; an error says that there must be no more
	End    func()          // counts it out
	Failed func(err error) // the name could not be noted; called once until it is
}

// Book keeps the name of one Client noted in Redis while the Client is used, in the
// background: no one waits for it. A nil Book notes nothing.
type Book struct {
	to    script.Runner
	host  Host
	entry string
	ctx   context.Context // of attempts; ends soon after Stop
	stop  context.CancelFunc

	made  time.Time
	next  atomic.Int64 // from when a use has the name noted, as time since made
	pause atomic.Int64 // until the next attempt if the last one failed; otherwise 0
}

const (
	// firstPause is after how long a name that could not be noted is tried again.
	firstPause = time.Minute

	// grace is how long Stop leaves an attempt that is under way.
	grace = 100 * time.Millisecond
)

// NewBook returns a Book for a Client.
func NewBook(to script.Runner, c Client, host Host) *Book {
	entry, err := json.Marshal(c)
	if err != nil {
		panic(err) // three strings
	}
	b := &Book{to: to, host: host, entry: string(entry), made: time.Now()}
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b
}

// Used notes the name if it is time to. It is called at each use of the Client.
func (b *Book) Used(at time.Time) {
	if b == nil {
		return
	}
	now, next := at.Sub(b.made), b.next.Load()
	if int64(now) < next || !b.next.CompareAndSwap(next, int64(now+renewal)) || b.host.Begin() != nil {
		return
	}
	go func() {
		defer b.host.End()
		_, err := b.to.Run(b.ctx, &script.Call{
			Script: lua.NoteClient, Keys: script.KeysOf(Key), Args: script.Constant{b.entry, life.Milliseconds()},
			Repeat: true,
		})
		b.noted(err)
	}()
}

// Stop ends the attempt under way after a moment: a program that ends at once should
// be known too.
func (b *Book) Stop() {
	if b != nil {
		time.AfterFunc(grace, b.stop)
	}
}

func (b *Book) noted(err error) {
	if err == nil || b.ctx.Err() != nil {
		b.pause.Store(0)
		return
	}
	before := time.Duration(b.pause.Load())
	if before == 0 {
		b.host.Failed(err)
	}
	pause := min(max(firstPause, 2*before), renewal)
	b.pause.Store(int64(pause))
	b.next.Store(int64(time.Since(b.made) + pause))
}
