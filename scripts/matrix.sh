#!/usr/bin/env bash
# matrix.sh FILE [SERVER...]: runs the root package's tests on each server, or on
# those named, through each topology. Writes a line for each cell into FILE, under
# a line of headings: see cell.sh. Fails if a test does.
set -euo pipefail
cd "$(dirname "$0")/.."
file=$1
shift
[ $# -gt 0 ] || set -- redis-6.2 redis-7.0 redis-8.2 valkey-9.1

# What is missing shows in its cells.
scripts/install-redis.sh all || true
status=0
printf 'server\ttopology\tresult\tpassed\tfailed\tskipped\tseconds\n' >"$file"
for server in "$@"; do
	for topology in single resp2 tls acl sentinel cluster ring; do
		scripts/cell.sh "$server" "$topology" | tee -a "$file" || status=1
	done
done
exit "$status"
