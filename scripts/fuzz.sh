#!/usr/bin/env bash
# fuzz.sh [TARGET...]: runs the fuzz targets named, or all, one after another, each for
# FUZZTIME in WORKERS processes. Adds what was run to RECORD. Fails if a target does.
set -euo pipefail
cd "$(dirname "$0")/.."
FUZZTIME=${FUZZTIME:-10m} record=${RECORD:-docs/fuzzing.tsv} workers=${WORKERS:-$(nproc)}
[ -f "$record" ] || printf 'target\tpackage\tkind\texecutions\tseconds\tcrashes\tlast run\n' >"$record"
said=$(mktemp)
trap 'rm -f "$said"' EXIT
status=0

# add TARGET DIR KIND EXECUTIONS SECONDS CRASHES: adds a run to the record.
add() {
	awk -v OFS='\t' -F '\t' -v t="$1" -v p="$2" -v k="$3" -v e="$4" -v s="$5" -v c="$6" -v d="$(date -u +%F)" '
		$1 == t && $2 == p { $4 += e; $5 += s; $6 += c; $7 = d; found = 1 }
		{ print }
		END { if (!found) print t, p, k, e, s, c, d }
	' OFMT=%.0f CONVFMT=%.0f "$record" >"$record.new"
	{ head -1 "$record.new"; tail -n +2 "$record.new" | sort; } >"$record"
	rm -f "$record.new"
}

while read -r dir target; do
	if [ $# -gt 0 ] && [[ " $* " != *" $target "* ]]; then
		continue
	fi
	kind=memory crashes=0 start=$SECONDS
	[[ $target != *OnServer ]] || kind=server
	echo "== $dir $target" >&2
	# What it says is shown at its end, all of it if it fails.
	if (cd "$dir" && go test -run '^$' -fuzz "^$target\$" -fuzztime "$FUZZTIME" -parallel "$workers" .) </dev/null >"$said" 2>&1; then
		grep 'execs:' "$said" | tail -1 >&2 || true
	else
		cat "$said" >&2
		crashes=1 status=1
	fi
	executions=$(sed -n -e 's/.*execs: \([0-9]*\).*/\1/p' -e 's|.*baseline coverage: \([0-9]*\)/.*|\1|p' "$said" | tail -1)
	add "$target" "$dir" "$kind" "${executions:-0}" $((SECONDS - start)) "$crashes"
done < <(grep -rEo --include='*_test.go' --exclude-dir=.cache '^func Fuzz[A-Za-z0-9_]*' . | sed 's|/[^/]*:func | |' | sort -u)
awk -F '\t' 'NR > 1 { all[$3] += $4 } END { for (kind in all) printf "%s: %.0f executions in all\n", kind, all[kind] }' "$record"
exit "$status"
