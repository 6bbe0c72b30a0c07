#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Sets up what the Makefile needs on a Debian 12 machine, as root: Debian packages, QEMU and a
# kernel from bookworm-backports, Prometheus, a virtual environment with locked versions, the native
# modules. A step whose result exists is skipped; a failure is one line.
#
#   setup/setup.sh          all steps (what `make setup` runs)
#
# Leaves packages known to dpkg, one file in /etc/apt/sources.list.d (the backports suite, unless a
# source names it), and .venv/ and build/ in the checkout.
set -euo pipefail
cd "$(dirname "$0")/.."
. setup/apt.sh

STAMPS=build/setup
KERNEL_TRIED=linux-image-6.12.95+deb12-amd64
OLD_KERNEL_TRIED=linux-image-6.1.0-50-amd64
PACKAGES=(python3 python3-venv python3-dev gcc libc6-dev libnuma-dev numactl busybox-static
	iproute2 nbd-server redis-tools systemd util-linux xz-utils)
DISK_NEEDED_MIB=3000

check_disk() {
	local free
	free=$(df --output=avail -m . | tail -n 1)
	[ "$free" -ge "$DISK_NEEDED_MIB" ] ||
		fail "needs $DISK_NEEDED_MIB MiB of free disk in $PWD, has $free MiB: free some space and run it again"
}

add_backports() { # from the mirror that bookworm comes from
	apt-get indextargets --format '$(RELEASE)' 2>/dev/null | grep -qx bookworm-backports && return
	local site keyring=/usr/share/keyrings/debian-archive-keyring.gpg options=
	site=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT) $(CREATED_BY)' |
		awk '$2 == "bookworm" && $3 == "main" && $4 == "Packages" { print $1; exit }')
	[ -n "$site" ] || fail "no source in /etc/apt names Debian's bookworm main: add it and run this again"
	[ -e "$keyring" ] && options="[signed-by=$keyring] "
	say "adding the suite bookworm-backports to /etc/apt/sources.list.d/hmd-backports.list"
	echo "deb $options$site bookworm-backports main" >/etc/apt/sources.list.d/hmd-backports.list
	refreshed=
}

install_qemu() { # bookworm's own 7.2 crashes the guest kernel under software emulation
	local version
	version=$(qemu-system-x86_64 --version 2>/dev/null | sed -n 's/^QEMU emulator version \([0-9]*\).*/\1/p') || version=0 # there is none
	[ "${version:-0}" -ge 10 ] && return
	[ -n "$refreshed" ] || refresh_lists
	add_backports
	refresh_lists
	say "installing QEMU from bookworm-backports"
	quietly apt-qemu "could not install qemu-system-x86 from bookworm-backports: is there a network?" \
		env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
		-t bookworm-backports qemu-system-x86
}

unpack_kernel() { # FOLDER PACKAGE PATTERN: unpacked, not installed: this machine's boot stays
	local folder=$1 package=$2
	ls "$folder"/boot/vmlinuz-* >/dev/null 2>&1 && return
	[ -n "$refreshed" ] || refresh_lists
	add_backports
	refresh_lists
	if ! apt-cache show "$package" >/dev/null 2>&1; then
		package=$(apt-cache pkgnames linux-image-6 | grep -E "^$3\$" | sort -V | tail -n 1)
		[ -n "$package" ] || fail "no package $3 in the lists: are bookworm and bookworm-backports reachable?"
	fi
	say "unpacking $package into $folder"
	rm -rf "$folder.new" && mkdir -p "$folder.new/deb"
	chmod 700 "$folder.new/deb" # what is downloaded there is unpacked by root
	quietly kernel "could not download $package: is there a network?" \
		sh -c "cd '$folder.new/deb' && apt-get download -o APT::Sandbox::User=root '$package'"
	dpkg -x "$folder".new/deb/*.deb "$folder.new"
	rm -rf "$folder.new/deb" "$folder" && mv "$folder.new" "$folder"
}

unpack_prometheus() { # unpacked, not installed: the package starts a server on every address
	local folder=build/prometheus
	[ -x "$folder/usr/bin/promtool" ] && return
	[ -n "$refreshed" ] || refresh_lists
	say "unpacking prometheus into $folder"
	rm -rf "$folder.new" && mkdir -p "$folder.new/deb"
	chmod 700 "$folder.new/deb"
	quietly prometheus "could not download prometheus: is there a network?" \
		sh -c "cd '$folder.new/deb' && apt-get download -o APT::Sandbox::User=root prometheus"
	dpkg -x "$folder".new/deb/*.deb "$folder.new"
	rm -rf "$folder.new/deb" "$folder" && mv "$folder.new" "$folder"
}

make_environment() {
	local wanted stamp=$STAMPS/venv
	wanted=$(sha256sum setup/requirements.lock | cut -d ' ' -f 1)
	[ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && [ -x .venv/bin/python ] && return
	say "making the virtual environment .venv with the versions of setup/requirements.lock"
	rm -f "$stamp"
	[ -x .venv/bin/python ] || quietly venv "could not make .venv" /usr/bin/python3 -m venv .venv
	quietly pip "could not install the locked Python packages: is there a network?" \
		.venv/bin/pip install --disable-pip-version-check --require-hashes -r setup/requirements.lock
	echo "$wanted" >"$stamp"
}

build_native() {
	local wanted stamp=$STAMPS/native
	wanted=$(cat pyproject.toml cffi_build.py setup/backend.py hmd/native/*.[ch]* hmd/emulate/timing/*.[ch]* | sha256sum | cut -d ' ' -f 1)
	[ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && ls hmd/_native*.so >/dev/null 2>&1 && return
	say "building the native modules"
	rm -f "$stamp"
	quietly native "could not build the native modules" \
		.venv/bin/pip install --disable-pip-version-check --no-build-isolation --no-deps -e .
	echo "$wanted" >"$stamp"
}

# Else the first daemon, and the first command of each kind, would stand still for a minute.
compile_kernels() {
	local wanted stamp=$STAMPS/kernels
	wanted=$(cat setup/requirements.lock hmd/*/*.py hmd/policy/*/*.py | sha256sum | cut -d ' ' -f 1)
	[ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && return
	say "compiling kernels: a minute the first time"
	.venv/bin/python -m hmd run --compile
	echo "$wanted" >"$stamp"
}

check_machine
mkdir -p "$STAMPS"
check_disk
install_packages "${PACKAGES[@]}"
install_qemu
unpack_kernel build/machine/kernel "$KERNEL_TRIED" 'linux-image-6\.12\.[0-9]+\+deb12-amd64'
# Debian 12's own, for tests: no DAMON, no PAGEMAP_SCAN, cpusets of the first version.
unpack_kernel build/machine/kernel-6.1 "$OLD_KERNEL_TRIED" 'linux-image-6\.1\.0-[0-9]+-amd64'
unpack_prometheus
make_environment
build_native
compile_kernels
