# SPDX-License-Identifier: MIT
# Sourced by the scripts of setup/ in the root of the checkout: Debian packages and error handling.
# A failure is one line on standard error and exit status 4; complete output is in build/setup/.

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 4; }

quietly() { # LOG-NAME ERROR COMMAND...: run; show the end of the log only on failure
	local log="build/setup/$1.log" what="$2"
	shift 2
	if ! "$@" >"$log" 2>&1; then
		tail -n 5 "$log" >&2
		fail "$what (complete output: $log)"
	fi
}

check_machine() {
	[ "$(id -u)" = 0 ] || fail "needs root to install Debian packages: run it again as root (sudo make ...)"
	command -v apt-get >/dev/null || fail "needs apt-get: this sets up Debian 12 machines"
	. /etc/os-release
	[ "${ID:-}:${VERSION_CODENAME:-}" = debian:bookworm ] ||
		fail "needs Debian 12 (bookworm), this is ${PRETTY_NAME:-unknown}"
	[ "$(uname -m)" = x86_64 ] || fail "needs an x86_64 machine, this is $(uname -m)"
}

refreshed=
refresh_lists() {
	[ -n "$refreshed" ] && return
	say "reading the package lists (apt-get update)"
	quietly apt-update "apt-get update failed: is there a network, and do the sources in /etc/apt answer?" \
		apt-get update
	refreshed=1
}

installed() { dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed; }

install_packages() { # PACKAGE...: the missing ones
	local missing=() package
	for package in "$@"; do
		installed "$package" || missing+=("$package")
	done
	[ ${#missing[@]} = 0 ] && return
	refresh_lists
	say "installing ${missing[*]}"
	quietly apt-packages "could not install ${missing[*]}: is there a network?" \
		env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
}
