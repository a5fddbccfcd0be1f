// Package chaos proves that limits hold, no permit is lost and every call is answered while many faults come together: servers
// crash, hang and change places, networks lose, delay and double what goes through them, keys and clocks are tampered with,
// contexts end, Clients are closed, programs that use them are killed.
//
// A run is a sequence of rounds. The seed and the number of a round draw all of it: the servers, limiters of every kind,
// Clients and their callers, and the faults. Each call is recorded with its answer, each fault that took place with its time;
// what must hold of them is checked when the round is over and all is quiet, by the functions of the files check_*_test.go,
// each of which says what it can't tell. Some of what Redis holds is looked at all the time.
//
// A few rounds run by default. More of them, the same ones again, and a single one:
//
//	make chaos MINUTES=10 SEED=0
//	go test -v ./tests/chaos -minutes 10 -seed 11
//	go test -v ./tests/chaos -seed 11 -round 4
//
// Programs with Redisson take part in some rounds of longer runs, if there is Java.
//
// With RRL_RESULTS naming a directory each round adds to its tables chaos-rounds, chaos-faults
// and chaos-calls. A failure prints what happened to the limiter in question, a line a call.
package chaos
