// Package hostile proves what limiters do if Redis holds or answers what no limiter
// would have written: another program's keys, a damaged dump, a server that is none.
//
// FuzzAnswers makes scripts answer anything: a caller gets an error or a decision which
// the answer holds, in bounded time. FuzzState and its like put anything under a
// limiter's keys and work with it: callers get answers, ErrCorrupt or another error of
// the package, and no more permits than the rate. On miniredis, and by those whose
// names end in OnServer on a real server.
//
//	go test ./tests/hostile
//	go test ./tests/hostile -run '^$' -fuzz 'FuzzState$' -fuzztime 5m
package hostile
