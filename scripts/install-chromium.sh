#!/usr/bin/env bash
# Sees to it that there is a Chromium on the PATH for the tests of the dashboard:
# any that is there, else the shell without windows of Debian's Chromium, which is
# installed by apt-get: 100 MB to fetch, and root alone may. Says nothing when there
# is nothing to do.
set -euo pipefail

# The same names as in dashboard/browser/tab_test.go.
for name in chromium-headless-shell chromium chromium-browser google-chrome; do
	command -v "$name" >/dev/null && exit 0
done

log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive

# The fonts are those that the pictures in docs/dashboard are made with.
install() {
	apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=300 chromium-headless-shell fonts-dejavu-core
}

echo "installing chromium"
if ! command -v apt-get >/dev/null; then
	echo "install-chromium: cannot install chromium: no apt-get" >&2
	exit 1
fi
if [ "$(id -u)" != 0 ]; then
	echo "install-chromium: cannot install chromium: only root may; apt-get install chromium-headless-shell" >&2
	exit 1
fi
# The package lists may be missing or old, so a failure is worth an update.
if ! { install || { apt-get update && install; }; } >"$log" 2>&1; then
	echo "install-chromium: cannot install chromium: $(tail -n 1 "$log")" >&2
	exit 1
fi
