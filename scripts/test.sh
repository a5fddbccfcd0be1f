#!/usr/bin/env bash
# All checks and all tests, each step with its time, and a last line that says
# what ran, what failed and what was skipped. Goes on after a failure. With
# RRL_NO_SKIP=1 whatever would be skipped fails.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PWD/.cache/bin:$PATH

skips=$(mktemp)
trap 'rm -f "$skips"' EXIT
export RRL_SKIP_LOG=$skips # see redistest.SkipOrFail

ran=()
failed=()

step() {
	local name=$1 start=$SECONDS
	shift
	echo "== $name"
	if "$@"; then ran+=("$name"); else failed+=("$name"); fi
	echo "== $name: $((SECONDS - start)) s"
}

skip() {
	if [ "${RRL_NO_SKIP:-}" = 1 ]; then failed+=("$1"); else echo "$1: not installed" >>"$skips"; fi
}

# Many tests wait more than they compute: more tests and packages at a time than there
# are processors, and the longest, which are among the last by name, first.
unit_and_server() {
	scripts/modules.sh bash -c '
		set -o pipefail
		go list ./... | grep -v /compat_test$ | sort -r | xargs "$0"/race.sh -shuffle=on -p 3 -parallel 4 -timeout 10m' "$PWD/scripts"
}

# Each server once and each topology once, two cells at a time: make test-matrix runs
# all of each. The race detector has looked at the same tests in the step before, and
# in tests/redisson at the calls that Redisson's turns make.
other_servers() {
	xargs -P 2 -I CELL sh -c 'RRL_RACE=0 RRL_ENGINE=shared scripts/cell.sh CELL . ./tests/... ./fixedwindow \
		./slidinglog ./tokenbucket ./lua ./internal/redisson ./internal/script' <<-END
		redis-6.2 resp2
		redis-7.0 tls
		redis-7.0 acl
		redis-8.2 sentinel
		redis-6.2 cluster
		valkey-9.1 ring
	END
}

java() {
	go test -shuffle=on -timeout 10m ./compat_test/...
}

# Both wait for servers and JVMs more than they compute.
start_java() {
	java_said=$(mktemp)
	java >"$java_said" 2>&1 &
	java_pid=$!
}

end_java() {
	local status=0
	wait $java_pid || status=1
	cat "$java_said"
	rm -f "$java_said"
	return $status
}

list() {
	local IFS=,
	sed 's/,/, /g' <<<"$*"
}

echo "== tools"
# Without a server, or Prometheus, the tests that need it skip, or fail, by themselves.
scripts/install-redis.sh all || true
scripts/install-prometheus.sh || true
lint=yes
scripts/install-lint.sh || lint=no
echo "== tools: $SECONDS s"

step vet scripts/modules.sh go vet ./...
step "vet for 32 bits" scripts/modules.sh env GOARCH=386 go vet ./...
if [ $lint = yes ]; then step lint scripts/modules.sh golangci-lint run ./...; else skip lint; fi
step "unit and server tests" unit_and_server
start_java
step "other servers and topologies" other_servers
step "Java tests, begun beside the step before" end_java

summary="passed: $(list "${ran[@]-none}")"
[ ${#failed[@]} = 0 ] || summary+="; FAILED: $(list "${failed[@]}")"
if [ -s "$skips" ]; then
	summary+="; skipped: $(sort "$skips" | uniq -c | sed 's/^ *\([0-9]*\) /\1 x /' | paste -s -d ';' - | sed 's/;/; /g')"
else
	summary+="; skipped: nothing"
fi
echo "$summary"
[ ${#failed[@]} = 0 ]
