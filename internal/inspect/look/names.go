package look

import (
	"context"
	"time"
)

// Names returns the names of Clients; "" for unknown ones.
type Names interface {
	OfMark(mark string) string // by what the ids of their members begin with
	OfID(id string) string
}

// names are the known names, and how to read them.
type names struct {
	read  func(context.Context) (Names, error)
	asked time.Time
	known Names // nil: none
}

// learn reads the names again if they are old.
func (n *names) learn(ctx context.Context) {
	if n.read == nil || !n.asked.IsZero() && time.Since(n.asked) < time.Minute {
		return
	}
	n.asked = time.Now()
	if known, err := n.read(ctx); err == nil {
		n.known = known
	}
}

func (n *names) ofMark(mark string) string {
	if n.known == nil {
		return ""
	}
	return n.known.OfMark(mark)
}

// ofID returns the name of that id.
func (n *names) ofID(id string) string {
	if n.known != nil {
		if name := n.known.OfID(id); name != "" {
			return name
		}
	}
	return ClientWord + id
}
