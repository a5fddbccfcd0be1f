package dashboard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	freeGuesses  = 10          // wrong tokens of an address that are answered at once
	guessPause   = time.Second // before each further one is answered
	maxGuessing  = 8           // of an address that wait; the tokens of more are not looked at
	guessMemory  = time.Hour   // after the last wrong one
	maxGuessers  = 4096        // addresses that are kept
	retryGuesses = "5"         // seconds
)

// errGuessing is the answer to a token that was not looked at.
var errGuessing = errors.New("too many wrong tokens come from this address")

// guesses slows down who tries tokens, by address.
type guesses struct {
	mu sync.Mutex
	by map[string]*guesser
}

type guesser struct {
	wrong   int
	last    time.Time
	waiting int
}

// busy reports whether too many wrong tokens of an address wait to look at more: else a guess
// could take as many connections as there are.
func (g *guesses) busy(address string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	from := g.by[address]
	return from != nil && from.waiting >= maxGuessing
}

// wrong counts a wrong token, waits if there were many, and returns the error that says
// how many.
func (g *guesses) wrong(ctx context.Context, address string) error {
	g.mu.Lock()
	now := time.Now()
	from := g.by[address]
	if from == nil || now.Sub(from.last) > guessMemory {
		g.forget(now)
		from = &guesser{}
		g.by[address] = from
	}
	from.wrong++
	from.last = now
	count, slow := from.wrong, from.wrong > freeGuesses
	if slow {
		from.waiting++
	}
	g.mu.Unlock()
	if slow {
		_ = sleep(ctx, guessPause) // who went away needs no answer
		g.mu.Lock()
		from.waiting--
		g.mu.Unlock()
	}
	return fmt.Errorf("a wrong token, number %d from %s", count, address)
}

// forget makes room for one more address. It is called with the lock held.
func (g *guesses) forget(now time.Time) {
	if g.by == nil {
		g.by = make(map[string]*guesser)
	}
	if len(g.by) < maxGuessers {
		return
	}
	for address, from := range g.by {
		if now.Sub(from.last) > guessMemory {
			delete(g.by, address)
		}
	}
	for address := range g.by {
		if len(g.by) < maxGuessers {
			return
		}
		delete(g.by, address)
	}
}
