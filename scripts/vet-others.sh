#!/usr/bin/env bash
# vet-others.sh [-c]: go vet for Windows and a machine of 32 bits at once, and for macOS,
# of all modules except those of tools and examples, so that all of it compiles there;
# with -c of what has changed.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=(./...)
[ "${1:-}" != -c ] || packages=()

# shellcheck disable=SC2016 # of the shell in each module
scripts/modules.sh -u "$@" bash -c '
	GOOS=windows GOARCH=386 go vet "$@" &&
		# It differs from Linux by little: a cheap analyzer does, as it has to compile all.
		GOOS=darwin GOARCH=arm64 go vet -asmdecl "$@"' bash "${packages[@]}"
