#!/usr/bin/env bash
# lint.sh [-c] [-u]: phrases that have plainer words, and golangci-lint in all modules; with
# -c of what has changed, with -u of what users get. With nothing cached it spends a quarter
# of its time on garbage, unless it may keep more.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOGC=${GOGC:-400} GOMEMLIMIT=${GOMEMLIMIT:-3GiB}
if git grep --untracked -niE -e '\b(tells whether|in vain|whomever)\b| lest ' -e '(//|--) .*\b(nobody|somebody|whoever|takes note of)\b' -- '*.go' '*.lua' '*.md' ||
	git grep --untracked -niE '\b((is|are) told|whoever)\b' -- '*.go' '*.lua' '*.md' ':!*_test.go'; then
	echo "write: reports whether, without success, the one that, so that ... not, receives, a caller who, if someone" >&2
	exit 1
fi
packages=(./...)
[[ " $* " != *" -c "* ]] || packages=()
exec scripts/modules.sh "$@" golangci-lint run --allow-parallel-runners "${packages[@]}"
