package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/codec"
	"github.com/rratelimiter/rratelimiter/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/limit"
)

// memberLen is the length of a member of layout D2.
const memberLen = 21

// AppendBinary appends what any program needs to settle a grant that is held: see [Engine.SettlerOf].
func (s *settlement) AppendBinary(b []byte) ([]byte, error) {
	if s.hold.At == 0 || len(s.member) != memberLen {
		return nil, fmt.Errorf("%w: the grant is not held, or of an old layout", limit.ErrUnsupported)
	}
	b = binary.AppendUvarint(b, uint64(s.hold.At))
	b = binary.AppendUvarint(b, uint64(s.hold.Early.Milliseconds()))
	b = binary.AppendUvarint(b, uint64(s.granted.Sub(s.sent).Milliseconds()))
	return append(b, s.member...), nil
}

// SettlerOf returns what settles a grant of which AppendBinary, perhaps of another program, wrote text. However often it is
// settled, and by whichever program, it is charged once: all use one id for what they charge, and look for that. Only if
// the whole interval is over since the grant, another number of permits is charged again.
func (e *Engine) SettlerOf(l *Limiter, text []byte) (func(context.Context, int64, func(error)) error, error) {
	var words [3]uint64
	for i := range words {
		n, size := binary.Uvarint(text)
		if size <= 0 || n > 1<<53 {
			return nil, fmt.Errorf("%w: no reservation", limit.ErrInvalidConfig)
		}
		words[i], text = n, text[size:]
	}
	m, err := codec.Parse(string(text))
	if err != nil || m.Layout != codec.LayoutD2 {
		return nil, fmt.Errorf("%w: no reservation", limit.ErrInvalidConfig)
	}
	now := time.Now()
	granted := time.UnixMilli(int64(words[0]))
	if granted.After(now) { // by the server's clock
		granted = now
	}
	s := &settlement{
		engine: e, limiter: l, asked: true, member: slices.Clone(text), permits: int64(m.Permits),
		hold: Hold{script.Millis(int64(words[1])), int64(words[0])}, granted: granted, sent: granted.Add(-script.Millis(int64(words[2]))),
	}
	s.charge = redisson.ChargeOf(s.member)
	if l.Rate.Interval > now.Sub(s.sent) {
		s.doubt = s.sent // another call may have run
	}
	return s.settle, nil
}

// Charge charges permits from now on, whether they are free or not, and calls then with the result. It goes on in the
// background if ctx ends first.
func (e *Engine) Charge(ctx context.Context, l *Limiter, permits int64, then func(error)) error {
	now := time.Now()
	// What was reserved is nothing.
	s := &settlement{engine: e, limiter: l, member: e.ids.Next(nil, 1), sent: now, granted: now}
	return s.settle(ctx, permits, then)
}
