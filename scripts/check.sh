#!/usr/bin/env bash
# check.sh: what to run before each commit, all steps at once: vet and lint of what has
# changed, vet of it for other systems, and the packages' own tests that need no server.
# Prints one step's output after the other's, and a last line that says what failed.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
# Ctrl-C ends the steps too: with -m each is a process group.
set -m
trap 'kill -- $(cat "$work"/*.group 2>/dev/null) 2>/dev/null || true; rm -rf "$work"' EXIT

lint() {
	if scripts/install-lint.sh >/dev/null 2>&1; then
		scripts/lint.sh -c
	else
		scripts/modules.sh -c go vet && [ "${RRL_NO_SKIP:-}" != 1 ]
	fi
}

others() { scripts/vet-others.sh -c; }

# One go command knows best what to compile first. The tests' own time is a third garbage
# collection, unless they may keep more.
tests() {
	scripts/modules.sh -p 4 -u go list ./... | grep -vE '/(tests/.*|compat_test|internal/test/.*)$' | sort |
		GOGC=${GOGC:-400} xargs go test -vet=off -short -ldflags=-w
}

# begin STEP runs it beside what follows; its output waits for its turn.
begin() {
	mkfifo "$work/$1"
	{ "$1" 2>&1 | { : <"$work/$1" && cat; }; } &
	echo "-$!" >"$work/$1.group"
}

failed=

# end STEP prints its output, and waits for it.
end() {
	echo "== $1"
	: >"$work/$1"
	local group
	group=$(cat "$work/$1.group")
	wait "${group#-}" || failed+=" $1"
	rm "$work/$1.group"
}

# Before the output of the steps, which wait for each other: the first run is silent for minutes otherwise.
scripts/install-lint.sh || true
begin tests
begin lint
begin others
end lint
end others
end tests
[ -z "$failed" ] || echo "check: FAILED:$failed"
[ -z "$failed" ]
