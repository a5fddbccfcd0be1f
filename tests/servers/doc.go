// Package servers proves that the limiters work on what people run: clusters, Sentinel, rings, users with few rights, and
// through what happens there: slots that move, masters that are killed, scripts that are flushed.
//
// Each test starts servers of its own. Many tests of the other packages run through every topology too: scripts/cell.sh redis-8.2 cluster.
//
//	go test ./tests/servers
package servers
