// Package hostile proves what limiters do if Redis holds what no limiter would have written: another program's keys, a damaged dump.
//
// FuzzState puts anything under a limiter's keys and works with it: callers get answers, ErrCorrupt or another error of the
// package, and no more permits than the rate. FuzzStateOnServer does so on a real server.
//
//	go test ./tests/hostile
//	go test ./tests/hostile -run '^$' -fuzz 'FuzzState$' -fuzztime 5m
package hostile
