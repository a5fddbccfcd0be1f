#!/usr/bin/env bash
# go vet for a machine of 32 bits, of all modules but those of tools and examples.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck disable=SC2016 # of the shell in each module
scripts/modules.sh bash -c '
	case ${PWD#"$0"/} in
	benchmarks | examples/* | dashboard/browser) ;;
	*) GOARCH=386 go vet ./... ;;
	esac' "$PWD"
