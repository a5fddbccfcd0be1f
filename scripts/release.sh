#!/usr/bin/env bash
# release.sh vX.Y.Z: makes a release, in this clone only: one commit, in which the other
# modules require the root at that version, and on it a tag for each module that users get.
# If a check fails, no branch and no tag has changed. It pushes nothing.
# With RRL_RELEASE_UNTESTED=1 it leaves make test out, in a clone without remotes only.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-}
root=github.com/rratelimiter/rratelimiter

fail() {
	echo "release: $*" >&2
	exit 1
}

# Where the modules are, and the tags of those that are not built in a clone only.
dirs=$(git ls-files '*/go.mod' | xargs -n 1 dirname)
libraries=() tags=("$version")
for dir in $dirs; do
	case $dir in
	benchmarks | dashboard/browser | examples/*) continue ;;
	cmd/rrl) ;;
	*) libraries+=("$root/$dir") ;;
	esac
	tags+=("$dir/$version")
done

[[ $version =~ ^v[01](\.(0|[1-9][0-9]*)){2}(-[0-9A-Za-z.-]+)?$ ]] ||
	fail "usage: make release VERSION=v1.2.3 (for v2 the modules' paths would have to change)"
branch=$(git symbolic-ref -q --short HEAD) || fail "no branch is checked out: git switch main"
[ "$(git rev-parse --is-shallow-repository)" = false ] || fail "the clone is shallow: git fetch --unshallow"
[ -z "$(git status --porcelain)" ] || fail "there are changes that are not committed: git status"
for tag in "${tags[@]}"; do
	! git rev-parse -q --verify "refs/tags/$tag" >/dev/null || fail "the tag $tag exists"
done
grep -qE "^## \[${version#v}\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md ||
	fail "CHANGELOG.md has no heading '## [${version#v}] - YYYY-MM-DD': put it above what has changed, and commit"

if [ "${RRL_RELEASE_UNTESTED:-}" = 1 ]; then
	[ -z "$(git remote)" ] || fail "RRL_RELEASE_UNTESTED=1 is for a clone without remotes"
else
	make --no-print-directory test
	[ -z "$(git status --porcelain)" ] || fail "make test has changed files: git status"
fi

work=$(mktemp -d)
trap 'git worktree remove --force "$work/tree"; rm -rf "$work"' EXIT
tree=$work/tree published=$work/published
git worktree add -q --detach "$tree"
git init -q --bare -b main "$published"

# as_user CACHE COMMAND...: runs it as somebody who has none of our modules. Go takes them
# from a repository that has what would be pushed, and all others as it does on this machine.
proxy=file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)
as_user() {
	local cache=$work/$1
	shift
	GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="url.file://$published.insteadOf" GIT_CONFIG_VALUE_0="https://$root" \
		GOPROXY=$proxy GONOPROXY=$root GOPRIVATE='' GOSUMDB=off GOENV=off GOWORK=off GOMODCACHE=$cache GOBIN=$work/bin \
		GOFLAGS='-trimpath -modcacherw' CGO_ENABLED=0 "$@" 2>"$work/said" || { cat "$work/said" >&2 && return 1; }
}

echo "== the commit"
for dir in $dirs; do
	awk -v root=$root '{ sub(/^require /, "") } $2 ~ /^v/ && index($1 "/", root "/") == 1 { print $1 }' "$tree/$dir/go.mod" |
		xargs -I '{}' go mod edit -require="{}@$version" "$tree/$dir/go.mod"
done
# rrl replaces nothing, so its go.sum needs the root's sums. They depend on the root alone,
# so they are known before the commit.
git push -q "$published" "HEAD:refs/tags/$version"
sums=$tree/cmd/rrl/go.sum
awk -v root=$root '$1 != root' "$sums" >"$work/sums"
as_user first go mod download -json "$root@$version" | awk -v module="$root $version" -F '"' '
	$2 == "Sum" { print module, $4 }
	$2 == "GoModSum" { print module "/go.mod", $4 }' >>"$work/sums"
LC_ALL=C sort -s -k 1,1 "$work/sums" >"$sums"
git -C "$tree" commit -q -a -m "Release $version"
commit=$(git -C "$tree" rev-parse HEAD)

echo "== what users get"
git push -q --force "$published" "$commit:refs/heads/main" "${tags[@]/#/$commit:refs/tags/}"
as_user modules go install "$root/cmd/rrl@$version"
"$work/bin/rrl" --version
mkdir "$work/user"
(
	cd "$work/user"
	{
		printf 'package main\n\nimport (\n'
		printf '\t_ "%s"\n' "$root" "${libraries[@]}"
		printf ')\n\nfunc main() {}\n'
	} >main.go
	as_user modules go mod init example.com/user
	as_user modules go get "$root@$version" "${libraries[@]/%/@$version}"
	as_user modules go build .
)

git merge -q --ff-only "$commit"
for tag in "${tags[@]}"; do
	git tag -a -m "$root $version" "$tag"
done
echo "$version is made in this clone, and not pushed. To publish it:"
echo "    git push --atomic origin $branch ${tags[*]}"
