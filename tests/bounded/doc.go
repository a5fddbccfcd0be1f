// Package bounded proves that no call does more work the more has piled up.
//
// Each test starts servers of its own, fills limiters with tens of thousands of members, and replays from MONITOR what each
// script call read and wrote.
//
//	go test ./tests/bounded
package bounded
