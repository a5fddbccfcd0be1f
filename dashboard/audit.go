package dashboard

import (
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/httpjson"
	"github.com/rratelimiter/rratelimiter/internal/inspect/look"
)

// maxEntries is how many changes are kept.
const maxEntries = 200

// fact is something with its name, as the page shows it.
type fact [2]string

// Outcomes of changes.
const (
	done    = "done"
	refused = "refused" // the change can't be made as things are
	failed  = "failed"
	unknown = "unknown" // whether it was made
	partly  = "in part" // of many limiters
)

// entry is a change, made or tried.
type entry struct {
	Number  int64     `json:"entry"`
	At      time.Time `json:"at"`
	Who     string    `json:"who"`
	Action  string    `json:"action"`
	Limiter named     `json:"limiter"`
	Before  []fact    `json:"before"`
	After   []fact    `json:"after"`
	Outcome string    `json:"outcome"`
	Error   string    `json:"error,omitempty"`
	Undo    bool      `json:"undo"`             // it can be undone
	Undone  int64     `json:"undone,omitempty"` // the entry by which it was

	name string
	undo *undo
}

// undo is what takes a change of a rate back.
type undo struct {
	before, after rratelimiter.Config
	origin        look.Origin // of before
	keepState     bool
	expired       bool // it had a time to live, which the change has ended
	override      bool // its rate had an end, which the change has taken away
}

// audit keeps the newest changes.
type audit struct {
	mu      sync.Mutex
	last    int64
	entries []*entry // the newest last
}

// add keeps an entry and returns it as it is listed. Of one that undoes another, undoes
// is that one's number.
func (a *audit) add(e *entry, undoes int64) entry {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last++
	e.Before, e.After = append([]fact{}, e.Before...), append([]fact{}, e.After...)
	e.Number, e.At, e.Undo = a.last, time.Now(), e.undo != nil && e.Outcome == done
	if e.Outcome == done {
		for _, old := range a.entries {
			switch {
			case undoes != 0 && old.Number == undoes:
				old.Undone, old.Undo = e.Number, false
			case e.undo != nil && old.name == e.name:
				old.Undo = false // what it led to is no longer there
			}
		}
	}
	a.entries = append(a.entries, e)
	if len(a.entries) > maxEntries {
		a.entries = slices.Delete(a.entries, 0, len(a.entries)-maxEntries)
	}
	return *e
}

// update changes an entry and returns it as it is listed.
func (a *audit) update(e *entry, change func()) entry {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
	return *e
}

// undoable returns the limiter of an entry that can be undone, and how.
func (a *audit) undoable(number int64) (name string, how *undo, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.entries {
		if e.Number == number && e.Undo {
			return e.name, e.undo, nil
		}
	}
	return "", nil, httpjson.Refuse(http.StatusConflict, "this change can't be undone: it was already, another came after it, or it is none of a rate")
}

func (c *call) listAudit() error {
	c.audit.mu.Lock()
	all := make([]entry, 0, len(c.audit.entries))
	for _, e := range slices.Backward(c.audit.entries) {
		all = append(all, *e)
	}
	c.audit.mu.Unlock()
	return c.ok(struct {
		Entries []entry `json:"entries"`
	}{all})
}
