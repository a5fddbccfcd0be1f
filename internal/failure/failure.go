// Package failure is what limit.Failure is made of, which applications need not see.
package failure

// Failure says what answers while Redis does not decide. With the zero Failure nothing does.
type Failure struct {
	open, local bool
	share       float64 // if local
}

// Open returns the Failure that grants all.
func Open() Failure { return Failure{open: true} }

// Local returns the Failure that has a local limiter with that share of the rate.
func Local(share float64) Failure { return Failure{local: true, share: share} }

// IsOpen reports whether calls are granted.
func IsOpen(f Failure) bool { return f.open }

// Share returns the share of the rate that a local limiter has, and whether there is one.
func Share(f Failure) (share float64, ok bool) { return f.share, f.local }
