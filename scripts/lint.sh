#!/usr/bin/env bash
# lint.sh [-c] [-u]: golangci-lint in all modules; with -c of what has changed, with -u of
# what users get. With nothing cached it spends a quarter of its time on garbage, unless
# it may keep more.
set -euo pipefail
export GOGC=${GOGC:-400} GOMEMLIMIT=${GOMEMLIMIT:-3GiB}
packages=(./...)
[[ " $* " != *" -c "* ]] || packages=()
exec "$(dirname "$0")/modules.sh" "$@" golangci-lint run --allow-parallel-runners "${packages[@]}"
