#!/bin/sh
# Shows for how long each lock is held, in ns a decision, beside a redis-server: "sh locks/locks.sh" in benchmarks.
# An overlay puts a mutex that counts in the place of sync.Mutex; nothing of it is in the module.
set -eu
cd "$(dirname "$0")/../.."
root=$PWD
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
replaced="\"$root/internal/timed/mutex.go\": \"$root/benchmarks/locks/timed/mutex.go\""
for file in $(grep -lE 'sync\.Mutex' ./*.go internal/*/*.go | grep -v _test.go); do
	to=$out/$(echo "${file#./}" | tr / _)
	sed -e 's/sync\.Mutex/timed.Mutex/g' -e 's|^\t"sync"$|&\n\t"github.com/rratelimiter/rratelimiter/internal/timed"|' "$file" >"$to"
	echo 'var _ sync.Locker' >>"$to"
	replaced="$replaced, \"$root/${file#./}\": \"$to\""
done
echo "{\"Replace\": {$replaced}}" >"$out/overlay.json"
cd benchmarks
go build -overlay "$out/overlay.json" -o "$out/locks" ./locks
"$out/locks" "$@"
