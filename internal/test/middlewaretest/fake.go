package middlewaretest

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/rratelimiter/rratelimiter/internal/test/redistest"
	"github.com/rratelimiter/rratelimiter/limit"
)

// A Call is what a [Fake] was asked.
type Call struct {
	Key string
	N   int64
}

// A Fake is a limiter that says what Answer says, and remembers what it was asked.
type Fake struct {
	Answer func(ctx context.Context, n int64) (limit.Decision, error)

	asked redistest.List[Call]
}

// Take remembers the call and answers it.
func (f *Fake) Take(ctx context.Context, key string, n int64) (limit.Decision, error) {
	f.asked.Add(Call{key, n})
	return f.Answer(ctx, n)
}

// Asked returns all calls so far.
func (f *Fake) Asked() []Call { return f.asked.All() }

// Costs returns for how many permits all calls were.
func (f *Fake) Costs() (all []int64) {
	for _, call := range f.Asked() {
		all = append(all, call.N)
	}
	return all
}

// Key returns the key of the last call, "" if there was none.
func (f *Fake) Key() string {
	asked := f.Asked()
	if len(asked) == 0 {
		return ""
	}
	return asked[len(asked)-1].Key
}

// Says returns a limiter that always gives the same answer.
func Says(d limit.Decision, err error) *Fake {
	return &Fake{Answer: func(context.Context, int64) (limit.Decision, error) { return d, err }}
}

// Grants returns a limiter that grants everything, as the first of 10 permits.
func Grants() *Fake {
	return Says(limit.Decision{Granted: true, Limit: 10, Remaining: 9, ResetAfter: time.Minute}, nil)
}

// Budget returns a limiter that grants that many permits in all.
func Budget(most int64, retryAfter time.Duration) *Fake {
	var mu sync.Mutex
	left := most
	return &Fake{Answer: func(_ context.Context, n int64) (limit.Decision, error) {
		mu.Lock()
		defer mu.Unlock()
		if n > left {
			return limit.Decision{Limit: most, Remaining: left, RetryAfter: retryAfter}, nil
		}
		left -= n
		return limit.Decision{Granted: true, Limit: most, Remaining: left}, nil
	}}
}

// Hangs returns a limiter that answers when its context ends.
func Hangs() *Fake {
	return &Fake{Answer: func(ctx context.Context, _ int64) (limit.Decision, error) {
		<-ctx.Done()
		return limit.Decision{}, ctx.Err()
	}}
}

// Deaf returns a limiter that grants after a time, whatever its context says.
func Deaf(after time.Duration) *Fake {
	return &Fake{Answer: func(context.Context, int64) (limit.Decision, error) {
		time.Sleep(after)
		return limit.Decision{Granted: true, Limit: 1}, nil
	}}
}

// A Returner is a Fake whose grants can be given back.
type Returner struct {
	*Fake

	Giving func() error // what giving back answers, nil for no error

	given redistest.List[Call]
}

// TakeReturnable is Take with a function that gives the permits back.
func (r *Returner) TakeReturnable(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context) error, error) {
	d, err := r.Take(ctx, key, n)
	if err != nil || !d.Granted {
		return d, nil, err
	}
	return d, func(ctx context.Context) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		r.given.Add(Call{key, n})
		if r.Giving != nil {
			return r.Giving()
		}
		return nil
	}, nil
}

// GivenBack returns the calls whose permits were given back.
func (r *Returner) GivenBack() []Call { return r.given.All() }

// A Reserver is a Fake of which one grant can be settled, or many.
type Reserver struct {
	*Fake

	Cannot, Fails error   // what it says instead of reserving, and of settling
	Many          bool    // grants can be settled
	Settled       []int64 // with what they were
}

// TakeReserved is Take with a function that settles.
func (r *Reserver) TakeReserved(ctx context.Context, key string, n int64) (limit.Decision, func(context.Context, int64) error, error) {
	if r.Cannot != nil {
		return limit.Decision{}, nil, r.Cannot
	}
	d, err := r.Take(ctx, key, n)
	return d, func(_ context.Context, actual int64) error {
		if len(r.Settled) > 0 && !r.Many {
			return limit.ErrSettled
		}
		if r.Fails == nil {
			r.Settled = append(r.Settled, actual)
		}
		return r.Fails
	}, err
}

type handlerKey struct{}

// Handle does what a test wants of a handler with that context. Handlers call it.
func Handle(ctx context.Context) {
	if f, ok := ctx.Value(handlerKey{}).(func(context.Context)); ok {
		f(ctx)
	}
}

// Handled returns a context with which Handle calls f.
func Handled(ctx context.Context, f func(context.Context)) context.Context {
	return context.WithValue(ctx, handlerKey{}, f)
}

// Windowed is a limiter that tells its window.
type Windowed struct {
	limit.Limiter

	Span time.Duration
}

// Window returns the span.
func (w Windowed) Window() time.Duration { return w.Span }

// Errors are what an error handler was called with.
type Errors struct{ redistest.List[error] }

// Check checks that one error came since the last time, which is each of want, or none
// if want is empty.
func (e *Errors) Check(t testing.TB, want ...error) {
	t.Helper()
	errs := e.Take()
	if len(want) == 0 {
		assert.Empty(t, errs)
		return
	}
	if !assert.Len(t, errs, 1) {
		return
	}
	for _, err := range want {
		assert.ErrorIs(t, errs[0], err)
	}
}

// A Member is one of a header's list, such as "burst";q=10;w=1.
type Member struct {
	Name   string
	Params map[string]int64
}

var (
	memberText = regexp.MustCompile(`^"((?:[ !\x23-\x5b\x5d-\x7e]|\\["\\])+)"((?:;[a-z]+=\d{1,15})+)$`)
	paramText  = regexp.MustCompile(`;([a-z]+)=(\d+)`)
)

// Members reads a header that is a list of strings with integer parameters. It is
// written from the grammar of RFC 9651, without the library that writes them; no name
// may hold ", ".
func Members(h http.Header, name string) (list []Member, err error) {
	for _, line := range h.Values(name) {
		for text := range strings.SplitSeq(line, ", ") {
			match := memberText.FindStringSubmatch(text)
			if match == nil {
				return nil, fmt.Errorf("%s: %q", name, text)
			}
			m := Member{strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(match[1]), map[string]int64{}}
			for _, p := range paramText.FindAllStringSubmatch(match[2], -1) {
				if m.Params[p[1]], err = strconv.ParseInt(p[2], 10, 64); err != nil {
					return nil, err
				}
			}
			list = append(list, m)
		}
	}
	return list, nil
}
