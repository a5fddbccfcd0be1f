package outage

import "context"

type enteredKey struct{}

// WithEntered returns a context for a call that waits for permits. entered is called once the call is in
// the limiter's line: those that are made after that are served after it. It may be called several
// times, or never if the call ends before.
func WithEntered(ctx context.Context, entered func()) context.Context {
	return context.WithValue(ctx, enteredKey{}, entered)
}

// Entered calls the function of WithEntered, if there is one.
func Entered(ctx context.Context) {
	if entered, ok := ctx.Value(enteredKey{}).(func()); ok {
		entered()
	}
}
