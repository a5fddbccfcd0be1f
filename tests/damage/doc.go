// Package damage proves what becomes of limiters whose keys are lost one by one, or
// hold what no limiter writes.
//
// Each test puts such a state into Redis and asks for all that may come across it:
// permits in use must go on to count, what is lost is made anew, and what can't be
// read ends in an error that names the key, and changes nothing.
//
//	go test ./tests/damage
package damage
