// Package linearizability proves that many callers at once get answers that one caller after another could have got.
//
// TestConcurrentHistories has Clients make calls at random, loses answers and requests on their way, and asks porcupine for an order
// of the calls that explains every answer by the model of package linear. TestMutants puts faults into the scripts, and fails if the
// histories do not show them. Calls one after another are compared with all that Redis holds by TestHistories of compat_test.
//
// A few histories of each kind run by default. More of them, and the same ones again:
//
//	go test ./tests/linearizability -run TestConcurrentHistories -histories 2000 -seed 11
//
// A history that no order explains is printed with a line a call.
package linearizability
