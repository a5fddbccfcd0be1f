package look

import (
	"context"
	"time"
)

// Names tells what Clients are called; "" is for those that nobody knows.
type Names interface {
	OfMark(mark string) string // by what the ids of their members begin with
	OfID(id string) string
}

// names are those that are known, and how to learn them.
type names struct {
	read  func(context.Context) (Names, error)
	asked time.Time
	known Names // nil: none
}

// learn reads the names anew where they are old.
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

// ofID tells who has that id.
func (n *names) ofID(id string) string {
	if n.known != nil {
		if name := n.known.OfID(id); name != "" {
			return name
		}
	}
	return ClientWord + id
}
