#!/usr/bin/env bash
# Runs a command in the folder of each Go module of the repository, the root
# first, or with --others not there; fails if it fails in one of them.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0 least=1
if [ "$1" = --others ]; then
	least=2
	shift
fi
while read -r mod; do
	(cd "$(dirname "$mod")" && "$@" </dev/null) || status=1
done < <(find . -name .cache -prune -o -name go.mod -print | awk -F/ -v least=$least 'NF > least' | sort)
exit "$status"
