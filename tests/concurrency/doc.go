// Package concurrency proves what callers of one program owe each other: what goes together in one round trip, what a context
// that ends and Close leave behind, several limits at once, reservations, what an observer receives, and shadow limiters.
//
// Most tests run in bubbles of virtual time, where an hour of waiting takes no time. See also tests/waiting, tests/memory and
// tests/defaults.
//
//	go test ./tests/concurrency
package concurrency
