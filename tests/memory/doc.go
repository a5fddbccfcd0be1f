// Package memory proves what a Client answers without Redis: from a lease, and from refusals and figures that it remembers. Such
// answers are those that Redis would give, no limit is exceeded, and nothing that a lease took is lost.
//
// The tests run in bubbles of virtual time. Some are random walks, of which a seed is the number of the subtest.
//
//	go test ./tests/memory
//	go test ./tests/memory -rounds 10     # longer random walks
package memory
