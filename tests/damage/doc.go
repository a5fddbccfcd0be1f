// Package damage proves what becomes of limiters whose keys hold what no limiter writes.
//
// Each test puts such a state into Redis and makes all calls that may come across it: what can't be read ends in an error that
// names the key, and changes nothing. Of keys that are lost one by one see tests/redisson.
//
//	go test ./tests/damage
package damage
