#!/usr/bin/env bash
# cell.sh SERVER TOPOLOGY [PACKAGE...]: runs the tests that have to do with real
# servers, of the packages named, on the server of that name
# (internal/test/redistest/version.go) and through that topology
# (internal/test/redistest/topology.go). Tests that choose their servers by themselves
# run as "single" only, and with RRL_ENGINE=shared not at all.
# With RRL_RACE=0 it leaves the race detector out. RRL_BUILT names a folder where
# scripts/build-tests.sh has built these packages and internal/test/redistest; without one
# they are built here.
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
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ -z "${RRL_BUILT:-}" ]; then
	RRL_BUILT=$work/built
	scripts/build-tests.sh "$RRL_BUILT" ./internal/test/redistest "$@"
fi
export RRL_REDIS_SERVER=$server RRL_TOPOLOGY=$topology RRL_ENGINE=$engine

report() { # RESULT PASSED FAILED SKIPPED
	printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$server" "$topology" "$@" $((SECONDS - start))
}

# One test reports whether there is such a thing here.
probe=$(awk '/internal\/test\/redistest / { print $3 }' "$RRL_BUILT/list")
if ! (cd internal/test/redistest && RRL_NO_SKIP='' RRL_SKIP_LOG=$work/lacks "$probe" -test.run '^TestTopology$') >"$work/probe" 2>&1; then
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

# As go test runs them, but for building them again. Most tests here wait for a server.
status=0 result=passed
# shellcheck disable=SC2016 # of the shell that runs one
awk 'NR == FNR { wanted[$1]; next } $1 in wanted' <(go list "$@") "$RRL_BUILT/list" |
	xargs -P 2 -L 1 sh -c 'cd "$2" && go tool test2json -p "$1" "$3" -test.v=test2json -test.paniconexit0 \
		-test.shuffle=on -test.parallel 6 -test.timeout 15m >"$0/$(basename "$3").json"' "$work" || status=1 result=failed
cat "$work"/*.json >"$work/json"
counts=$(awk -f scripts/cell.awk "$work/json")
# shellcheck disable=SC2086 # three numbers
report $result $counts
exit "$status"
