// Package waiting proves what becomes of callers that wait: who stands in line and is served first, how long each waits, what
// wakes them, how seldom they ask, and how they keep their limiter alive or make it again.
//
// The tests run in bubbles of virtual time, where a day of waiting takes no time.
//
//	go test ./tests/waiting
package waiting
