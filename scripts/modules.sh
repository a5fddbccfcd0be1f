#!/usr/bin/env bash
# modules.sh [-p N] [-c] [-u] COMMAND: runs it in the folder of each Go module of the
# repository, N at a time, and prints what it said there when it has ended. With -c it
# runs only where something has changed, with the packages changed as last arguments;
# with -u only in modules that users get: not in benchmarks, examples and the tests in a
# browser. Fails if it fails in one of them.
set -euo pipefail
cd "$(dirname "$0")/.."
at_once=1 changed= left_out='^$'
while getopts p:cu option; do
	case $option in
	p) at_once=$OPTARG ;;
	c) changed=yes ;;
	u) left_out='^\./(benchmarks|examples/[a-z]+|dashboard/browser)( |$)' ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))

modules() {
	if [ -n "$changed" ]; then
		scripts/changed.sh
	else
		find . -name .cache -prune -o -name go.mod -print | sort | xargs -n 1 dirname
	fi
}

# shellcheck disable=SC2016 # of the shell in each module
{ modules | grep -vE "$left_out" || true; } | xargs -r -P "$at_once" -L 1 bash -c '
	command=("${@:2:$1}")
	shift $(($1 + 1))
	cd "$1" && shift
	said=$("${command[@]}" "$@" 2>&1 </dev/null) && status=0 || status=1
	[ -z "$said" ] || echo "$said"
	exit $status' modules $# "$@"
