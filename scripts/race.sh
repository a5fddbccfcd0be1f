#!/usr/bin/env bash
# race.sh FLAG-OR-PACKAGE...: go test with the race detector. It leaves out the
# interpreter that runs the scripts of a miniredis: one goroutine at a time is in
# there, and it would take a third of the time of all tests. Not miniredis itself:
# generic code of the standard library that both use would go unwatched with it.
# Without tables for debuggers the tests are linked in half the time.
set -euo pipefail
# At its end a program would wait a second for late reports: once for each package.
export GORACE="atexit_sleep_ms=50 ${GORACE:-}"
exec go test -race -ldflags=-w -gcflags='github.com/yuin/gopher-lua/...=-race=false' "$@"
