#!/usr/bin/env bash
# fuzz.sh [TARGET...]: runs the fuzz targets named, or all, one after another: each for
# FUZZTIME by go test -fuzz, which looks at coverage ("guided"), and where it takes part
# for RANDOMTIME by mutations of its corpus ("random", see internal/test/fuzztest). Adds what
# was run to RECORD. SEED is that of the random mutations: by default one that the record
# has not. WORKERS is how many processes or goroutines a target has.
# Fails if a target does.
set -euo pipefail
cd "$(dirname "$0")/.."
FUZZTIME=${FUZZTIME:-10m} RANDOMTIME=${RANDOMTIME-$FUZZTIME}
record=${RECORD:-docs/fuzzing.tsv} workers=${WORKERS:-$(nproc)} seed=${SEED:-$(date +%s)}
[ -f "$record" ] || printf 'target\tpackage\tkind\tguided\trandom\tseconds\tcrashes\tlast run\n' >"$record"
said=$(mktemp)
trap 'rm -f "$said"' EXIT
status=0

# add TARGET DIR KIND GUIDED RANDOM SECONDS CRASHES: adds a run to the record.
add() {
	awk -v OFS='\t' -F '\t' -v t="$1" -v p="$2" -v k="$3" -v g="$4" -v r="$5" -v s="$6" -v c="$7" -v d="$(date -u +%F)" '
		$1 == t && $2 == p { $4 += g; $5 += r; $6 += s; $7 += c; $8 = d; found = 1 }
		{ print }
		END { if (!found) print t, p, k, g, r, s, c, d }
	' OFMT=%.0f CONVFMT=%.0f "$record" >"$record.new"
	{ head -1 "$record.new"; tail -n +2 "$record.new" | sort; } >"$record"
	rm -f "$record.new"
}

# run COMMAND...: runs it and keeps what it says; the end of that is shown, all of it where
# the command fails.
run() {
	if "$@" </dev/null >"$said" 2>&1; then
		grep 'execs:' "$said" | tail -1 >&2 || true
	else
		cat "$said" >&2
		return 1
	fi
}

while read -r dir target; do
	if [ $# -gt 0 ] && [[ " $* " != *" $target "* ]]; then
		continue
	fi
	kind=memory guided=0 random=0 crashes=0 start=$SECONDS
	[[ $target != *OnServer ]] || kind=server
	echo "== $dir $target" >&2
	if [ "$FUZZTIME" != 0 ]; then
		(cd "$dir" && run go test -run '^$' -fuzz "^$target\$" -fuzztime "$FUZZTIME" -parallel "$workers" .) || crashes=1
		guided=$(sed -n -e 's/.*execs: \([0-9]*\).*/\1/p' -e 's|.*baseline coverage: \([0-9]*\)/.*|\1|p' "$said" | tail -1)
	fi
	if [ "$RANDOMTIME" != 0 ] && grep -q '"github.com/rratelimiter/rratelimiter/internal/test/fuzztest"' "$dir"/*_test.go; then
		export RRL_FUZZ_RANDOM=$RANDOMTIME RRL_FUZZ_SEED=$seed RRL_FUZZ_WORKERS=$workers
		(cd "$dir" && run go test -count 1 -timeout 0 -v -run "^$target\$" .) || crashes=$((crashes + 1))
		unset RRL_FUZZ_RANDOM
		random=$(sed -n 's/^random: .*execs: \([0-9]*\),.*/\1/p' "$said" | tail -1)
	fi
	add "$target" "$dir" "$kind" "${guided:-0}" "${random:-0}" $((SECONDS - start)) "$crashes"
	[ "$crashes" = 0 ] || status=1
done < <(grep -rEo --include='*_test.go' --exclude-dir=.cache '^func Fuzz[A-Za-z0-9_]*' . | sed 's|/[^/]*:func | |' | sort -u)
awk -F '\t' 'NR > 1 { all[$3] += $4 + $5 } END { for (kind in all) printf "%s: %.0f executions in all\n", kind, all[kind] }' "$record"
exit "$status"
