#!/usr/bin/env bash
# matrix.sh DIRECTORY [PART...]: runs the parts named, or all three, keeps what
# they record in DIRECTORY, and writes docs/compatibility.md from it:
#   servers    the limiter's tests on each server through each topology
#   failover   failovers, measured
#   redisson   every release of Redisson, by turns through each topology that it has too
# Fails if a test does.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "$1"
results=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- redisson failover servers

# What is missing shows in its cells.
scripts/install-redis.sh all || true
status=0
for part in "$@"; do
	echo "== $part"
	start=$SECONDS
	case $part in
	servers)
		rm -f "$results/servers.tsv"
		for server in redis-6.2 redis-7.0 redis-8.2 valkey-9.1; do
			for topology in single resp2 tls acl sentinel cluster ring; do
				scripts/cell.sh "$server" "$topology" . ./tests/... ./fixedwindow ./slidinglog ./tokenbucket ./cmd/rrl/internal/doctor | tee -a "$results/servers.tsv" || status=1
			done
		done
		;;
	failover)
		rm -f "$results"/failover.tsv
		RRL_RESULTS=$results go test -count=1 -timeout 20m ./tests/servers \
			-run 'FailoverWhileInUse|ThatLosesWrites|MinReplicas' || status=1
		;;
	redisson)
		rm -f "$results"/Test*.tsv
		RRL_RESULTS=$results go test -count=1 -timeout 90m ./compat_test -ops 30000 -releases all || status=1
		for topology in resp2 acl sentinel cluster; do
			RRL_TOPOLOGY=$topology RRL_RESULTS=$results go test -count=1 -timeout 30m ./compat_test -run 'TestTurns$' -ops 3000 -releases all || status=1
		done
		;;
	*)
		echo "matrix: no part $part" >&2
		exit 2
		;;
	esac
	echo "== $part: $((SECONDS - start)) s"
done
go run ./internal/docs/compatibility "$results"
exit "$status"
