// Package merging proves that a limiter's set stays small whatever its limit, since members are merged in slices of the
// interval, and that no permit comes back early or is lost by it.
//
//	go test ./tests/merging
package merging
