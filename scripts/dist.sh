#!/usr/bin/env bash
# Builds rrl and rratelimitd for each platform into the folder $1, with SHA256SUMS. The same commit with
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

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GOWORK=off

# What the machine's settings would change in the bytes.
unset GOFLAGS GOEXPERIMENT GODEBUG GOFIPS140
export GOENV=off CGO_ENABLED=0 GOAMD64=v1 GOARM64=v8.0
[ -z "$(git status --porcelain)" ] || echo "dist: there are changes that are not committed: rrl version will say so" >&2

# build NAME MODULE PACKAGE: with the root of this commit, though cmd/rrl/go.mod names a release, and
# nothing else of go.work, which may ask for newer versions of what the command needs.
build() {
	cd "$root/$2"
	cp go.mod go.sum "$work"
	go mod edit -replace=github.com/rratelimiter/rratelimiter="$(sed 's|[^/][^/]*|..|g' <<<"$2")" "$work/go.mod"
	go mod download -modfile="$work/go.mod"
	for platform in "${platforms[@]}"; do
		os=${platform%/*} arch=${platform#*/} suffix=
		[ "$os" != windows ] || suffix=.exe
		built="$out/$1-$os-$arch$suffix"
		GOOS=$os GOARCH=$arch go build -trimpath -buildvcs=true -mod=readonly -modfile="$work/go.mod" -ldflags '-s -w' -o "$built" "$3"
		if ! go version -m "$built" | grep "vcs.revision=$revision" >/dev/null; then
			rm "$built"
			echo "dist: Go does not find the commit $revision here, which $1 version is to tell: build in a clone, not in a worktree" >&2
			exit 1
		fi
	done
}

rm -f "$out"/{rrl,rratelimitd}-* "$out/SHA256SUMS"
build rrl cmd/rrl .
build rratelimitd envoylimit ./cmd/rratelimitd
cd "$out"
if command -v sha256sum >/dev/null; then sha256sum rr*-*; else shasum -a 256 rr*-*; fi >SHA256SUMS
cat SHA256SUMS
