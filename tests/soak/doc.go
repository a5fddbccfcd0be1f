// Package soak proves that use leaves nothing behind: heap, goroutines, connections and
// what Redis holds are flat, and keys that were used once are forgotten.
//
// An hour of virtual time runs by default. Real time, and more keys:
//
//	make soak MINUTES=10
//	go test -v ./tests/soak -minutes 10 -keys 1000000
package soak
