#!/usr/bin/env bash
# modules.sh [-p N] COMMAND: runs it in the folder of each Go module of the
# repository, N at a time, and says what it said there when it has ended. Fails if
# it fails in one of them.
set -euo pipefail
cd "$(dirname "$0")/.."
at_once=1
if [ "$1" = -p ]; then
	at_once=$2
	shift 2
fi

find . -name .cache -prune -o -name go.mod -print | sort | xargs -n 1 dirname |
	xargs -P "$at_once" -I '{}' bash -c '
		cd "$0" && shift
		said=$("$@" 2>&1 </dev/null) && status=0 || status=1
		[ -z "$said" ] || echo "$said"
		exit $status' '{}' -- "$@"
