#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds the native modules for aarch64 and runs unit tests under qemu-user: `make test-arm64`.
#
#   setup/arm64.sh [ARGUMENTS OF pytest]
#
# In build/arm64: Debian's Python for arm64 with libnuma, the wheels that setup/requirements.lock
# names, and a copy of hmd and tests with the modules that Debian's cross compiler builds. Nothing
# of it is installed but the cross compiler and qemu-user-static. Kernel calls are translated by
# qemu to this machine's kernel, which has no SPE: tests of the kernel stay out, and so do those
# that start hmd as another process.
set -euo pipefail
cd "$(dirname "$0")/.."
. setup/apt.sh
mkdir -p build/setup
check_machine
install_packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static

top=$PWD/build/arm64
root=$top/root site=$top/site tree=$top/tree
# What hmd and its unit tests import; numba, for kernels, takes most of the time.
wheels='annotated-types cffi hypothesis iniconfig llvmlite markdown-it-py mdurl numba
	numpy packaging pluggy prometheus-client psutil pycparser pydantic pydantic-core pygments pytest
	pytest-timeout pyyaml rich sortedcontainers typing-extensions typing-inspection'

if [ ! -x "$root/usr/bin/python3.11" ]; then
	say "fetching Debian's Python for arm64"
	rm -rf "$top/apt" "$root"
	mkdir -p "$top/apt/lists/partial" "$top/apt/cache/archives/partial" "$root"
	touch "$top/apt/status"
	echo "deb [arch=arm64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
		"http://deb.debian.org/debian bookworm main" >"$top/apt/sources.list"
	# A state of its own: the packages of this machine stay as they are.
	apt_arm64() {
		apt-get -o APT::Architecture=arm64 -o APT::Architectures::=arm64 \
			-o Dir::Etc::sourcelist="$top/apt/sources.list" -o Dir::Etc::sourceparts=- \
			-o Dir::State="$top/apt" -o Dir::State::status="$top/apt/status" \
			-o Dir::Cache="$top/apt/cache" "$@"
	}
	quietly arm64-update "cannot read Debian's list of packages for arm64" apt_arm64 update
	quietly arm64-fetch "cannot fetch Debian's Python for arm64" apt_arm64 -y \
		--no-install-recommends --download-only install python3-minimal python3 \
		libpython3.11-dev libnuma-dev libstdc++6
	for package in "$top"/apt/cache/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
fi

if [ ! -d "$site/numba" ]; then
	say "fetching wheels for aarch64"
	# Blocks of the lock: a line with the version, and those with hashes.
	for name in $wheels; do
		awk -v name="$name" '/^[a-z]/ { on = index($0, name "==") == 1 } on' setup/requirements.lock
	done >"$top/requirements.txt"
	quietly arm64-wheels "cannot fetch wheels for aarch64" .venv/bin/pip install --quiet \
		--disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.11 \
		--platform manylinux2014_aarch64 --platform manylinux_2_17_aarch64 \
		--platform manylinux_2_27_aarch64 --platform manylinux_2_28_aarch64 --platform any \
		--require-hashes --upgrade --target "$site" -r "$top/requirements.txt"
fi

say "building the native modules for aarch64"
.venv/bin/python cffi_build.py
rm -rf "$tree"
mkdir -p "$tree"
cp -r hmd bench packaging setup tests config docs pyproject.toml cffi_build.py README.md "$tree"
find "$tree" -name '*.so' -delete
build() { # MODULE C-FILE LIBRARY FOLDER...
	aarch64-linux-gnu-gcc -shared -fPIC -O2 -Wall -Wno-unused-function -DPy_LIMITED_API=0x030b0000 \
		-isystem "$root/usr/include/python3.11" -isystem "$root/usr/include" \
		-isystem "$root/usr/include/aarch64-linux-gnu" \
		-o "$tree/$1.abi3.so" -I "$4" "$2" "$3"
}
build hmd/_native hmd/_native.c "$root/usr/lib/aarch64-linux-gnu/libnuma.so" hmd/native
build hmd/emulate/_timing hmd/emulate/_timing.c -lm hmd/emulate/timing

cd "$tree"
if [ $# = 0 ]; then
	# Without those that start another program, or that ask qemu for counters and page tables.
	set -- tests/unit/sample tests/unit/trace/test_trace_file.py \
		--ignore tests/unit/sample/test_self_test.py --ignore tests/unit/sample/test_page_scan.py \
		--deselect tests/unit/trace/test_trace_file.py::test_summary_modelled_clock_named
fi
exec qemu-aarch64-static -L "$root" -E PYTHONPATH="$tree:$site" -E PYTHONDONTWRITEBYTECODE=1 \
	-E NUMBA_CACHE_DIR="$top/kernels" "$root/usr/bin/python3.11" -m pytest \
	-p no:cacheprovider -p no:xdist -m 'not root' --timeout 600 -q "$@"
