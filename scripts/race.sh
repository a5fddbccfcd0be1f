#!/usr/bin/env bash
# race.sh FLAG-OR-PACKAGE...: go test with the race detector. It leaves out the
# interpreter that runs the scripts of a miniredis, and the search for an order of calls:
# one goroutine at a time is in there, and they would take a third and a half of the time
# of tests that use them. Not miniredis itself: generic code of the standard library that
# both use would go unwatched with it.
# Without tables for debuggers the tests are linked in half the time; they are named for
# these too, since of several settings for a package the last counts.
# Without a C compiler there is no race detector: the tests run all the same, and the
# file that RRL_SKIP_LOG names says so, but with RRL_NO_SKIP=1 this fails.
set -euo pipefail
# At its end a program would wait a second for late reports: once for each package.
export GORACE="atexit_sleep_ms=50 ${GORACE:-}"

read -r compiler _ <<<"$(go env CC)"
if [ "$(go env CGO_ENABLED)" = 1 ] && command -v "$compiler" >/dev/null; then
	unwatched=()
	for packages in github.com/{yuin/gopher-lua/...,anishathalye/porcupine,rratelimiter/rratelimiter/internal/test/linear}; do
		unwatched+=("-gcflags=$packages=-race=false -dwarf=false")
	done
	exec go test -race -ldflags=-w "${unwatched[@]}" "$@"
fi
why='the race detector: cgo is off or there is no C compiler'
echo "race.sh: left out: $why" >&2
[ "${RRL_NO_SKIP:-}" != 1 ] || exit 1
[ -z "${RRL_SKIP_LOG:-}" ] || grep -qxF "$why" "$RRL_SKIP_LOG" 2>/dev/null || echo "$why" >>"$RRL_SKIP_LOG"
exec go test -ldflags=-w "$@"
