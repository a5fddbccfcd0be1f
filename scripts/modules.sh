#!/usr/bin/env bash
# Runs a command in the folder of each Go module of the repository, the root
# first; fails if it fails in one of them.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
while read -r mod; do
	(cd "$(dirname "$mod")" && "$@" </dev/null) || status=1
done < <(find . -name .cache -prune -o -name go.mod -print | sort)
exit "$status"
