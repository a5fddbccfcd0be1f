#!/usr/bin/env bash
# reliability.sh DIRECTORY MINUTES [SEED]: rounds of tests/chaos on each kind of servers, side by
# side, for so many minutes, then the faults of our own that they must tell; keeps what they record in
# DIRECTORY and writes the tables of docs/reliability.md from it. Records add up: an empty
# directory begins anew. Fails if a test does.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "$1"
RRL_RESULTS=$(cd "$1" && pwd)
export RRL_RESULTS
minutes=$2 seed=${3:-0}
scripts/install-redis.sh all || true
go test -c -o "$RRL_RESULTS/chaos.test" ./tests/chaos

status=0 running=()
for servers in single cluster sentinel; do
	(cd tests/chaos && "$RRL_RESULTS/chaos.test" -test.v -test.timeout 0 -test.run 'TestChaos$' \
		-minutes "$minutes" -seed "$seed" -arena "$servers") >"$RRL_RESULTS/$servers.txt" 2>&1 &
	running+=($!)
done
for pid in "${running[@]}"; do
	wait "$pid" || status=1
done
rm -f "$RRL_RESULTS/chaos-mutants.tsv"
(cd tests/chaos && "$RRL_RESULTS/chaos.test" -test.timeout 20m -test.run TestMutants) || status=1
rm -f "$RRL_RESULTS/chaos.test"
grep -h -A 30 -e '--- FAIL' "$RRL_RESULTS"/{single,cluster,sentinel}.txt || true
go run ./internal/docs/reliability "$RRL_RESULTS"
exit "$status"
