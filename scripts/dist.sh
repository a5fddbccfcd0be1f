#!/usr/bin/env bash
# Builds rrl for each platform into the folder $1, with SHA256SUMS. The same commit with
# the same tags and the same Go give the same bytes, wherever the clone is and whatever
# the machine. The platforms are all, or those named behind the folder, as in linux/amd64.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
platforms=("$@")
[ $# -gt 0 ] || platforms=({linux,darwin,windows}/{amd64,arm64})
cd "$root"
revision=$(git rev-parse HEAD)

# The root of this commit, though cmd/rrl/go.mod names a release, and nothing else of
# go.work, which may ask for newer versions of what rrl needs.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd cmd/rrl
cp go.mod go.sum "$work"
go mod edit -replace=github.com/rratelimiter/rratelimiter=../.. "$work/go.mod"
export GOWORK=off
go mod download -modfile="$work/go.mod"

# What the machine's settings would change in the bytes.
unset GOFLAGS GOEXPERIMENT GODEBUG GOFIPS140
export GOENV=off CGO_ENABLED=0 GOAMD64=v1 GOARM64=v8.0
[ -z "$(git status --porcelain)" ] || echo "dist: there are changes that are not committed: rrl version will say so" >&2

rm -f "$out"/rrl-* "$out/SHA256SUMS"
for platform in "${platforms[@]}"; do
	os=${platform%/*} arch=${platform#*/} suffix=
	[ "$os" != windows ] || suffix=.exe
	built="$out/rrl-$os-$arch$suffix"
	GOOS=$os GOARCH=$arch go build -trimpath -buildvcs=true -mod=readonly -modfile="$work/go.mod" -ldflags '-s -w' -o "$built" .
	if ! go version -m "$built" | grep "vcs.revision=$revision" >/dev/null; then
		rm "$built"
		echo "dist: Go does not find the commit $revision here, which rrl version is to tell: build in a clone, not in a worktree" >&2
		exit 1
	fi
done
cd "$out"
if command -v sha256sum >/dev/null; then sha256sum rrl-*; else shasum -a 256 rrl-*; fi >SHA256SUMS
cat SHA256SUMS
