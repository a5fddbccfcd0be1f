#!/usr/bin/env bash
# build-tests.sh DIRECTORY PACKAGE...: links the tests of each package once, into
# DIRECTORY, for cell.sh to run them in several cells; with the race detector, unless
# RRL_RACE=0. DIRECTORY/list has a line for each: package, its folder, the program.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "$1"
into=$(cd "$1" && pwd)
shift
if [ "${RRL_RACE:-}" = 0 ]; then build=(go test -ldflags=-w); else build=(scripts/race.sh); fi

go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' "$@" |
	awk -v into="$into" 'NF { name = $1; gsub("/", "_", name); print $1, $2, into "/" name ".test" }' >"$into/list"
while read -r package _ program; do
	"${build[@]}" -c -o "$program" "$package"
done <"$into/list"
