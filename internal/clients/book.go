package clients

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lua"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Book keeps the name of one Client noted in Redis while the Client is used, in the
// background: no one waits for it. A nil Book notes nothing.
type Book struct {
	note   func(ctx context.Context, c *script.Call, done func(error))
	failed func(err error)
	entry  string
	ctx    context.Context // of attempts; ends soon after Stop
	stop   context.CancelFunc

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

// NewBook returns a Book for a Client. note makes a call in the background, and then calls done; failed is
// told why the name could not be noted, once until it is.
func NewBook(c Client, note func(ctx context.Context, c *script.Call, done func(error)), failed func(err error)) *Book {
	entry, _ := json.Marshal(c) // three strings
	b := &Book{note: note, failed: failed, entry: string(entry), made: time.Now()}
	b.ctx, b.stop = context.WithCancel(context.Background())
	return b
}

// Used notes the name if it is time to. It is called at each use of the Client.
func (b *Book) Used(at time.Time) {
	if b == nil {
		return
	}
	now, next := at.Sub(b.made), b.next.Load()
	if int64(now) < next || !b.next.CompareAndSwap(next, int64(now+renewal)) {
		return
	}
	args := script.Constant{b.entry, life.Milliseconds()}
	b.note(b.ctx, &script.Call{Script: lua.NoteClient, Keys: script.KeysOf(Key), Args: args, Repeat: true}, b.noted)
}

// Stop ends the attempt under way after a moment: a program that ends at once should be known too.
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
		b.failed(err)
	}
	pause := min(max(firstPause, 2*before), renewal)
	b.pause.Store(int64(pause))
	b.next.Store(int64(time.Since(b.made) + pause))
}
