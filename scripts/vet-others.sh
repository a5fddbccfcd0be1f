#!/usr/bin/env bash
# vet-others.sh [darwin]: go vet for Windows and a machine of 32 bits at once, of all
# modules but those of tools and examples, so that all of it compiles there; with
# darwin, for that too, of the root.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck disable=SC2016 # of the shell in each module
scripts/modules.sh bash -c '
	case ${PWD#"$0"/} in
	benchmarks | examples/* | dashboard/browser) ;;
	*) GOOS=windows GOARCH=386 go vet ./... ;;
	esac' "$PWD"
# It differs from Linux by little: a cheap analyzer does, as it has to compile all.
[ "${1:-}" != darwin ] || GOOS=darwin GOARCH=arm64 go vet -asmdecl ./...
