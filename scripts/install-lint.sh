#!/usr/bin/env bash
# Sees to it that golangci-lint is there in the release that .golangci.yml is
# written for: in .cache/bin or on the PATH, else it is built into .cache/bin.
# Says nothing when there is nothing to do. With -n it builds nothing, and fails if it would have to.
set -euo pipefail
cd "$(dirname "$0")/.."
version=2.15.0
bin=$PWD/.cache/bin
PATH=$bin:$PATH

[ "$(golangci-lint version --short 2>/dev/null)" = "$version" ] && exit 0
[ "${1:-}" != -n ] || exit 1
echo "installing golangci-lint v$version: building it takes some minutes, once"
# Modules that are there need no network, and the standard library is compiled once, as for
# the tests.
proxy=file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)
if ! said=$(GOBIN=$bin GOFLAGS='-trimpath -gcflags=all=-dwarf=false' GOPROXY=$proxy go install -ldflags=-w "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$version" 2>&1); then
	echo "install-lint: cannot build golangci-lint v$version: $(tail -n 1 <<<"$said")" >&2
	exit 1
fi
