#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs the tools that build and check hmd's packages, manual pages and completions, on a
# Debian 12 machine, as root. `make deb` and `make test` need them. Does nothing if all are
# installed.
set -euo pipefail
cd "$(dirname "$0")/.."
. setup/apt.sh

PACKAGES=(buildah debhelper dpkg-dev fish lintian man-db mandoc mmdebstrap python3-seccomp rpm zsh)

check_machine
mkdir -p build/setup
install_packages "${PACKAGES[@]}"
