#!/usr/bin/env bash
# changed.sh: prints a line for each Go module with changes: its folder, and the packages
# changed since the branch left its upstream, or since the last commit if it has none.
# If nothing has changed, it prints all modules with all of their packages, and of a
# module whose go.mod has changed, all. A change of go.work or of the linter's settings
# changes all.
set -euo pipefail
cd "$(dirname "$0")/.."

base=$(git merge-base HEAD '@{upstream}' 2>/dev/null || git rev-parse HEAD)
files=$({ git diff --name-only "$base"; git ls-files -o --exclude-standard; } | grep -E '(\.go|/?go\.mod|^go\.work|\.lua|\.golangci\.yml)$' || true)
modules=$(find . -name .cache -prune -o -name go.mod -print | sort | xargs -n 1 dirname)
if [ -z "$files" ] || grep -qxF -e .golangci.yml -e go.work <<<"$files"; then
	sed 's|$| ./...|' <<<"$modules"
	exit
fi

while read -r file; do
	folder=$(dirname "./$file")
	module=$folder
	until [ -f "$module/go.mod" ]; do module=$(dirname "$module"); done
	if [ "${file##*/}" = go.mod ]; then
		echo "$module ./..."
	elif compgen -G "$folder/*.go" >/dev/null; then
		echo "$module .${folder#"$module"}"
	fi
done <<<"$files" | sort -u | awk '{ packages[$1] = packages[$1] " " $2 } END { for (m in packages) print m packages[m] }'
