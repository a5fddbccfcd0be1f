package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/words"
)

func newAcquire(a *app) *cobra.Command {
	var (
		permits int64
		timeout time.Duration
		wait    bool
	)
	cmd := &cobra.Command{
		Use:        "acquire NAME",
		SuggestFor: []string{"try-acquire"},
		Short:      "Take permits, waiting for them if asked to",
		Long: `Take permits. Without flags it is one try; with --timeout it waits up to that
long, with --wait without end.

If a Redisson before 3.17 has permits in use, --redisson must name it: newer ones
and rrl write what it can't read.

Exits 0 if the permits were granted, 1 if not.`,
		Example: `  rrl acquire orders
  rrl acquire orders --permits 2 --timeout 100ms
  rrl acquire orders --wait && ./call-the-api`,
		Args: named("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := exclusive(cmd.Flags(), "timeout", "wait"); err != nil {
				return err
			}
			if timeout < 0 {
				return errors.New("--timeout is negative; --wait waits without end")
			}
			return a.withLimiter(cmd.Context(), args[0], a.refuseExcluded(true), func(l *rratelimiter.RateLimiter) error {
				answer, err := acquire(cmd.Context(), l, permits, timeout, wait)
				if err != nil {
					return err
				}
				return a.answer(answer, answer.String(), answer.Granted)
			})
		},
	}
	flags := cmd.Flags()
	flags.Int64VarP(&permits, "permits", "n", 1, "how many permits")
	flags.DurationVar(&timeout, "timeout", 0, "wait up to this long (0 is one try)")
	flags.BoolVar(&wait, "wait", false, "wait without end")
	return cmd
}

// acquired is the answer of one acquire. Remaining and RetryAfterMS are known
// after a single try only, otherwise nil.
type acquired struct {
	Name         string `json:"name"`
	Permits      int64  `json:"permits"`
	Granted      bool   `json:"granted"`
	WaitedMS     int64  `json:"waited_ms"`
	Remaining    *int64 `json:"remaining"`
	RetryAfterMS *int64 `json:"retry_after_ms"`
}

func acquire(ctx context.Context, l *rratelimiter.RateLimiter, permits int64, timeout time.Duration, wait bool) (acquired, error) {
	answer := acquired{Name: l.Name(), Permits: permits}
	start := time.Now()
	var err error
	switch {
	case wait:
		err = l.Acquire(ctx, permits)
		answer.Granted = err == nil
	case timeout > 0:
		answer.Granted, err = l.TryAcquire(ctx, permits, timeout)
	default:
		d, takeErr := l.Take(ctx, permits)
		answer.Granted, answer.Remaining, answer.RetryAfterMS = d.Granted, &d.Remaining, millis(d.RetryAfter)
		err = takeErr
	}
	if wait || timeout > 0 {
		answer.WaitedMS = time.Since(start).Milliseconds()
	}
	return answer, err
}

// millis returns d in milliseconds for JSON; nil stands for none.
func millis(d time.Duration) *int64 {
	if d < 0 {
		return nil
	}
	ms := d.Milliseconds()
	return &ms
}

func (a acquired) String() string {
	s := "denied " + words.Plural(a.Permits, "permit")
	if a.Granted {
		s = "granted " + words.Plural(a.Permits, "permit")
	}
	if a.WaitedMS > 0 {
		s += " after " + words.Ago(a.WaitedMS)
	}
	if a.Remaining != nil {
		s += fmt.Sprintf(", %d left", *a.Remaining)
	}
	if a.RetryAfterMS != nil && *a.RetryAfterMS > 0 {
		s += ", try again in " + words.Soon(*a.RetryAfterMS)
	}
	return s
}
