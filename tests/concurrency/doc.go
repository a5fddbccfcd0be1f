// Package concurrency proves what callers of one program owe each other: who waits
// in line and who is served first, what goes together in one round trip, what a
// context that ends leaves behind, leases, remembered refusals, several limits
// at once, keys, shadow limiters, rates that handles set, what an observer receives, and
// that no call does more work the more has piled up.
//
// Most tests run in bubbles of virtual time, where an hour of waiting takes no time.
// The hammers use real servers, and replay from MONITOR what each script call did.
//
//	go test ./tests/concurrency
//	go test ./tests/concurrency -rounds 10     # longer random walks
//	go test ./tests/concurrency -run '^$' -bench 'Stall|Cancel|TryAcquire|Together'
package concurrency
