// Package redisson proves what this module owes to the Redissons that share its limiters: the keys and members of every release, read and
// written, their fixed windows, times to live, what is lost or left behind, and right answers if a Redisson gives wrong ones.
//
// No Java runs here: the tests write what a release would have written. compat_test runs the same promises beside the real
// ones. Most tests are scenarios, steps in virtual time: a line of a table each. TestRedissonsOwn are Redisson's own tests of
// its limiter, under its order's numbers.
//
//	go test ./tests/redisson
package redisson
