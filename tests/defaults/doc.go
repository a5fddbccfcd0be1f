// Package defaults proves what becomes of limiters that are set up at first use: those of a Keyed, one for each key, and those of
// WithDefault; which keys are refused, whose rate holds if programs bring several, and what is logged of it.
//
//	go test ./tests/defaults
package defaults
