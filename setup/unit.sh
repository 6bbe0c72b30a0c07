#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs the unit tests as any user: makes .venv with the light extra dev if it is missing, builds the
# native modules in place, and calls pytest. Needs Python 3.11, a C compiler, and libnuma's header.
#
#   setup/unit.sh [ARGUMENTS OF pytest]
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
	echo "unit: $1" >&2
	exit 1
}

command -v cc >/dev/null || fail "needs a C compiler: install gcc"
echo '#include <numa.h>' | cc -fsyntax-only -x c - 2>/dev/null ||
	fail "needs libnuma's header: install libnuma-dev (Debian, Ubuntu) or numactl-devel (Fedora, RHEL)"
if [ ! -x .venv/bin/python ]; then
	python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "needs Python 3.11 or newer as python3"
	echo "unit: making .venv with the extra dev" >&2
	python3 -m venv .venv || fail "could not make .venv: install python3-venv"
	.venv/bin/pip install --quiet --disable-pip-version-check -e '.[dev]' ||
		fail "could not install hmd and the extra dev: is there a network?"
fi
.venv/bin/python -c 'import hmd._native, hmd.emulate._timing' 2>/dev/null ||
	.venv/bin/python setup/build_native.py || fail "could not build the native modules"
exec .venv/bin/python -m pytest -n auto --dist loadfile -m 'not root' "${@:-tests/unit}"
