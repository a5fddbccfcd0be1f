#!/usr/bin/env bash
# Sees to it that there is promtool for the tests of the alert rules: on the PATH
# or in .cache/bin, into which it puts that of the system's package of Prometheus
# where there is apt-get. The package is not installed: it would start a server at
# a fixed port. Says nothing when there is nothing to do.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/.cache/bin
PATH=$bin:$PATH

command -v promtool >/dev/null && exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The package lists may be missing or old, so a failure is worth an update, which
# root alone may do.
download() {
	apt-get download prometheus || { [ "$(id -u)" = 0 ] && apt-get update && apt-get download prometheus; }
}

unpack() {
	dpkg-deb -x prometheus_*.deb . && usr/bin/promtool --version && mkdir -p "$bin" && mv usr/bin/promtool "$bin"
}

echo "installing promtool"
if ! command -v apt-get >/dev/null || ! (cd "$work" && download && unpack) >"$work/log" 2>&1; then
	echo "install-prometheus: cannot install promtool: $(tail -n 1 "$work/log" 2>/dev/null || echo no apt-get)" >&2
	exit 1
fi
