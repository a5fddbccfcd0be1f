#!/usr/bin/env bash
# cell.sh SERVER TOPOLOGY [PACKAGE...]: runs the tests that have to do with real
# servers, of the packages named, on the server of that name
# (internal/redistest/version.go) and through that topology
# (internal/redistest/topology.go). Tests that choose their servers by themselves
# run as "single" only, and with RRL_ENGINE=shared not at all.
# With RRL_RACE=0 it leaves the race detector out.
# Says what failed, and prints "server topology result passed failed skipped
# seconds", parted by tabs, where skipped counts what has nothing to do with this
# cell and a result of "n/a: ..." says that this server can't do that. Fails if a
# test does, and with RRL_NO_SKIP=1 if the server is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
server=$1 topology=$2
shift 2
[ $# -gt 0 ] || set -- .
start=$SECONDS
if [ "$topology" = single ]; then engine=${RRL_ENGINE:-server}; else engine=shared; fi
if [ "${RRL_RACE:-}" = 0 ]; then go_test=(go test); else go_test=(scripts/race.sh); fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

run() {
	RRL_REDIS_SERVER=$server RRL_TOPOLOGY=$topology RRL_ENGINE=$engine "${go_test[@]}" -count=1 "$@"
}

report() { # RESULT PASSED FAILED SKIPPED
	printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$server" "$topology" "$@" $((SECONDS - start))
}

# One test tells whether there is such a thing here.
if ! RRL_NO_SKIP='' RRL_SKIP_LOG=$work/lacks run ./internal/redistest -run '^TestTopology$' >"$work/probe" 2>&1; then
	cat "$work/probe" >&2
	report failed 0 1 0
	exit 1
fi
if [ -s "$work/lacks" ]; then
	why=$(head -n 1 "$work/lacks")
	report "n/a: $why" 0 0 0
	[[ "$why" == *"built without"* ]] && exit
	[ "${RRL_NO_SKIP:-}" != 1 ] || exit 1
	[ -z "${RRL_SKIP_LOG:-}" ] || echo "$why" >>"$RRL_SKIP_LOG"
	exit
fi

# Most tests here wait for a server.
status=0 result=passed
run -shuffle=on -parallel 6 -timeout 15m -json "$@" >"$work/json" || status=$? result=failed
counts=$(awk -f scripts/cell.awk "$work/json")
# shellcheck disable=SC2086 # three numbers
report $result $counts
exit "$status"
