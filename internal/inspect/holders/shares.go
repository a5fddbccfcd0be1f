package holders

import (
	"cmp"
	"encoding/hex"
	"slices"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
)

// Kind is what is known about a client that has permits in use.
type Kind string

// The kinds.
const (
	// Named is a Client that has a name.
	Named Kind = "named"

	// Unnamed is a Client that has none, or whose name is no longer known.
	Unnamed Kind = "unnamed"

	// Redisson is all Redissons together: nothing tells them apart.
	Redisson Kind = "redisson"

	// Unmarked stands for the writers of members without a mark: those of the layouts of
	// Redisson before 3.17.0, and of its layout until 3.20.1 if it is not the mark of a Client
	// that has a name.
	Unmarked Kind = "unmarked"
)

// Share is what one of them has in use.
type Share struct {
	Kind    Kind   `json:"kind"`
	Name    string `json:"name,omitempty"` // if it is Named
	Mark    string `json:"mark,omitempty"` // what the ids of its members begin with, in hexadecimal digits
	Permits int64  `json:"permits"`
}

// Tally adds up who has permits in use.
type Tally struct {
	names  Names
	shares map[Share]int64 // by all but Permits
}

// NewTally returns a Tally of nothing.
func NewTally(names Names) *Tally { return &Tally{names, make(map[Share]int64)} }

// Add counts a member in use.
func (t *Tally) Add(m codec.Member) { t.shares[t.whose(m)] += int64(m.Permits) }

func (t *Tally) whose(m codec.Member) Share {
	mark, ours := redisson.MarkOf(m)
	name, noted := t.names.find(string(mark))
	switch {
	case name != "":
		return Share{Kind: Named, Name: name, Mark: hex.EncodeToString([]byte(noted))}
	case ours:
		return Share{Kind: Unnamed, Mark: hex.EncodeToString(mark)}
	case m.Layout == codec.LayoutD2:
		return Share{Kind: Redisson}
	}
	return Share{Kind: Unmarked}
}

// Shares returns them, the largest first.
func (t *Tally) Shares() []Share {
	all := make([]Share, 0, len(t.shares))
	for s, permits := range t.shares {
		s.Permits = permits
		all = append(all, s)
	}
	sortShares(all)
	return all
}

// sortShares puts shares in their order, the largest first.
func sortShares(all []Share) {
	slices.SortFunc(all, func(a, b Share) int {
		return cmp.Or(cmp.Compare(b.Permits, a.Permits), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Mark, b.Mark))
	})
}
